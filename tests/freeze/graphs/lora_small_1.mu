mirage 1

mugraph lora_small(
    x: f16[m, k],
    w: f16[k, n],
    a: f16[k, h],
    b: f16[h, n]
) -> f16[m, n] where m = 16, k = 256, n = 4096, h = 16 {
  add1 = block grid(n / 64) num_warps(8) num_stages(2) {
    x_t: f16[m, k] = load x
    w_t: f16[k, n/grid] = load w
    b_t: f16[h, n/grid] = load b
    a_t: f16[k, h] = load a
    v4: f32[m, n/grid] = matmul x_t, w_t over(k)
    v5: f32[m, h] = matmul x_t, a_t over(k)
    v5_f16: f16[m, h] = cast v5 dtype(f16)
    v6: f32[m, n/grid] = matmul v5_f16, b_t over(h)
    v7: f32[m, n/grid] = add v4, v6
    store add1: f16[m, n/grid] = v7
  }
  return add1
}
