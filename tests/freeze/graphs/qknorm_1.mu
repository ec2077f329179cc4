mirage 1

mugraph qknorm(
    q: f16[m, n, h],
    k: f16[m, d, h],
    v: f16[m, d, p]
) -> f16[m, n, p] where m = 2, n = 256, h = 64, d = 4096, p = 64 {
  u40, u42 = block grid(m / 1, n / 128, d / 128) num_warps(8) num_stages(2) {
    k_t: f16[m/grid, d/grid, h] = load k
    q_t: f16[m/grid, n/grid, h] = load q
    v_t: f16[m/grid, d/grid, p] = load v
    v3: f32[m/grid, n/grid, h] = mul q_t, q_t
    v4: f32[m/grid, n/grid] = sum v3 over(h)
    v10: f32[m/grid, d/grid, h] = mul k_t, k_t
    v11: f32[m/grid, d/grid] = sum v10 over(h)
    v5: f32[m/grid, n/grid] = mul v4, 1/h
    v6: f32[m/grid, n/grid] = add v5, 1e-06
    v7: f32[m/grid, n/grid] = sqrt v6
    v8: f32[m/grid, n/grid, h] = div q_t, v7
    v8_f16: f16[m/grid, n/grid, h] = cast v8 dtype(f16)
    v12: f32[m/grid, d/grid] = mul v11, 1/h
    v13: f32[m/grid, d/grid] = add v12, 1e-06
    v14: f32[m/grid, d/grid] = sqrt v13
    v15: f32[m/grid, d/grid] = div 0.125, v14
    v9: f32[m/grid, n/grid, d/grid] = matmul v8_f16, k_t over(h)
    v16: f32[m/grid, n/grid, d/grid] = mul v9, v15
    v17: f32[m/grid, n/grid, d/grid] = exp v16
    v17_f16: f16[m/grid, n/grid, d/grid] = cast v17 dtype(f16)
    v18: f32[m/grid, n/grid] = sum v17 over(d)
    v19: f32[m/grid, n/grid, p] = matmul v17_f16, v_t over(d)
    store u40: f32[d#/grid, m/grid, n/grid] = v18
    store u42: f32[d#/grid, m/grid, n/grid, p] = v19
  }
  matmul2 = block grid(m / 1, n / 1) num_warps(1) num_stages(2) pdl(true) {
    u42_t: f32[d#, m/grid, n/grid, p] = load u42
    u40_t: f32[d#, m/grid, n/grid] = load u40
    v2: f32[m/grid, n/grid, p] = sum u42_t over(d#)
    v3: f32[m/grid, n/grid] = sum u40_t over(d#)
    v4: f32[m/grid, n/grid, p] = div v2, v3
    store matmul2: f16[m/grid, n/grid, p] = v4
  }
  return matmul2
}
