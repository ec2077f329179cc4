mirage 1

mugraph exp_mlp(
    x: f16[m, k],
    a: f16[k, r],
    b: f16[r, n]
) -> f16[m, n] where m = 16, k = 4096, r = 64, n = 4096 {
  parts = block grid(k / 128) {
    x_tile: f16[m, k/grid] = load x
    a_tile: f16[k/grid, r] = load a
    product: f32[m, r] = matmul x_tile, a_tile over(k)
    store parts: f32[m, (k#/grid r)] = product
  }
  y = block grid(n / 64) {
    parts_tile: f32[m, (k# r)] = load parts
    b_tile: f16[r, n/grid] = load b
    logits: f32[m, r] = sum parts_tile over(k#)
    exps: f32[m, r] = exp logits
    exps_half: f16[m, r] = cast exps dtype(f16)
    result: f32[m, n/grid] = matmul exps_half, b_tile over(r)
    store y: f16[m, n/grid] = result
  }
  return y
}
