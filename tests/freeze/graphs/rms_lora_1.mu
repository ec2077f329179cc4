// plan: {"symbolic": ["k"], "dense": ["x", "w", "a", "b"]}
mirage 1

mugraph rms_lora(
    x: f16[m, k],
    w: f16[k, n],
    a: f16[k, r],
    b: f16[r, n]
) -> f16[m, n] where m = 1, k = 4096, n = 28672, r = 16 {
  y = block grid(n / 64) loop(k / 64) num_warps(2) num_stages(2) swap_operands(true) {
    x_tile: f16[m, k/loop] = load x
    w_tile: f16[k/loop, n/grid] = load w
    a_tile: f16[k/loop, r] = load a
    b_tile: f16[r, n/grid] = load b
    squares: f32[m, k/loop] = square x_tile
    full: f32[m, n/grid] = matmul x_tile, w_tile over(k)
    low: f32[m, r] = matmul x_tile, a_tile over(k)
    low_half: f16[m, r] = cast low dtype(f16)
    update: f32[m, n/grid] = matmul low_half, b_tile over(r)
    both: f32[m, n/grid] = add full, update
    all_squares: f32[m, k/loop] = accumulate squares
    numerator: f32[m, n/grid] = accumulate both
    total: f32[m] = sum all_squares over(k)
    mean: f32[m] = mul total, 1/k
    scale: f32[m] = rsqrt mean
    result: f32[m, n/grid] = mul numerator, scale
    store y: f16[m, n/grid] = result
  }
  return y
}
