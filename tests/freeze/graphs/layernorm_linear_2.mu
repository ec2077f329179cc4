// plan: {"symbolic": ["n"], "dense": ["x", "g", "b", "w"]}
mirage 1

mugraph layernorm_linear(
    x: f16[m, k],
    g: f16[k],
    b: f16[k],
    w: f16[k, n]
) -> f16[m, n] where m = 16, k = 4096, n = 6144 {
  matmul1 = block grid(n / 32) loop(k / 256) num_warps(2) num_stages(1) second_load(false) pdl(true) allow_tf32(true) {
    b_t: f16[k/loop] = load b
    w_t: f16[k/loop, n/grid] = load w
    g_t: f16[k/loop] = load g
    x_t: f16[m, k/loop] = load x
    v4: f32[n/grid] = matmul w_t, b_t over(k)
    v5: f32[n/grid] = matmul w_t, g_t over(k)
    v6: f32[m, k/loop] = mul x_t, g_t
    v6_f16: f16[m, k/loop] = cast v6 dtype(f16)
    v7: f32[m, n/grid] = matmul v6_f16, w_t over(k)
    v8: f32[m, k/loop] = mul x_t, x_t
    v9: f32[n/grid] = accumulate v4
    v10: f32[n/grid] = accumulate v5
    v11: f32[m, k/loop] = accumulate x_t
    v12: f32[m] = sum v11 over(k)
    v13: f32[m] = mul v12, 1/k
    v14: f32[n/grid, m] = mul v10, v13
    v15: f32[m, n/grid] = accumulate v7
    v16: f32[n/grid, m] = sub v14, v15
    v17: f32[m, k/loop] = accumulate v8
    v18: f32[m] = sum v17 over(k)
    v19: f32[m] = mul v18, 1/k
    v20: f32[m] = mul v13, v13
    v21: f32[m] = sub v19, v20
    v22: f32[m] = add v21, 1e-06
    v23: f32[m] = sqrt v22
    v24: f32[n/grid, m] = div v16, v23
    v25: f32[n/grid, m] = sub v9, v24
    store matmul1: f16[m, n/grid] = v25
  }
  return matmul1
}
