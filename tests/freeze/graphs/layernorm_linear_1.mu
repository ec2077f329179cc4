mirage 1

mugraph layernorm_linear(
    x: f16[m, k],
    g: f16[k],
    b: f16[k],
    w: f16[k, n]
) -> f16[m, n] where m = 16, k = 4096, n = 6144 {
  add2 = block grid(m / 1) num_warps(8) num_stages(2) {
    b_t: f16[k] = load b
    g_t: f16[k] = load g
    x_t: f16[m/grid, k] = load x
    v3: f32[m/grid] = sum x_t over(k)
    v4: f32[m/grid] = mul v3, 1/k
    v5: f32[m/grid, k] = sub x_t, v4
    v6: f32[m/grid, k] = mul v5, v5
    v7: f32[m/grid] = sum v6 over(k)
    v8: f32[m/grid] = mul v7, 1/k
    v9: f32[m/grid] = add v8, 1e-06
    v10: f32[m/grid] = sqrt v9
    v11: f32[m/grid, k] = div v5, v10
    v12: f32[k, m/grid] = mul g_t, v11
    v13: f32[k, m/grid] = add b_t, v12
    store add2: f16[m/grid, k] = v13
  }
  matmul1 = block grid(n / 64) loop(k / 128) num_stages(6) swap_operands(true) pdl(true) prefetch(1) {
    w_t: f16[k/loop, n/grid] = load w
    add2_t: f16[m, k/loop] = load add2
    v2: f32[m, n/grid] = matmul add2_t, w_t over(k)
    v3: f32[m, n/grid] = accumulate v2
    store matmul1: f16[m, n/grid] = v3
  }
  return matmul1
}
