// plan: {"symbolic": ["k"], "dense": ["x", "w", "a", "b"]}
mirage 1

mugraph lora(
    x: f16[1, m],
    w: f16[m, k],
    a: f16[m, n],
    b: f16[n, k]
) -> f16[1, k] where m = 4096, k = 4096, n = 16 {
  v7_parts, v8_parts = block grid(k / 64, m / 2048) loop(m / 256) num_warps(2) num_stages(2) swap_operands(true) {
    b_t: f16[n, k/grid] = load b
    x_t: f16[1, m/grid/loop] = load x
    w_t: f16[m/grid/loop, k/grid] = load w
    a_t: f16[m/grid/loop, n] = load a
    v4: f32[k/grid] = matmul w_t, x_t over(m)
    v5: f32[n] = matmul a_t, x_t over(m)
    v5_f16: f16[n] = cast v5 dtype(f16)
    v6: f32[k/grid] = matmul b_t, v5_f16 over(n)
    v7: f32[k/grid] = accumulate v4
    v8: f32[k/grid] = accumulate v6
    store v7_parts: f32[m#/grid, k/grid] = v7
    store v8_parts: f32[m#/grid, k/grid] = v8
  }
  add1 = block grid(k / 32) num_warps(8) num_stages(1) descriptors(true) second_load(false) pdl(true) {
    v7_parts2: f32[m#, k/grid] = load v7_parts
    v7: f32[k/grid] = sum v7_parts2 over(m#)
    v8_parts2: f32[m#, k/grid] = load v8_parts
    v8: f32[k/grid] = sum v8_parts2 over(m#)
    v9: f32[k/grid] = add v7, v8
    store add1: f16[1, k/grid] = v9
  }
  return add1
}
