mirage 1

mugraph exp_two_linear(
    x: f16[m, k],
    a: f16[k, n],
    b: f16[n, h]
) -> f16[m, h] where m = 16, k = 1024, n = 1024, h = 1024 {
  exp1 = block grid(n / 16) loop(k / 256) num_stages(5) {
    x_t: f16[m, k/loop] = load x
    a_t: f16[k/loop, n/grid] = load a
    v2: f32[m, n/grid] = matmul x_t, a_t over(k)
    v3: f32[m, n/grid] = accumulate v2
    v4: f32[m, n/grid] = exp v3
    store exp1: f16[m, n/grid] = v4
  }
  v3_parts = block grid(h / 64, n / 256) loop(n / 64) num_stages(5) {
    b_t: f16[n/grid/loop, h/grid] = load b
    exp1_t: f16[m, n/grid/loop] = load exp1
    v2: f32[h/grid, m] = matmul b_t, exp1_t over(n)
    v3: f32[h/grid, m] = accumulate v2
    store v3_parts: f32[n#/grid, h/grid, m] = v3
  }
  matmul2 = block grid(h / 4) num_stages(2) {
    v3_parts2: f32[n#, h/grid, m] = load v3_parts
    v3: f32[h/grid, m] = sum v3_parts2 over(n#)
    store matmul2: f16[m, h/grid] = v3
  }
  return matmul2
}
