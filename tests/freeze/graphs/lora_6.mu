// plan: {"symbolic": ["k"], "dense": ["x", "w", "a", "b"]}
mirage 1

mugraph lora(
    x: f16[1, m],
    w: f16[m, k],
    a: f16[m, n],
    b: f16[n, k]
) -> f16[1, k] where m = 4096, k = 4096, n = 16 {
  matmul1: f16[k] = matmul x, w over(m)
  matmul2: f16[n] = matmul x, a over(m)
  matmul3: f16[k] = matmul matmul2, b over(n)
  add1: f16[k] = add matmul1, matmul3
  return add1
}
