mirage 1

mugraph rmsnorm_linear(
    x: f16[m, k],
    w: f16[k, n]
) -> f16[m, n] where m = 2, k = 4096, n = 6144 {
  matmul1 = block grid(n / 64) loop(k / 128) num_stages(6) swap_operands(true) {
    x_t: f16[m, k/loop] = load x
    w_t: f16[k/loop, n/grid] = load w
    v2: f32[m, n/grid] = matmul x_t, w_t over(k)
    v3: f32[m, k/loop] = mul x_t, x_t
    v4: f32[m, n/grid] = accumulate v2
    v5: f32[m, k/loop] = accumulate v3
    v6: f32[m] = sum v5 over(k)
    v7: f32[m] = mul v6, 1/k
    v8: f32[m] = add v7, 1e-06
    v9: f32[m] = sqrt v8
    v10: f32[m, n/grid] = div v4, v9
    store matmul1: f16[m, n/grid] = v10
  }
  return matmul1
}
