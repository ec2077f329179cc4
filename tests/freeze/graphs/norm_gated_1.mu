mirage 1

mugraph norm_gated(
    x: f16[m, k],
    w_up: f16[k, n],
    w_gate: f16[k, n]
) -> f16[m, n] where m = 16, k = 4096, n = 14336 {
  mul3 = block grid(n / 128) loop(k / 64) swap_operands(true) {
    x_t: f16[m, k/loop] = load x
    w_gate_t: f16[k/loop, n/grid] = load w_gate
    w_up_t: f16[k/loop, n/grid] = load w_up
    v3: f32[m, n/grid] = matmul x_t, w_gate_t over(k)
    v4: f32[m, n/grid] = matmul x_t, w_up_t over(k)
    v5: f32[m, k/loop] = mul x_t, x_t
    v6: f32[m, n/grid] = accumulate v3
    v7: f32[m, n/grid] = accumulate v4
    v8: f32[m, k/loop] = accumulate v5
    v9: f32[m] = sum v8 over(k)
    v10: f32[m] = mul v9, 1/k
    v11: f32[m] = add v10, 1e-06
    v12: f32[m] = sqrt v11
    v13: f32[m] = mul v12, v12
    v14: f32[m, n/grid] = div v7, v13
    v15: f32[m, n/grid] = mul v6, v14
    store mul3: f16[m, n/grid] = v15
  }
  return mul3
}
