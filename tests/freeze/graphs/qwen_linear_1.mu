mirage 1

mugraph qwen_linear(
    x: bf16[m, k],
    w: bf16[k, n]
) -> bf16[m, n] where m = 16, k = 2048, n = 2560 {
  matmul1 = block grid(n / 64) loop(k / 256) num_stages(4) swap_operands(true) descriptors(true) {
    x_t: bf16[m, k/loop] = load x
    w_t: bf16[k/loop, n/grid] = load w
    v2: f32[m, n/grid] = matmul x_t, w_t over(k)
    v3: f32[m, k/loop] = mul x_t, x_t
    v4: f32[m] = sum v3 over(k)
    v5: f32[m, n/grid] = accumulate v2
    v6: f32[m] = accumulate v4
    v7: f32[m] = mul v6, 1/k
    v8: f32[m] = add v7, 1e-06
    v9: f32[m] = sqrt v8
    v10: f32[m, n/grid] = div v5, v9
    store matmul1: bf16[m, n/grid] = v10
  }
  return matmul1
}
