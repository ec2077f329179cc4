mirage 1

mugraph silu_gate_linear(
    x: f16[1, m],
    y: f16[1, m],
    w: f16[m, k]
) -> f16[1, k] where m = 18944, k = 3584 {
  silu1: f16[m] = silu x
  mul1: f16[m] = mul silu1, y
  matmul1: f16[k] = matmul mul1, w over(m)
  return matmul1
}
