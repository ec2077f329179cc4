mirage 1

mugraph rmsnorm_linear_f32(
    x: f32[m, k],
    w: f32[k, n]
) -> f32[m, n] where m = 16, k = 1000, n = 4099 {
  v4_parts, v6_parts = block grid(n / 64, k / 256) loop(k / 32) num_warps(2) {
    x_t: f32[m, k/grid/loop] = load x
    w_t: f32[k/grid/loop, n/grid] = load w
    v2: f32[m, n/grid] = matmul x_t, w_t over(k)
    v3: f32[m, k/grid/loop] = mul x_t, x_t
    v4: f32[m, n/grid] = accumulate v2
    v5: f32[m, k/grid/loop] = accumulate v3
    v6: f32[m] = sum v5 over(k)
    store v4_parts: f32[k#/grid, m, n/grid] = v4
    store v6_parts: f32[k#/grid, n#/grid, m] = v6
  }
  matmul1 = block grid(n / 64) num_warps(8) num_stages(2) pdl(true) {
    v4_parts2: f32[k#, m, n/grid] = load v4_parts
    v6_parts2: f32[k#, n#, m] = load v6_parts
    v4: f32[m, n/grid] = sum v4_parts2 over(k#)
    v6_total: f32[k#, m] = sum v6_parts2 over(n#)
    v6_part: f32[k#, m] = mul v6_total, 1/n#
    v6: f32[m] = sum v6_part over(k#)
    v7: f32[m] = mul v6, 1/k
    v8: f32[m] = add v7, 1e-06
    v9: f32[m] = sqrt v8
    v10: f32[m, n/grid] = div v4, v9
    store matmul1: f32[m, n/grid] = v10
  }
  return matmul1
}
