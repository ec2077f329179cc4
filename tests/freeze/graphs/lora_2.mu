mirage 1

mugraph lora(
    x: f16[1, m],
    w: f16[m, k],
    a: f16[m, n],
    b: f16[n, k]
) -> f16[1, k] where m = 4096, k = 4096, n = 16 {
  v6_parts, v7_parts = block grid(k / 256, m / 512) loop(m / 32) num_warps(2) num_stages(1) descriptors(true) allow_tf32(true) {
    x_t: f16[1, m/grid/loop] = load x
    w_t: f16[m/grid/loop, k/grid] = load w
    a_t: f16[m/grid/loop, n] = load a
    v4: f32[k/grid] = matmul w_t, x_t over(m)
    v5: f32[n] = matmul a_t, x_t over(m)
    v6: f32[k/grid] = accumulate v4
    v7: f32[n] = accumulate v5
    store v6_parts: f32[m#/grid, k/grid] = v6
    store v7_parts: f32[m#/grid, k#/grid, n] = v7
  }
  add1 = block grid(k / 64) num_stages(1) {
    v6_parts2: f32[m#, k/grid] = load v6_parts
    v6: f32[k/grid] = sum v6_parts2 over(m#)
    v7_parts2: f32[m#, k#, n] = load v7_parts
    v7_total: f32[m#, n] = sum v7_parts2 over(k#)
    v7_part: f32[m#, n] = mul v7_total, 1/k#
    v7: f32[n] = sum v7_part over(m#)
    b_t: f16[n, k/grid] = load b
    v7_f16: f16[n] = cast v7 dtype(f16)
    v8: f32[k/grid] = matmul b_t, v7_f16 over(n)
    v9: f32[k/grid] = add v6, v8
    store add1: f16[1, k/grid] = v9
  }
  return add1
}
