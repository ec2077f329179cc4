mirage 1

mugraph batchnorm_linear(
    x: f16[m, k],
    mean: f16[k],
    var: f16[k],
    w: f16[k, n]
) -> f16[m, n] where m = 16, k = 4096, n = 6144 {
  matmul1 = block grid(n / 64) loop(k / 256) num_stages(4) swap_operands(true) {
    w_t: f16[k/loop, n/grid] = load w
    x_t: f16[m, k/loop] = load x
    var_t: f16[k/loop] = load var
    mean_t: f16[k/loop] = load mean
    v4: f32[k/loop] = add var_t, 1e-06
    v5: f32[k/loop] = sqrt v4
    v6: f32[m, k/loop] = div x_t, v5
    v7: f32[k/loop] = div mean_t, v5
    v8: f32[m, k/loop] = sub v6, v7
    v8_f16: f16[m, k/loop] = cast v8 dtype(f16)
    v9: f32[m, n/grid] = matmul v8_f16, w_t over(k)
    v10: f32[m, n/grid] = accumulate v9
    store matmul1: f16[m, n/grid] = v10
  }
  return matmul1
}
