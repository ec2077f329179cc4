// plan: {"symbolic": ["m"], "dense": ["x", "w", "a", "b"]}
mirage 1

mugraph lora(
    x: f16[1, m],
    w: f16[m, k],
    a: f16[m, n],
    b: f16[n, k]
) -> f16[1, k] where m = 4096, k = 4096, n = 16 {
  add1 = block grid(k / 32) loop(m / 256) num_warps(2) num_stages(1) swap_operands(true) prefetch(4) {
    b_t: f16[n, k/grid] = load b
    x_t: f16[1, m/loop] = load x
    w_t: f16[m/loop, k/grid] = load w
    a_t: f16[m/loop, n] = load a
    v4: f32[k/grid] = matmul w_t, x_t over(m)
    v5: f32[m/loop, k/grid] = matmul a_t, b_t over(n)
    v5_f16: f16[m/loop, k/grid] = cast v5 dtype(f16)
    v6: f32[k/grid] = matmul v5_f16, x_t over(m)
    v7: f32[k/grid] = add v4, v6
    v8: f32[k/grid] = accumulate v7
    store add1: f16[1, k/grid] = v8
  }
  return add1
}
