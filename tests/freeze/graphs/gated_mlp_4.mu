// plan: {"symbolic": ["m"]}
mirage 1

mugraph gated_mlp(
    x: f16[m, k],
    w1: f16[k, n],
    w2: f16[k, n]
) -> f16[m, n] where m = 8, k = 4096, n = 4096 {
  matmul1: f16[m, n] = matmul x, w1 over(k)
  silu1: f16[m, n] = silu matmul1
  matmul2: f16[m, n] = matmul x, w2 over(k)
  mul1: f16[m, n] = mul silu1, matmul2
  return mul1
}
