mirage 1

mugraph groupnorm_linear(
    x: f16[m, (k n)],
    w: f16[(k n), h]
) -> f16[m, h] where m = 16, k = 4, n = 1024, h = 6144 {
  div1 = block grid(m / 1, k / 1) num_warps(1) num_stages(2) {
    x_t: f16[m/grid, (k/grid n)] = load x
    v1: f32[m/grid, k/grid] = sum x_t over(n)
    v2: f32[m/grid, k/grid] = mul v1, 1/n
    v3: f32[m/grid, k/grid, n] = sub x_t, v2
    v4: f32[m/grid, k/grid, n] = mul v3, v3
    v5: f32[m/grid, k/grid] = sum v4 over(n)
    v6: f32[m/grid, k/grid] = mul v5, 1/n
    v7: f32[m/grid, k/grid] = add v6, 1e-06
    v8: f32[m/grid, k/grid] = sqrt v7
    v9: f32[m/grid, k/grid, n] = div v3, v8
    store div1: f16[m/grid, k/grid, n] = v9
  }
  matmul1: f16[m, h] = matmul div1, w over(k, n)
  return matmul1
}
