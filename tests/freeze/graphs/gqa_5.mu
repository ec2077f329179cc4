// plan: {"symbolic": ["m"], "dense": ["q", "k", "v"]}
mirage 1

mugraph gqa(
    q: f16[b, m, d],
    k: f16[b, d, n],
    v: f16[b, n, d]
) -> f16[b, m, d] where b = 2, m = 256, d = 64, n = 4096 {
  weighted, weights = block grid(b / 1, n / 256, m / 64) loop(n / 64) num_stages(1) swap_operands(true) pdl(true) prefetch(4) {
    q_tile: f16[b/grid, m/grid, d] = load q
    k_tile: f16[b/grid, d, n/grid/loop] = load k
    v_tile: f16[b/grid, n/grid/loop, d] = load v
    logits: f32[b/grid, m/grid, n/grid/loop] = matmul q_tile, k_tile over(d)
    exps: f32[b/grid, m/grid, n/grid/loop] = exp logits
    exps_half: f16[b/grid, m/grid, n/grid/loop] = cast exps dtype(f16)
    weighted_part: f32[b/grid, m/grid, d] = matmul exps_half, v_tile over(n)
    weights_part: f32[b/grid, m/grid] = sum exps over(n)
    numerator: f32[b/grid, m/grid, d] = accumulate weighted_part
    denominator: f32[b/grid, m/grid] = accumulate weights_part
    store weighted: f32[b/grid, m/grid, (n#/grid d)] = numerator
    store weights: f32[b/grid, m/grid, n#/grid] = denominator
  }
  y = block grid(b / 1, m / 16) num_stages(2) swap_operands(true) prefetch(4) allow_tf32(true) {
    weighted_tile: f32[b/grid, m/grid, (n# d)] = load weighted
    weights_tile: f32[b/grid, m/grid, n#] = load weights
    numerator: f32[b/grid, m/grid, d] = sum weighted_tile over(n#)
    denominator: f32[b/grid, m/grid] = sum weights_tile over(n#)
    result: f32[b/grid, m/grid, d] = div numerator, denominator
    store y: f16[b/grid, m/grid, d] = result
  }
  return y
}
