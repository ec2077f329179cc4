// RMSNorm and a linear layer on tensors that lie column by column in memory.
mirage 1

mugraph rms_linear(
    x: f16[m, k] layout(1, 0),
    w: f16[k, n] layout(1, 0)
) -> f16[m, n] where m = 16, k = 4096, n = 4096 {
  y = block grid(n / 64) loop(k / 64) {
    x_tile: f16[m, k/loop] = load x
    w_tile: f16[k/loop, n/grid] = load w
    squares: f32[m, k/loop] = square x_tile
    product: f32[m, n/grid] = matmul x_tile, w_tile over(k)
    all_squares: f32[m, k/loop] = accumulate squares
    numerator: f32[m, n/grid] = accumulate product
    total: f32[m] = sum all_squares over(k)
    mean: f32[m] = mul total, 1/k
    scale: f32[m] = rsqrt mean
    result: f32[m, n/grid] = mul numerator, scale
    store y: f16[m, n/grid] = result
  }
  return y
}
