mirage 1

mugraph batchnorm_linear(
    x: f16[m, k],
    mean: f16[k],
    var: f16[k],
    w: f16[k, n]
) -> f16[m, n] where m = 16, k = 4096, n = 6144 {
  add1: f16[k] = add var, 1e-06
  sub1: f16[m, k] = sub x, mean
  sqrt1: f16[k] = sqrt add1
  div1: f16[m, k] = div sub1, sqrt1
  matmul1: f16[m, n] = matmul div1, w over(k)
  return matmul1
}
