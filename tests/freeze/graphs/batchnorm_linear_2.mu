// plan: {"symbolic": ["m"], "dense": ["x", "mean", "var", "w"]}
mirage 1

mugraph batchnorm_linear(
    x: f16[m, k],
    mean: f16[k],
    var: f16[k],
    w: f16[k, n]
) -> f16[m, n] where m = 4096, k = 4096, n = 6144 {
  div1 = block grid(m / 16, k / 512) loop(k / 256) num_warps(2) pdl(true) prefetch(4) {
    x_t: f16[m/grid, k/grid/loop] = load x
    var_t: f16[k/grid/loop] = load var
    mean_t: f16[k/grid/loop] = load mean
    v3: f32[k/grid/loop] = add var_t, 1e-06
    v4: f32[k/grid/loop] = sqrt v3
    v5: f32[m/grid, k/grid/loop] = div x_t, v4
    v6: f32[k/grid/loop] = div mean_t, v4
    v7: f32[m/grid, k/grid/loop] = sub v5, v6
    v8: f32[m/grid, k/grid] = accumulate v7 concat
    store div1: f16[m/grid, k/grid] = v8
  }
  matmul1: f16[m, n] = matmul div1, w over(k)
  return matmul1
}
