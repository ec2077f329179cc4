mirage 1

mugraph lora(
    x: bf16[1, m],
    w: bf16[m, k],
    a: bf16[m, n],
    b: bf16[n, k]
) -> bf16[1, k] where m = 4095, k = 4095, n = 16 {
  v8_parts = block grid(k / 128, m / 256) loop(m / 32) num_warps(2) num_stages(2) pdl(true) {
    b_t: bf16[n, k/grid] = load b
    x_t: bf16[1, m/grid/loop] = load x
    a_t: bf16[m/grid/loop, n] = load a
    v5: f32[m/grid/loop, k/grid] = matmul a_t, b_t over(n)
    v5_bf16: bf16[m/grid/loop, k/grid] = cast v5 dtype(bf16)
    v6: f32[k/grid] = matmul v5_bf16, x_t over(m)
    w_t: bf16[m/grid/loop, k/grid] = load w
    v4: f32[k/grid] = matmul w_t, x_t over(m)
    v7: f32[k/grid] = add v4, v6
    v8: f32[k/grid] = accumulate v7
    store v8_parts: f32[m#/grid, k/grid] = v8
  }
  add1 = block grid(k / 16) num_warps(2) num_stages(2) swap_operands(true) pdl(true) {
    v8_parts2: f32[m#, k/grid] = load v8_parts
    v8: f32[k/grid] = sum v8_parts2 over(m#)
    store add1: bf16[1, k/grid] = v8
  }
  return add1
}
