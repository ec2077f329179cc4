mirage 1

mugraph ntrans(
    x: f16[m, k],
    h: f16[m, k],
    alpha: f16[m, k]
) -> f16[m, k] where m = 8, k = 4096 {
  div2 = block grid(m / 1) num_warps(8) num_stages(2) {
    x_t: f16[m/grid, k] = load x
    alpha_t: f16[m/grid, k] = load alpha
    h_t: f16[m/grid, k] = load h
    v3: f32[m/grid, k] = mul h_t, h_t
    v4: f32[m/grid] = sum v3 over(k)
    v5: f32[m/grid] = mul v4, 1/k
    v6: f32[m/grid] = add v5, 1e-06
    v7: f32[m/grid] = sqrt v6
    v8: f32[m/grid, k] = div h_t, v7
    v9: f32[m/grid, k] = sub v8, x_t
    v10: f32[m/grid, k] = mul alpha_t, v9
    v11: f32[m/grid, k] = add x_t, v10
    v12: f32[m/grid, k] = mul v11, v11
    v13: f32[m/grid] = sum v12 over(k)
    v14: f32[m/grid] = mul v13, 1/k
    v15: f32[m/grid] = add v14, 1e-06
    v16: f32[m/grid] = sqrt v15
    v17: f32[m/grid, k] = div v11, v16
    store div2: f16[m/grid, k] = v17
  }
  return div2
}
