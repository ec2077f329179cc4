// plan: {"out": true}
mirage 1

mugraph qknorm(
    q: f16[m, n, h],
    k: f16[m, d, h],
    v: f16[m, d, p]
) -> f16[m, n, p] where m = 2, n = 256, h = 57, d = 4096, p = 64 {
  square1: f16[m, n, h] = square q
  sum1: f16[m, n] = sum square1 over(h)
  mul1: f16[m, n] = mul sum1, 1/h
  add1: f16[m, n] = add mul1, 1e-06
  sqrt1: f16[m, n] = sqrt add1
  div1: f16[m, n, h] = div q, sqrt1
  square2: f16[m, d, h] = square k
  sum2: f16[m, d] = sum square2 over(h)
  mul2: f16[m, d] = mul sum2, 1/h
  add2: f16[m, d] = add mul2, 1e-06
  sqrt2: f16[m, d] = sqrt add2
  div2: f16[m, d, h] = div k, sqrt2
  matmul1: f16[m, n, d] = matmul div1, div2 over(h)
  div3: f16[m, n, d] = div matmul1, 8
  rowshift1: f16[m, n] = rowshift div3 over(d)
  sub1: f16[m, n, d] = sub div3, rowshift1
  exp1: f16[m, n, d] = exp sub1
  sum3: f16[m, n] = sum exp1 over(d)
  div4: f16[m, n, d] = div exp1, sum3
  matmul2: f16[m, n, p] = matmul div4, v over(d)
  return matmul2
}
