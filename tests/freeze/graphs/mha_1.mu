mirage 1

mugraph mha(
    q: f16[m, n, h],
    k: f16[m, d, h],
    v: f16[m, d, p]
) -> f16[m, n, p] where m = 32, n = 16, h = 64, d = 4096, p = 64 {
  v7_parts, v9_parts, largest_parts = block grid(m / 1, d / 1024) loop(d / 128) {
    q_t: f16[m/grid, n, h] = load q
    v1: f32[m/grid, n, h] = mul q_t, 0.125
    v1_f16: f16[m/grid, n, h] = cast v1 dtype(f16)
    v_t: f16[m/grid, d/grid/loop, p] = load v
    k_t: f16[m/grid, d/grid/loop, h] = load k
    v4: f32[m/grid, n, d/grid/loop] = matmul v1_f16, k_t over(h)
    top: f32[m/grid, n] = rowshift v4 over(d)
    largest: f32[m/grid, n] = running max top
    moved: f32[m/grid, n, d/grid/loop] = sub v4, largest
    v5: f32[m/grid, n, d/grid/loop] = exp moved
    v5_f16: f16[m/grid, n, d/grid/loop] = cast v5 dtype(f16)
    v6: f32[m/grid, n, p] = matmul v5_f16, v_t over(d)
    v7: f32[m/grid, n, p] = accumulate v6 rescale largest
    v8: f32[m/grid, n, d/grid/loop] = accumulate v5 rescale largest
    v9: f32[m/grid, n] = sum v8 over(d)
    largest_last: f32[m/grid, n] = accumulate largest max
    store v7_parts: f32[d#/grid, m/grid, n, p] = v7
    store v9_parts: f32[d#/grid, m/grid, n] = v9
    store largest_parts: f32[d#/grid, m/grid, n] = largest_last
  }
  matmul2 = block grid(m / 1) num_warps(8) num_stages(2) pdl(true) {
    largest_parts2: f32[d#, m/grid, n] = load largest_parts
    largest_top: f32[m/grid, n] = rowshift largest_parts2 over(d#)
    largest_moved: f32[d#, m/grid, n] = sub largest_parts2, largest_top
    largest_weight: f32[d#, m/grid, n] = exp largest_moved
    v7_parts2: f32[d#, m/grid, n, p] = load v7_parts
    v7_weighted: f32[d#, m/grid, n, p] = mul v7_parts2, largest_weight
    v7: f32[m/grid, n, p] = sum v7_weighted over(d#)
    v9_parts2: f32[d#, m/grid, n] = load v9_parts
    v9_weighted: f32[d#, m/grid, n] = mul v9_parts2, largest_weight
    v9: f32[m/grid, n] = sum v9_weighted over(d#)
    v10: f32[m/grid, n, p] = div v7, v9
    store matmul2: f16[m/grid, n, p] = v10
  }
  return matmul2
}
