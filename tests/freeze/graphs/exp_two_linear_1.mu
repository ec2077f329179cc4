mirage 1

mugraph exp_two_linear(
    x: f16[m, k],
    a: f16[k, n],
    b: f16[n, h]
) -> f16[m, h] where m = 16, k = 1024, n = 1024, h = 1024 {
  u7 = block grid(n / 32, h / 256) loop(k / 256) num_stages(5) swap_operands(true) {
    b_t: f16[n/grid, h/grid] = load b
    x_t: f16[m, k/loop] = load x
    a_t: f16[k/loop, n/grid] = load a
    v3: f32[m, n/grid] = matmul x_t, a_t over(k)
    v4: f32[m, n/grid] = accumulate v3
    v5: f32[m, n/grid] = exp v4
    v5_f16: f16[m, n/grid] = cast v5 dtype(f16)
    v6: f32[m, h/grid] = matmul v5_f16, b_t over(n)
    store u7: f32[n#/grid, m, h/grid] = v6
  }
  matmul2 = block grid(m / 1, h / 64) num_stages(2) pdl(true) {
    u7_t: f32[n#, m/grid, h/grid] = load u7
    v1: f32[m/grid, h/grid] = sum u7_t over(n#)
    store matmul2: f16[m/grid, h/grid] = v1
  }
  return matmul2
}
