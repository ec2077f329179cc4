mirage 1

mugraph scale_medium(x: f16[m, k], s: f16[m, 1]) -> f16[m, k] where m = 512, k = 4096 {
  mul1: f16[m, k] = mul x, s
  return mul1
}
