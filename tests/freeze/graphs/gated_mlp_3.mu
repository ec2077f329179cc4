// plan: {"symbolic": ["n"], "dense": ["x", "w1", "w2"]}
mirage 1

mugraph gated_mlp(
    x: f16[m, k],
    w1: f16[k, n],
    w2: f16[k, n]
) -> f16[m, n] where m = 64, k = 4096, n = 4096 {
  v5_parts, v6_parts = block grid(m / 32, n / 128, k / 2048) loop(k / 64) num_warps(1) num_stages(2) descriptors(true) second_load(false) {
    x_t: f16[m/grid, k/grid/loop] = load x
    w2_t: f16[k/grid/loop, n/grid] = load w2
    w1_t: f16[k/grid/loop, n/grid] = load w1
    v3: f32[m/grid, n/grid] = matmul x_t, w2_t over(k)
    v4: f32[m/grid, n/grid] = matmul x_t, w1_t over(k)
    v5: f32[m/grid, n/grid] = accumulate v3
    v6: f32[m/grid, n/grid] = accumulate v4
    store v5_parts: f32[k#/grid, m/grid, n/grid] = v5
    store v6_parts: f32[k#/grid, m/grid, n/grid] = v6
  }
  mul1 = block grid(m / 1, n / 2048) num_warps(2) num_stages(2) swap_operands(true) descriptors(true) second_load(false) {
    v5_parts2: f32[k#, m/grid, n/grid] = load v5_parts
    v5: f32[m/grid, n/grid] = sum v5_parts2 over(k#)
    v6_parts2: f32[k#, m/grid, n/grid] = load v6_parts
    v6: f32[m/grid, n/grid] = sum v6_parts2 over(k#)
    v7: f32[m/grid, n/grid] = silu v6
    v8: f32[m/grid, n/grid] = mul v5, v7
    store mul1: f16[m/grid, n/grid] = v8
  }
  return mul1
}
