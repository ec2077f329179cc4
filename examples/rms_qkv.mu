// Queries, keys and values of a normalised x in one kernel.  Their columns are three dims,
// which share an axis of the grid: a block has 64 columns of the queries, and 16 of the
// keys and of the values.
mirage 1

mugraph rms_qkv(
    x: f16[m, k],
    wq: f16[k, a],
    wk: f16[k, b],
    wv: f16[k, c]
) -> f16[m, a], f16[m, b], f16[m, c] where m = 16, k = 4096, a = 4096, b = 1024, c = 1024 {
  queries, keys, values = block grid(a / 64 & b / 16 & c / 16) loop(k / 128) {
    x_tile: f16[m, k/loop] = load x
    q_tile: f16[k/loop, a/grid] = load wq
    k_tile: f16[k/loop, b/grid] = load wk
    v_tile: f16[k/loop, c/grid] = load wv
    squares: f32[m, k/loop] = square x_tile
    q_part: f32[m, a/grid] = matmul x_tile, q_tile over(k)
    k_part: f32[m, b/grid] = matmul x_tile, k_tile over(k)
    v_part: f32[m, c/grid] = matmul x_tile, v_tile over(k)
    all_squares: f32[m, k/loop] = accumulate squares
    q_sum: f32[m, a/grid] = accumulate q_part
    k_sum: f32[m, b/grid] = accumulate k_part
    v_sum: f32[m, c/grid] = accumulate v_part
    total: f32[m] = sum all_squares over(k)
    mean: f32[m] = mul total, 1/k
    scale: f32[m] = rsqrt mean
    q: f32[m, a/grid] = mul q_sum, scale
    k: f32[m, b/grid] = mul k_sum, scale
    v: f32[m, c/grid] = mul v_sum, scale
    store queries: f16[m, a/grid] = q
    store keys: f16[m, b/grid] = k
    store values: f16[m, c/grid] = v
  }
  return queries, keys, values
}
