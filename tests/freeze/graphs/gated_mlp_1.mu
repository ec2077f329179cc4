mirage 1

mugraph gated_mlp(
    x: f16[m, k],
    w1: f16[k, n],
    w2: f16[k, n]
) -> f16[m, n] where m = 8, k = 4096, n = 4096 {
  mul1 = block grid(n / 64) loop(k / 64) num_stages(8) swap_operands(true) {
    x_t: f16[m, k/loop] = load x
    w2_t: f16[k/loop, n/grid] = load w2
    w1_t: f16[k/loop, n/grid] = load w1
    v3: f32[m, n/grid] = matmul x_t, w2_t over(k)
    v4: f32[m, n/grid] = matmul x_t, w1_t over(k)
    v5: f32[m, n/grid] = accumulate v3
    v6: f32[m, n/grid] = accumulate v4
    v7: f32[m, n/grid] = silu v6
    v8: f32[m, n/grid] = mul v5, v7
    store mul1: f16[m, n/grid] = v8
  }
  return mul1
}
