// plan: {"out": true}
mirage 1

mugraph rmsnorm_linear_f32(
    x: f32[m, k],
    w: f32[k, n]
) -> f32[m, n] where m = 16, k = 1000, n = 4099 {
  matmul1 = block grid(n / 32) num_warps(8) descriptors(true) pdl(true) {
    w_t: f32[k, n/grid] = load w
    x_t: f32[m, k] = load x
    v2: f32[m, k] = mul x_t, x_t
    v3: f32[m, k] = mul v2, 1/k
    v4: f32[m] = sum v3 over(k)
    v5: f32[m] = add v4, 1e-06
    v6: f32[m] = sqrt v5
    v7: f32[m, k] = div x_t, v6
    v8: f32[m, n/grid] = matmul v7, w_t over(k)
    store matmul1: f32[m, n/grid] = v8
  }
  return matmul1
}
