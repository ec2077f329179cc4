// plan: {"symbolic": ["k"]}
mirage 1

mugraph ntrans(
    x: f16[m, k],
    h: f16[m, k],
    alpha: f16[m, k]
) -> f16[m, k] where m = 8, k = 4096 {
  square1: f16[m, k] = square h
  sum1: f16[m] = sum square1 over(k)
  mul1: f16[m] = mul sum1, 1/k
  add1: f16[m] = add mul1, 1e-06
  sqrt1: f16[m] = sqrt add1
  div1: f16[m, k] = div h, sqrt1
  sub1: f16[m, k] = sub div1, x
  mul2: f16[m, k] = mul alpha, sub1
  add2: f16[m, k] = add x, mul2
  square2: f16[m, k] = square add2
  sum2: f16[m] = sum square2 over(k)
  mul3: f16[m] = mul sum2, 1/k
  add3: f16[m] = add mul3, 1e-06
  sqrt2: f16[m] = sqrt add3
  div2: f16[m, k] = div add2, sqrt2
  return div2
}
