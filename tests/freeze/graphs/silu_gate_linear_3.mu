// plan: {"wide": true}
mirage 1

mugraph silu_gate_linear(
    x: f16[1, m],
    y: f16[1, m],
    w: f16[m, k]
) -> f16[1, k] where m = 18944, k = 3584 {
  v6_parts = block grid(k / 128, m / 128) loop(m / 64) num_warps(1) num_stages(1) descriptors(true) second_load(false) prefetch(4) {
    y_t: f16[1, m/grid/loop] = load y
    w_t: f16[m/grid/loop, k/grid] = load w
    x_t: f16[1, m/grid/loop] = load x
    v3: f32[m/grid/loop] = silu x_t
    v4: f32[m/grid/loop, k/grid] = mul w_t, v3
    v4_f16: f16[m/grid/loop, k/grid] = cast v4 dtype(f16)
    v5: f32[k/grid] = matmul v4_f16, y_t over(m)
    v6: f32[k/grid] = accumulate v5
    store v6_parts: f32[m#/grid, k/grid] = v6
  }
  matmul1 = block grid(k / 16) num_warps(8) num_stages(2) swap_operands(true) second_load(false) {
    v6_parts2: f32[m#, k/grid] = load v6_parts
    v6: f32[k/grid] = sum v6_parts2 over(m#)
    store matmul1: f16[1, k/grid] = v6
  }
  return matmul1
}
