mirage 1

mugraph batchnorm_linear(
    x: f16[m, k],
    mean: f16[k],
    var: f16[k],
    w: f16[k, n]
) -> f16[m, n] where m = 16, k = 4096, n = 6137 {
  v9_parts = block grid(n / 128, k / 2048) loop(k / 256) num_warps(2) num_stages(2) swap_operands(true) descriptors(true) pdl(true) {
    w_t: f16[k/grid/loop, n/grid] = load w
    x_t: f16[m, k/grid/loop] = load x
    mean_t: f16[k/grid/loop] = load mean
    var_t: f16[k/grid/loop] = load var
    v4: f32[m, k/grid/loop] = sub x_t, mean_t
    v5: f32[k/grid/loop] = add var_t, 1e-06
    v6: f32[k/grid/loop] = sqrt v5
    v7: f32[m, k/grid/loop] = div v4, v6
    v7_f16: f16[m, k/grid/loop] = cast v7 dtype(f16)
    v8: f32[m, n/grid] = matmul v7_f16, w_t over(k)
    v9: f32[m, n/grid] = accumulate v8
    store v9_parts: f32[k#/grid, m, n/grid] = v9
  }
  matmul1 = block grid(n / 64) num_warps(2) num_stages(1) swap_operands(true) descriptors(true) prefetch(4) {
    v9_parts2: f32[k#, m, n/grid] = load v9_parts
    v9: f32[m, n/grid] = sum v9_parts2 over(k#)
    store matmul1: f16[m, n/grid] = v9
  }
  return matmul1
}
