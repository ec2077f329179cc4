// plan: {"symbolic": ["n"], "dense": ["x", "w", "a", "b"]}
mirage 1

mugraph norm_lora(
    x: f16[m, k],
    w: f16[k, n],
    a: f16[k, h],
    b: f16[h, n]
) -> f16[m, n] where m = 4096, k = 4096, n = 4096, h = 16 {
  sqrt1, matmul2 = block grid(m / 32) loop(k / 256) swap_operands(true) descriptors(true) second_load(false) {
    x_t: f16[m/grid, k/loop] = load x
    a_t: f16[k/loop, h] = load a
    v2: f32[m/grid, k/loop] = mul x_t, x_t
    v3: f32[m/grid, h] = matmul x_t, a_t over(k)
    v4: f32[m/grid, k/loop] = accumulate v2
    v5: f32[m/grid] = sum v4 over(k)
    v6: f32[m/grid] = mul v5, 1/k
    v7: f32[m/grid] = add v6, 1e-06
    v8: f32[m/grid] = sqrt v7
    v9: f32[m/grid, h] = accumulate v3
    v10: f32[m/grid, h] = div v9, v8
    store sqrt1: f16[m/grid] = v8
    store matmul2: f16[m/grid, h] = v10
  }
  add2 = block grid(m / 128, n / 128) loop(k / 64) num_warps(1) num_stages(1) swap_operands(true) allow_tf32(true) {
    b_t: f16[h, n/grid] = load b
    matmul2_t: f16[m/grid, h] = load matmul2
    sqrt1_t: f16[m/grid] = load sqrt1
    v3: f32[m/grid, n/grid] = matmul matmul2_t, b_t over(h)
    x_t: f16[m/grid, k/loop] = load x
    w_t: f16[k/loop, n/grid] = load w
    v6: f32[m/grid, n/grid] = matmul x_t, w_t over(k)
    v7: f32[m/grid, n/grid] = accumulate v6
    v8: f32[m/grid, n/grid] = div v7, sqrt1_t
    v9: f32[m/grid, n/grid] = add v3, v8
    store add2: f16[m/grid, n/grid] = v9
  }
  return add2
}
