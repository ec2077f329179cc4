// A normalised input through two linear layers, multiplied: both products share the
// statistics.
mirage 1

mugraph rms_gated(
    x: f16[m, k],
    up: f16[k, n],
    gate: f16[k, n]
) -> f16[m, n] where m = 16, k = 4096, n = 4096 {
  y = block grid(n / 64) loop(k / 64) {
    x_tile: f16[m, k/loop] = load x
    up_tile: f16[k/loop, n/grid] = load up
    gate_tile: f16[k/loop, n/grid] = load gate
    squares: f32[m, k/loop] = square x_tile
    up_part: f32[m, n/grid] = matmul x_tile, up_tile over(k)
    gate_part: f32[m, n/grid] = matmul x_tile, gate_tile over(k)
    all_squares: f32[m, k/loop] = accumulate squares
    up_sum: f32[m, n/grid] = accumulate up_part
    gate_sum: f32[m, n/grid] = accumulate gate_part
    total: f32[m] = sum all_squares over(k)
    mean: f32[m] = mul total, 1/k
    scale: f32[m] = rsqrt mean
    up_normed: f32[m, n/grid] = mul up_sum, scale
    gate_normed: f32[m, n/grid] = mul gate_sum, scale
    result: f32[m, n/grid] = mul up_normed, gate_normed
    store y: f16[m, n/grid] = result
  }
  return y
}
