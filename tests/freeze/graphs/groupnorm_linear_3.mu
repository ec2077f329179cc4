// plan: {"out": true}
mirage 1

mugraph groupnorm_linear(
    x: f16[m, (k n)],
    w: f16[(k n), h]
) -> f16[m, h] where m = 16, k = 4, n = 1024, h = 6144 {
  div1 = block grid(m / 1, k / 1) num_warps(1) swap_operands(true) pdl(true) {
    x_t: f16[m/grid, (k/grid n)] = load x
    v1: f32[m/grid, k/grid] = sum x_t over(n)
    v2: f32[m/grid, k/grid] = mul v1, 1/n
    v3: f32[m/grid, k/grid, n] = sub x_t, v2
    v4: f32[m/grid, k/grid, n] = mul v3, v3
    v5: f32[m/grid, k/grid] = sum v4 over(n)
    v6: f32[m/grid, k/grid] = mul v5, 1/n
    v7: f32[m/grid, k/grid] = add v6, 1e-06
    v8: f32[m/grid, k/grid] = sqrt v7
    v9: f32[m/grid, k/grid, n] = div x_t, v8
    v10: f32[m/grid, k/grid] = div 1/n, v8
    v11: f32[m/grid, k/grid] = mul v1, v10
    v12: f32[m/grid, k/grid, n] = sub v9, v11
    store div1: f16[m/grid, k/grid, n] = v12
  }
  matmul1 = block grid(h / 64) loop(n / 64) num_warps(8) num_stages(1) swap_operands(true) descriptors(true) second_load(false) pdl(true) prefetch(4) allow_tf32(true) {
    w_t: f16[(k n/loop), h/grid] = load w
    div1_t: f16[m, k, n/loop] = load div1
    v2: f32[h/grid, m] = matmul w_t, div1_t over(k, n)
    v3: f32[h/grid, m] = accumulate v2
    store matmul1: f16[m, h/grid] = v3
  }
  return matmul1
}
