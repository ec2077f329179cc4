// A linear layer and its low-rank update as one product of concatenated operands.
mirage 1

mugraph lora(
    x: f16[m, k],
    w: f16[k, n],
    a: f16[k, r],
    b: f16[r, n]
) -> f16[m, n] where m = 1, k = 4096, n = 4096, r = 16 {
  y = block grid(n / 64) loop(k / 64) {
    x_tile: f16[m, k/loop] = load x
    w_tile: f16[k/loop, n/grid] = load w
    a_tile: f16[k/loop, r] = load a
    b_tile: f16[r, n/grid] = load b
    low: f32[m, r] = matmul x_tile, a_tile over(k)
    low_half: f16[m, r] = cast low dtype(f16)
    left: f16[m, j] = concat x_tile, low_half dims(k, r) to(j)
    right: f16[j, n/grid] = concat w_tile, b_tile dims(k, r) to(j)
    both: f32[m, n/grid] = matmul left, right over(j)
    result: f32[m, n/grid] = accumulate both
    store y: f16[m, n/grid] = result
  }
  return y
}
