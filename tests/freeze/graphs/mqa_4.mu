// plan: {"symbolic": ["m"], "dense": ["q", "k", "v"]}
mirage 1

mugraph mqa(
    q: f16[1, m, n],
    k: f16[h, n],
    v: f16[h, d]
) -> f16[1, m, d] where m = 1024, n = 64, h = 4096, d = 64 {
  matmul1: f16[m, h] = matmul q, k over(n)
  rowshift1: f16[m] = rowshift matmul1 over(h)
  sub1: f16[m, h] = sub matmul1, rowshift1
  exp1: f16[m, h] = exp sub1
  sum1: f16[m] = sum exp1 over(h)
  div1: f16[m, h] = div exp1, sum1
  matmul2: f16[m, d] = matmul div1, v over(h)
  return matmul2
}
