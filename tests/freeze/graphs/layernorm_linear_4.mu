mirage 1

mugraph layernorm_linear(
    x: f16[m, k],
    g: f16[k],
    b: f16[k],
    w: f16[k, n]
) -> f16[m, n] where m = 4096, k = 4096, n = 6144 {
  add2 = block grid(m / 2) num_warps(8) num_stages(2) {
    b_t: f16[k] = load b
    x_t: f16[m/grid, k] = load x
    g_t: f16[k] = load g
    v3: f32[m/grid] = sum x_t over(k)
    v4: f32[m/grid] = mul v3, 1/k
    v5: f32[m/grid, k] = sub v4, x_t
    v6: f32[m/grid, k] = mul v5, v5
    v7: f32[m/grid] = sum v6 over(k)
    v8: f32[m/grid] = mul v7, 1/k
    v9: f32[m/grid] = add v8, 1e-06
    v10: f32[m/grid] = sqrt v9
    v11: f32[k, m/grid] = div g_t, v10
    v12: f32[m/grid, k] = mul v5, v11
    v13: f32[k, m/grid] = sub b_t, v12
    store add2: f16[m/grid, k] = v13
  }
  matmul1: f16[m, n] = matmul add2, w over(k)
  return matmul1
}
