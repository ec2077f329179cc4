mirage 1

mugraph decode_attention(
    q: f16[m, 1, n],
    k: f16[m, h, n],
    v: f16[m, h, d]
) -> f16[m, 1, d] where m = 64, n = 128, h = 4096, d = 128 {
  matmul1: f16[m, h] = matmul q, k over(n)
  mul1: f16[m, h] = mul matmul1, 0.08838834764831843
  rowshift1: f16[m] = rowshift mul1 over(h)
  sub1: f16[m, h] = sub mul1, rowshift1
  exp1: f16[m, h] = exp sub1
  sum1: f16[m] = sum exp1 over(h)
  div1: f16[m, h] = div exp1, sum1
  matmul2: f16[m, d] = matmul div1, v over(h)
  return matmul2
}
