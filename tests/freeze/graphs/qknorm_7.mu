// plan: {"symbolic": ["n"]}
mirage 1

mugraph qknorm(
    q: f16[m, n, h],
    k: f16[m, d, h],
    v: f16[m, d, p]
) -> f16[m, n, p] where m = 2, n = 256, h = 64, d = 4096, p = 64 {
  u40, u42, maxima = block grid(m / 1, n / 64, d / 128) swap_operands(true) descriptors(true) second_load(false) {
    k_t: f16[m/grid, d/grid, h] = load k
    q_t: f16[m/grid, n/grid, h] = load q
    v_t: f16[m/grid, d/grid, p] = load v
    v3: f32[m/grid, n/grid, h] = mul q_t, q_t
    v4: f32[m/grid, n/grid] = sum v3 over(h)
    v5: f32[m/grid, n/grid] = mul v4, 1/h
    v6: f32[m/grid, n/grid] = add v5, 1e-06
    v7: f32[m/grid, n/grid] = sqrt v6
    v8: f32[m/grid, n/grid, h] = div q_t, v7
    v8_f16: f16[m/grid, n/grid, h] = cast v8 dtype(f16)
    v9: f32[m/grid, n/grid, d/grid] = matmul v8_f16, k_t over(h)
    v10: f32[m/grid, d/grid, h] = mul k_t, k_t
    v11: f32[m/grid, d/grid] = sum v10 over(h)
    v12: f32[m/grid, d/grid] = mul v11, 1/h
    v13: f32[m/grid, d/grid] = add v12, 1e-06
    v14: f32[m/grid, d/grid] = sqrt v13
    v15: f32[m/grid, d/grid] = div 0.125, v14
    v16: f32[m/grid, n/grid, d/grid] = mul v9, v15
    top: f32[m/grid, n/grid] = rowshift v16 over(d)
    moved: f32[m/grid, n/grid, d/grid] = sub v16, top
    v17: f32[m/grid, n/grid, d/grid] = exp moved
    v17_f16: f16[m/grid, n/grid, d/grid] = cast v17 dtype(f16)
    v18: f32[m/grid, n/grid] = sum v17 over(d)
    v19: f32[m/grid, n/grid, p] = matmul v17_f16, v_t over(d)
    store u40: f32[d#/grid, m/grid, n/grid] = v18
    store u42: f32[d#/grid, m/grid, n/grid, p] = v19
    store maxima: f32[m/grid, n/grid, d#/grid] = top
  }
  matmul2 = block grid(m / 1, n / 2) num_warps(2) descriptors(true) prefetch(4) {
    maxima2: f32[m/grid, n/grid, d#] = load maxima
    top2: f32[m/grid, n/grid] = rowshift maxima2 over(d#)
    moved2: f32[m/grid, n/grid, d#] = sub maxima2, top2
    weight: f32[m/grid, n/grid, d#] = exp moved2
    u42_t: f32[d#, m/grid, n/grid, p] = load u42
    u42_t_weighted: f32[d#, m/grid, n/grid, p] = mul u42_t, weight
    u40_t: f32[d#, m/grid, n/grid] = load u40
    u40_t_weighted: f32[d#, m/grid, n/grid] = mul u40_t, weight
    v2: f32[m/grid, n/grid, p] = sum u42_t_weighted over(d#)
    v3: f32[m/grid, n/grid] = sum u40_t_weighted over(d#)
    v4: f32[m/grid, n/grid, p] = div v2, v3
    store matmul2: f16[m/grid, n/grid, p] = v4
  }
  return matmul2
}
