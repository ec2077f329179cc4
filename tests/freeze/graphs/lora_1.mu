mirage 1

mugraph lora(
    x: f16[1, m],
    w: f16[m, k],
    a: f16[m, n],
    b: f16[n, k]
) -> f16[1, k] where m = 4096, k = 4096, n = 16 {
  v8_parts = block grid(k / 128, m / 512) loop(m / 32) num_stages(5) {
    b_t: f16[n, k/grid] = load b
    x_t: f16[1, m/grid/loop] = load x
    a_t: f16[m/grid/loop, n] = load a
    v5: f32[m/grid/loop, k/grid] = matmul a_t, b_t over(n)
    v5_f16: f16[m/grid/loop, k/grid] = cast v5 dtype(f16)
    v6: f32[k/grid] = matmul v5_f16, x_t over(m)
    w_t: f16[m/grid/loop, k/grid] = load w
    v4: f32[k/grid] = matmul w_t, x_t over(m)
    v7: f32[k/grid] = add v4, v6
    v8: f32[k/grid] = accumulate v7
    store v8_parts: f32[m#/grid, k/grid] = v8
  }
  add1 = block grid(k / 16) num_stages(2) pdl(true) {
    v8_parts2: f32[m#, k/grid] = load v8_parts
    v8: f32[k/grid] = sum v8_parts2 over(m#)
    store add1: f16[1, k/grid] = v8
  }
  return add1
}
