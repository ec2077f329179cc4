// plan: {"symbolic": ["n"], "dense": ["x", "w"]}
mirage 1

mugraph rmsnorm_linear_f32(
    x: f32[m, k],
    w: f32[k, n]
) -> f32[m, n] where m = 16, k = 1000, n = 4099 {
  matmul1 = block grid(n / 32) loop(k / 256) num_warps(1) {
    x_t: f32[m, k/loop] = load x
    w_t: f32[k/loop, n/grid] = load w
    v2: f32[m, n/grid] = matmul x_t, w_t over(k)
    v3: f32[m, k/loop] = mul x_t, x_t
    v4: f32[m] = sum v3 over(k)
    v5: f32[m, n/grid] = accumulate v2
    v6: f32[m] = accumulate v4
    v7: f32[m] = mul v6, 1/k
    v8: f32[m] = add v7, 1e-06
    v9: f32[m] = sqrt v8
    v10: f32[m, n/grid] = div v5, v9
    store matmul1: f32[m, n/grid] = v10
  }
  return matmul1
}
