mirage 1

mugraph norm_gain_linear(
    x: f16[m, k],
    g: f16[k],
    w: f16[k, n]
) -> f16[m, n] where m = 16, k = 3584, n = 4608 {
  matmul1 = block grid(n / 64) loop(k / 256) num_stages(5) swap_operands(true) descriptors(true) {
    w_t: f16[k/loop, n/grid] = load w
    x_t: f16[m, k/loop] = load x
    g_t: f16[k/loop] = load g
    v3: f32[m, k/loop] = mul x_t, g_t
    v3_f16: f16[m, k/loop] = cast v3 dtype(f16)
    v4: f32[m, n/grid] = matmul v3_f16, w_t over(k)
    v5: f32[m, k/loop] = mul x_t, x_t
    v6: f32[m, n/grid] = accumulate v4
    v7: f32[m, k/loop] = accumulate v5
    v8: f32[m] = sum v7 over(k)
    v9: f32[m] = mul v8, 1/k
    v10: f32[m] = add v9, 1e-06
    v11: f32[m] = sqrt v10
    v12: f32[m, n/grid] = div v6, v11
    store matmul1: f16[m, n/grid] = v12
  }
  return matmul1
}
