// plan: {"out": true}
mirage 1

mugraph qknorm(
    q: f16[b, m, d],
    k: f16[b, n, d],
    v: f16[b, n, d]
) -> f16[b, m, d] where b = 25, m = 4, d = 121, n = 4093 {
  weighted, weights = block grid(b / 1, n / 1024) loop(n / 64) num_warps(1) num_stages(2) descriptors(true) prefetch(4) {
    q_tile: f16[b/grid, m, d] = load q
    k_tile: f16[b/grid, n/grid/loop, d] = load k
    v_tile: f16[b/grid, n/grid/loop, d] = load v
    q_squares: f32[b/grid, m, d] = square q_tile
    q_total: f32[b/grid, m] = sum q_squares over(d)
    q_mean: f32[b/grid, m] = mul q_total, 1/d
    q_scale: f32[b/grid, m] = rsqrt q_mean
    q_normed: f32[b/grid, m, d] = mul q_tile, q_scale
    q_half: f16[b/grid, m, d] = cast q_normed dtype(f16)
    k_squares: f32[b/grid, n/grid/loop, d] = square k_tile
    k_total: f32[b/grid, n/grid/loop] = sum k_squares over(d)
    k_mean: f32[b/grid, n/grid/loop] = mul k_total, 1/d
    k_scale: f32[b/grid, n/grid/loop] = rsqrt k_mean
    k_normed: f32[b/grid, n/grid/loop, d] = mul k_tile, k_scale
    k_half: f16[b/grid, n/grid/loop, d] = cast k_normed dtype(f16)
    logits: f32[b/grid, m, n/grid/loop] = matmul q_half, k_half over(d)
    scaled: f32[b/grid, m, n/grid/loop] = mul logits, 0.08838834764831845
    exps: f32[b/grid, m, n/grid/loop] = exp scaled
    exps_half: f16[b/grid, m, n/grid/loop] = cast exps dtype(f16)
    weighted_part: f32[b/grid, m, d] = matmul exps_half, v_tile over(n)
    weights_part: f32[b/grid, m] = sum exps over(n)
    numerator: f32[b/grid, m, d] = accumulate weighted_part
    denominator: f32[b/grid, m] = accumulate weights_part
    store weighted: f32[b/grid, m, (n#/grid d)] = numerator
    store weights: f32[b/grid, m, n#/grid] = denominator
  }
  y = block grid(b / 1, m / 4) num_stages(2) descriptors(true) pdl(true) {
    weighted_tile: f32[b/grid, m/grid, (n# d)] = load weighted
    weights_tile: f32[b/grid, m/grid, n#] = load weights
    numerator: f32[b/grid, m/grid, d] = sum weighted_tile over(n#)
    denominator: f32[b/grid, m/grid] = sum weights_tile over(n#)
    result: f32[b/grid, m/grid, d] = div numerator, denominator
    store y: f16[b/grid, m/grid, d] = result
  }
  return y
}
