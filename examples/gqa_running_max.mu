// Attention in one kernel that passes over the whole KV sequence: a running maximum
// keeps the exponentials in range, and the sums so far are rescaled to it.
mirage 1

mugraph gqa(
    q: f16[b, m, d],
    k: f16[b, d, n],
    v: f16[b, n, d]
) -> f16[b, m, d] where b = 2, m = 256, d = 64, n = 4096 {
  y = block grid(b / 1, m / 64) loop(n / 64) {
    q_tile: f16[b/grid, m/grid, d] = load q
    k_tile: f16[b/grid, d, n/loop] = load k
    v_tile: f16[b/grid, n/loop, d] = load v
    logits: f32[b/grid, m/grid, n/loop] = matmul q_tile, k_tile over(d)
    largest: f32[b/grid, m/grid] = rowshift logits over(n)
    shift: f32[b/grid, m/grid] = running max largest
    shifted: f32[b/grid, m/grid, n/loop] = sub logits, shift
    exps: f32[b/grid, m/grid, n/loop] = exp shifted
    exps_half: f16[b/grid, m/grid, n/loop] = cast exps dtype(f16)
    weighted_part: f32[b/grid, m/grid, d] = matmul exps_half, v_tile over(n)
    weights_part: f32[b/grid, m/grid] = sum exps over(n)
    numerator: f32[b/grid, m/grid, d] = accumulate weighted_part rescale shift
    denominator: f32[b/grid, m/grid] = accumulate weights_part rescale shift
    result: f32[b/grid, m/grid, d] = div numerator, denominator
    store y: f16[b/grid, m/grid, d] = result
  }
  return y
}
