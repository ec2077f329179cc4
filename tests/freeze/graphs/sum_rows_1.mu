mirage 1

mugraph sum_rows(x: f16[m, k]) -> f16[m] where m = 512, k = 4096 {
  sum1: f16[m] = sum x over(k)
  return sum1
}
