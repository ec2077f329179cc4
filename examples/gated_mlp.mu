// A gated MLP's first half in one kernel: two products share the tiles of x, and the
// gate is applied to their sums after the loop.
mirage 1

mugraph gated_mlp(
    x: f16[m, k],
    w1: f16[k, n],
    w2: f16[k, n]
) -> f16[m, n] where m = 16, k = 4096, n = 4096 {
  y = block grid(n / 64) loop(k / 64) {
    x_tile: f16[m, k/loop] = load x
    w1_tile: f16[k/loop, n/grid] = load w1
    w2_tile: f16[k/loop, n/grid] = load w2
    gate_part: f32[m, n/grid] = matmul x_tile, w1_tile over(k)
    up_part: f32[m, n/grid] = matmul x_tile, w2_tile over(k)
    gate: f32[m, n/grid] = accumulate gate_part
    up: f32[m, n/grid] = accumulate up_part
    active: f32[m, n/grid] = silu gate
    result: f32[m, n/grid] = mul active, up
    store y: f16[m, n/grid] = result
  }
  return y
}
