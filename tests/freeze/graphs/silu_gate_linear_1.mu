mirage 1

mugraph silu_gate_linear(
    x: f16[1, m],
    y: f16[1, m],
    w: f16[m, k]
) -> f16[1, k] where m = 18944, k = 3584 {
  v6_parts = block grid(k / 256, m / 512) loop(m / 16) descriptors(true) {
    w_t: f16[m/grid/loop, k/grid] = load w
    y_t: f16[1, m/grid/loop] = load y
    x_t: f16[1, m/grid/loop] = load x
    v3: f32[m/grid/loop] = silu x_t
    v4: f32[m/grid/loop] = mul y_t, v3
    v4_f16: f16[m/grid/loop] = cast v4 dtype(f16)
    v5: f32[k/grid] = matmul w_t, v4_f16 over(m)
    v6: f32[k/grid] = accumulate v5
    store v6_parts: f32[m#/grid, k/grid] = v6
  }
  matmul1 = block grid(k / 16) num_stages(2) pdl(true) {
    v6_parts2: f32[m#, k/grid] = load v6_parts
    v6: f32[k/grid] = sum v6_parts2 over(m#)
    store matmul1: f16[1, k/grid] = v6
  }
  return matmul1
}
