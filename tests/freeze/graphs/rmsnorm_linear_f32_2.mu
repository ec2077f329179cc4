mirage 1

mugraph rmsnorm_linear_f32(
    x: f32[m, k],
    w: f32[k, n]
) -> f32[m, n] where m = 16, k = 1000, n = 4099 {
  sqrt1 = block grid(m / 1) num_stages(2) {
    x_t: f32[m/grid, k] = load x
    v1: f32[m/grid, k] = mul x_t, x_t
    v2: f32[m/grid] = sum v1 over(k)
    v3: f32[m/grid] = mul v2, 1/k
    v4: f32[m/grid] = add v3, 1e-06
    v5: f32[m/grid] = sqrt v4
    store sqrt1: f32[m/grid] = v5
  }
  matmul1 = block grid(n / 32) loop(k / 128) num_stages(6) {
    sqrt1_t: f32[m] = load sqrt1
    x_t: f32[m, k/loop] = load x
    w_t: f32[k/loop, n/grid] = load w
    v3: f32[m, n/grid] = matmul x_t, w_t over(k)
    v4: f32[m, n/grid] = accumulate v3
    v5: f32[m, n/grid] = div v4, sqrt1_t
    store matmul1: f32[m, n/grid] = v5
  }
  return matmul1
}
