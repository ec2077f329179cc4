// plan: {"out": true}
mirage 1

mugraph silu_gate_linear(
    x: f16[1, m],
    y: f16[1, m],
    w: f16[m, k]
) -> f16[1, k] where m = 18943, k = 3584 {
  matmul1 = block grid(k / 32) loop(m / 512) num_stages(1) swap_operands(true) descriptors(true) {
    y_t: f16[1, m/loop] = load y
    w_t: f16[m/loop, k/grid] = load w
    x_t: f16[1, m/loop] = load x
    v3: f32[m/loop] = silu x_t
    v4: f32[m/loop, k/grid] = mul w_t, v3
    v4_f16: f16[m/loop, k/grid] = cast v4 dtype(f16)
    v5: f32[k/grid] = matmul v4_f16, y_t over(m)
    v6: f32[k/grid] = accumulate v5
    store matmul1: f16[1, k/grid] = v6
  }
  return matmul1
}
