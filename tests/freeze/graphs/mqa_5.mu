mirage 1

mugraph mqa(
    q: f16[1, m, n],
    k: f16[h, n],
    v: f16[h, d]
) -> f16[1, m, d] where m = 1017, n = 64, h = 4093, d = 61 {
  v6_parts, v8_parts, largest_parts = block grid(m / 64, h / 256) loop(h / 64) num_warps(8) swap_operands(true) second_load(false) pdl(true) prefetch(4) {
    q_t: f16[1, m/grid, n] = load q
    v_t: f16[h/grid/loop, d] = load v
    k_t: f16[h/grid/loop, n] = load k
    v3: f32[m/grid, h/grid/loop] = matmul q_t, k_t over(n)
    top: f32[m/grid] = rowshift v3 over(h)
    largest: f32[m/grid] = running max top
    moved: f32[m/grid, h/grid/loop] = sub v3, largest
    v4: f32[m/grid, h/grid/loop] = exp moved
    v4_f16: f16[m/grid, h/grid/loop] = cast v4 dtype(f16)
    v5: f32[m/grid, d] = matmul v4_f16, v_t over(h)
    v6: f32[m/grid, d] = accumulate v5 rescale largest
    v7: f32[m/grid, h/grid/loop] = accumulate v4 rescale largest
    v8: f32[m/grid] = sum v7 over(h)
    largest_last: f32[m/grid] = accumulate largest max
    store v6_parts: f32[h#/grid, m/grid, d] = v6
    store v8_parts: f32[h#/grid, m/grid] = v8
    store largest_parts: f32[h#/grid, m/grid] = largest_last
  }
  matmul2 = block grid(m / 4) num_warps(2) descriptors(true) {
    largest_parts2: f32[h#, m/grid] = load largest_parts
    largest_top: f32[m/grid] = rowshift largest_parts2 over(h#)
    largest_moved: f32[h#, m/grid] = sub largest_parts2, largest_top
    largest_weight: f32[h#, m/grid] = exp largest_moved
    v6_parts2: f32[h#, m/grid, d] = load v6_parts
    v6_weighted: f32[h#, m/grid, d] = mul v6_parts2, largest_weight
    v6: f32[m/grid, d] = sum v6_weighted over(h#)
    v8_parts2: f32[h#, m/grid] = load v8_parts
    v8_weighted: f32[h#, m/grid] = mul v8_parts2, largest_weight
    v8: f32[m/grid] = sum v8_weighted over(h#)
    v9: f32[m/grid, d] = div v6, v8
    store matmul2: f16[1, m/grid, d] = v9
  }
  return matmul2
}
