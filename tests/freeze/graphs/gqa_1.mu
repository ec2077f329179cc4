mirage 1

mugraph gqa(
    q: f16[m, n, h],
    k: f16[m, h, d],
    v: f16[m, d, p]
) -> f16[m, n, p] where m = 2, n = 256, h = 64, d = 4096, p = 64 {
  v7_parts, v8_parts, largest_parts = block grid(m / 1, n / 64, d / 256) loop(d / 128) descriptors(true) {
    q_t: f16[m/grid, n/grid, h] = load q
    v_t: f16[m/grid, d/grid/loop, p] = load v
    k_t: f16[m/grid, h, d/grid/loop] = load k
    v3: f32[m/grid, n/grid, d/grid/loop] = matmul q_t, k_t over(h)
    top: f32[m/grid, n/grid] = rowshift v3 over(d)
    largest: f32[m/grid, n/grid] = running max top
    moved: f32[m/grid, n/grid, d/grid/loop] = sub v3, largest
    v4: f32[m/grid, n/grid, d/grid/loop] = exp moved
    largest_last: f32[m/grid, n/grid] = accumulate largest max
    v6: f32[m/grid, n/grid] = sum v4 over(d)
    v4_f16: f16[m/grid, n/grid, d/grid/loop] = cast v4 dtype(f16)
    v5: f32[m/grid, n/grid, p] = matmul v4_f16, v_t over(d)
    v7: f32[m/grid, n/grid, p] = accumulate v5 rescale largest
    v8: f32[m/grid, n/grid] = accumulate v6 rescale largest
    store v7_parts: f32[d#/grid, m/grid, n/grid, p] = v7
    store v8_parts: f32[d#/grid, m/grid, n/grid] = v8
    store largest_parts: f32[d#/grid, m/grid, n/grid] = largest_last
  }
  matmul2 = block grid(m / 1, n / 4) num_stages(2) pdl(true) {
    largest_parts2: f32[d#, m/grid, n/grid] = load largest_parts
    v7_parts2: f32[d#, m/grid, n/grid, p] = load v7_parts
    v8_parts2: f32[d#, m/grid, n/grid] = load v8_parts
    largest_top: f32[m/grid, n/grid] = rowshift largest_parts2 over(d#)
    largest_moved: f32[d#, m/grid, n/grid] = sub largest_parts2, largest_top
    largest_weight: f32[d#, m/grid, n/grid] = exp largest_moved
    v7_weighted: f32[d#, m/grid, n/grid, p] = mul v7_parts2, largest_weight
    v7: f32[m/grid, n/grid, p] = sum v7_weighted over(d#)
    v8_weighted: f32[d#, m/grid, n/grid] = mul v8_parts2, largest_weight
    v8: f32[m/grid, n/grid] = sum v8_weighted over(d#)
    v9: f32[m/grid, n/grid, p] = div v7, v8
    store matmul2: f16[m/grid, n/grid, p] = v9
  }
  return matmul2
}
