mirage 1

mugraph qknorm(
    q: bf16[m, n, h],
    k: bf16[m, d, h],
    v: bf16[m, d, p]
) -> bf16[m, n, p] where m = 16, n = 256, h = 61, d = 4096, p = 57 {
  v20_parts, v21_parts = block grid(m / 1, n / 128, d / 512) loop(d / 64) num_warps(2) num_stages(1) descriptors(true) allow_tf32(true) {
    q_t: bf16[m/grid, n/grid, h] = load q
    v1: f32[m/grid, n/grid, h] = mul q_t, q_t
    v2: f32[m/grid, n/grid] = sum v1 over(h)
    v3: f32[m/grid, n/grid] = mul v2, 1/h
    v4: f32[m/grid, n/grid] = add v3, 1e-06
    v5: f32[m/grid, n/grid] = sqrt v4
    v6: f32[m/grid, n/grid, h] = div q_t, v5
    v6_bf16: bf16[m/grid, n/grid, h] = cast v6 dtype(bf16)
    v_t: bf16[m/grid, d/grid/loop, p] = load v
    k_t: bf16[m/grid, d/grid/loop, h] = load k
    v9: f32[m/grid, n/grid, d/grid/loop] = matmul v6_bf16, k_t over(h)
    v10: f32[m/grid, d/grid/loop, h] = mul k_t, k_t
    v11: f32[m/grid, d/grid/loop] = sum v10 over(h)
    v12: f32[m/grid, d/grid/loop] = mul v11, 1/h
    v13: f32[m/grid, d/grid/loop] = add v12, 1e-06
    v14: f32[m/grid, d/grid/loop] = sqrt v13
    v15: f32[m/grid, d/grid/loop] = div 0.125, v14
    v16: f32[m/grid, n/grid, d/grid/loop] = mul v9, v15
    v17: f32[m/grid, n/grid, d/grid/loop] = exp v16
    v17_bf16: bf16[m/grid, n/grid, d/grid/loop] = cast v17 dtype(bf16)
    v18: f32[m/grid, n/grid, p] = matmul v17_bf16, v_t over(d)
    v19: f32[m/grid, n/grid] = sum v17 over(d)
    v20: f32[m/grid, n/grid, p] = accumulate v18
    v21: f32[m/grid, n/grid] = accumulate v19
    store v20_parts: f32[d#/grid, m/grid, n/grid, p] = v20
    store v21_parts: f32[d#/grid, m/grid, n/grid] = v21
  }
  matmul2 = block grid(m / 2, n / 16) num_warps(1) swap_operands(true) {
    v20_parts2: f32[d#, m/grid, n/grid, p] = load v20_parts
    v21_parts2: f32[d#, m/grid, n/grid] = load v21_parts
    v20: f32[m/grid, n/grid, p] = sum v20_parts2 over(d#)
    v21: f32[m/grid, n/grid] = sum v21_parts2 over(d#)
    v22: f32[m/grid, n/grid, p] = div v20, v21
    store matmul2: bf16[m/grid, n/grid, p] = v22
  }
  return matmul2
}
