// plan: {"out": true}
mirage 1

mugraph gqa(
    q: f16[b, m, d],
    k: f16[b, d, n],
    v: f16[b, n, d]
) -> f16[b, m, d] where b = 2, m = 256, d = 64, n = 4096 {
  weighted, weights, shifts = block grid(b / 1, n / 256, m / 64) loop(n / 64) num_warps(2) descriptors(true) prefetch(4) {
    q_tile: f16[b/grid, m/grid, d] = load q
    k_tile: f16[b/grid, d, n/grid/loop] = load k
    v_tile: f16[b/grid, n/grid/loop, d] = load v
    logits: f32[b/grid, m/grid, n/grid/loop] = matmul q_tile, k_tile over(d)
    largest: f32[b/grid, m/grid] = rowshift logits over(n)
    shift: f32[b/grid, m/grid] = running max largest
    shifted: f32[b/grid, m/grid, n/grid/loop] = sub logits, shift
    exps: f32[b/grid, m/grid, n/grid/loop] = exp shifted
    exps_half: f16[b/grid, m/grid, n/grid/loop] = cast exps dtype(f16)
    weighted_part: f32[b/grid, m/grid, d] = matmul exps_half, v_tile over(n)
    weights_part: f32[b/grid, m/grid] = sum exps over(n)
    numerator: f32[b/grid, m/grid, d] = accumulate weighted_part rescale shift
    denominator: f32[b/grid, m/grid] = accumulate weights_part rescale shift
    last_shift: f32[b/grid, m/grid] = accumulate shift max
    store weighted: f32[b/grid, m/grid, (n#/grid d)] = numerator
    store weights: f32[b/grid, m/grid, n#/grid] = denominator
    store shifts: f32[b/grid, m/grid, n#/grid] = last_shift
  }
  y = block grid(b / 1, m / 16) num_warps(8) descriptors(true) pdl(true) {
    weighted_tile: f32[b/grid, m/grid, (n# d)] = load weighted
    weights_tile: f32[b/grid, m/grid, n#] = load weights
    shifts_tile: f32[b/grid, m/grid, n#] = load shifts
    largest: f32[b/grid, m/grid] = rowshift shifts_tile over(n#)
    relative: f32[b/grid, m/grid, n#] = sub shifts_tile, largest
    factor: f32[b/grid, m/grid, n#] = exp relative
    weighted_parts: f32[b/grid, m/grid, n#, d] = mul weighted_tile, factor
    weights_parts: f32[b/grid, m/grid, n#] = mul weights_tile, factor
    numerator: f32[b/grid, m/grid, d] = sum weighted_parts over(n#)
    denominator: f32[b/grid, m/grid] = sum weights_parts over(n#)
    result: f32[b/grid, m/grid, d] = div numerator, denominator
    store y: f16[b/grid, m/grid, d] = result
  }
  return y
}
