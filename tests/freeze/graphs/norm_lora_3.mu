// plan: {"symbolic": ["m"], "dense": ["x", "w", "a", "b"]}
mirage 1

mugraph norm_lora(
    x: f16[m, k],
    w: f16[k, n],
    a: f16[k, h],
    b: f16[h, n]
) -> f16[m, n] where m = 16, k = 4096, n = 4096, h = 16 {
  square1: f16[m, k] = square x
  sum1: f16[m] = sum square1 over(k)
  mul1: f16[m] = mul sum1, 1/k
  add1: f16[m] = add mul1, 1e-06
  sqrt1: f16[m] = sqrt add1
  div1: f16[m, k] = div x, sqrt1
  matmul1: f16[m, n] = matmul div1, w over(k)
  matmul2: f16[m, h] = matmul div1, a over(k)
  matmul3: f16[m, n] = matmul matmul2, b over(h)
  add2: f16[m, n] = add matmul1, matmul3
  return add2
}
