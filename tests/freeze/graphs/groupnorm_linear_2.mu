// plan: {"wide": true}
mirage 1

mugraph groupnorm_linear(
    x: f16[m, (k n)],
    w: f16[(k n), h]
) -> f16[m, h] where m = 16, k = 4, n = 1021, h = 6137 {
  div1 = block grid(m / 1, k / 1) num_warps(1) descriptors(true) second_load(false) pdl(true) prefetch(4) {
    x_t: f16[m/grid, (k/grid n)] = load x
    v1: f32[m/grid, k/grid] = sum x_t over(n)
    v2: f32[m/grid, k/grid] = mul v1, 1/n
    v3: f32[m/grid, k/grid, n] = sub v2, x_t
    v4: f32[m/grid, k/grid, n] = sub x_t, v2
    v5: f32[m/grid, k/grid, n] = mul v3, v4
    v6: f32[m/grid, k/grid] = sum v5 over(n)
    v7: f32[m/grid, k/grid] = mul v6, 1/n
    v8: f32[m/grid, k/grid] = sub 1e-06, v7
    v9: f32[m/grid, k/grid] = sqrt v8
    v10: f32[m/grid, k/grid, n] = div x_t, v9
    v11: f32[m/grid, k/grid] = div v2, v9
    v12: f32[m/grid, k/grid, n] = sub v10, v11
    store div1: f16[m/grid, k/grid, n] = v12
  }
  matmul1: f16[m, h] = matmul div1, w over(k, n)
  return matmul1
}
