// plan: {"wide": true}
mirage 1

mugraph rms_gain_linear(
    x: f16[m, k],
    g: f16[k],
    w: f16[k, n]
) -> f16[m, n] where m = 1, k = 3584, n = 37888 {
  y = block grid(n / 64) loop(k / 64) num_warps(1) num_stages(1) prefetch(4) {
    x_tile: f16[m, k/loop] = load x
    g_tile: f16[k/loop] = load g
    w_tile: f16[k/loop, n/grid] = load w
    squares: f32[m, k/loop] = square x_tile
    scaled: f32[m, k/loop] = mul x_tile, g_tile
    scaled_half: f16[m, k/loop] = cast scaled dtype(f16)
    product: f32[m, n/grid] = matmul scaled_half, w_tile over(k)
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
