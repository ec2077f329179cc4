// RMSNorm and a linear layer; blocks are numbered along rows and columns.
mirage 1

mugraph rms_linear(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 4096, n = 4096 {
  y = block grid(m / 4, n / 256) loop(k / 64) {
    x_tile: f16[m/grid, k/loop] = load x
    w_tile: f16[k/loop, n/grid] = load w
    squares: f32[m/grid, k/loop] = square x_tile
    product: f32[m/grid, n/grid] = matmul x_tile, w_tile over(k)
    all_squares: f32[m/grid, k/loop] = accumulate squares
    numerator: f32[m/grid, n/grid] = accumulate product
    total: f32[m/grid] = sum all_squares over(k)
    mean: f32[m/grid] = mul total, 1/k
    scale: f32[m/grid] = rsqrt mean
    result: f32[m/grid, n/grid] = mul numerator, scale
    store y: f16[m/grid, n/grid] = result
  }
  return y
}
