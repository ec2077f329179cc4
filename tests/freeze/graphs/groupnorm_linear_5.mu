mirage 1

mugraph groupnorm_linear(
    x: f16[m, (k n)],
    w: f16[(k n), h]
) -> f16[m, h] where m = 16, k = 4, n = 1024, h = 6141 {
  matmul1 = block grid(h / 64) loop(k / 1) swap_operands(true) descriptors(true) allow_tf32(true) {
    w_t: f16[(k/loop n), h/grid] = load w
    x_t: f16[m, (k/loop n)] = load x
    v2: f32[m, k/loop] = sum x_t over(n)
    v3: f32[m, k/loop] = mul v2, 1/n
    v4: f32[m, k/loop, n] = sub x_t, v3
    v4_f16: f16[m, k/loop, n] = cast v4 dtype(f16)
    v5: f32[m, k/loop, h/grid] = matmul v4_f16, w_t over(n)
    v6: f32[m, k/loop, n] = mul v4, v4
    v7: f32[m, k/loop] = sum v6 over(n)
    v8: f32[m, k/loop] = mul v7, 1/n
    v9: f32[m, k/loop] = add v8, 1e-06
    v10: f32[m, k/loop] = sqrt v9
    v11: f32[m, k/loop, h/grid] = div v5, v10
    v12: f32[m, h/grid] = sum v11 over(k)
    v13: f32[m, h/grid] = accumulate v12
    store matmul1: f16[m, h/grid] = v13
  }
  return matmul1
}
