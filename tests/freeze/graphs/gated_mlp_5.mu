// plan: {"symbolic": ["n"], "dense": ["x", "w1", "w2"]}
mirage 1

mugraph gated_mlp(
    x: f16[m, k],
    w1: f16[k, n],
    w2: f16[k, n]
) -> f16[m, n] where m = 128, k = 4096, n = 4096 {
  matmul1: f16[m, n] = matmul x, w1 over(k)
  matmul2: f16[m, n] = matmul x, w2 over(k)
  mul1 = block grid(n / 32) loop(m / 64) num_warps(8) num_stages(1) prefetch(4) {
    matmul2_t: f16[m/loop, n/grid] = load matmul2
    matmul1_t: f16[m/loop, n/grid] = load matmul1
    v2: f32[m/loop, n/grid] = silu matmul1_t
    v3: f32[m/loop, n/grid] = mul matmul2_t, v2
    v4: f32[m, n/grid] = accumulate v3 concat
    store mul1: f16[m, n/grid] = v4
  }
  return mul1
}
