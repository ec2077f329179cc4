// plan: {"symbolic": ["k"], "dense": ["x", "w", "a", "b"]}
mirage 1

mugraph lora(
    x: f16[1, m],
    w: f16[m, k],
    a: f16[m, n],
    b: f16[n, k]
) -> f16[1, k] where m = 4096, k = 4096, n = 16 {
  add1 = block grid(k / 64) loop(m / 256) num_stages(2) {
    b_t: f16[n, k/grid] = load b
    x_t: f16[1, m/loop] = load x
    w_t: f16[m/loop, k/grid] = load w
    a_t: f16[m/loop, n] = load a
    v4: f32[k/grid] = matmul w_t, x_t over(m)
    v5: f32[n] = matmul a_t, x_t over(m)
    v6: f32[k/grid] = accumulate v4
    v7: f32[n] = accumulate v5
    v7_f16: f16[n] = cast v7 dtype(f16)
    v8: f32[k/grid] = matmul b_t, v7_f16 over(n)
    v9: f32[k/grid] = add v6, v8
    store add1: f16[1, k/grid] = v9
  }
  return add1
}
