mirage 1

mugraph decode_attention(
    q: f16[m, 1, n],
    k: f16[m, h, n],
    v: f16[m, h, d]
) -> f16[m, 1, d] where m = 63, n = 121, h = 4093, d = 128 {
  v7_parts, v9_parts, largest_parts = block grid(m / 1, h / 1024) loop(h / 64) num_warps(8) second_load(false) prefetch(4) {
    q_t: f16[m/grid, 1, n] = load q
    v1: f32[m/grid, n] = mul q_t, 0.08838834764831843
    v1_f16: f16[m/grid, n] = cast v1 dtype(f16)
    v_t: f16[m/grid, h/grid/loop, d] = load v
    k_t: f16[m/grid, h/grid/loop, n] = load k
    v4: f32[m/grid, h/grid/loop] = matmul k_t, v1_f16 over(n)
    top: f32[m/grid] = rowshift v4 over(h)
    largest: f32[m/grid] = running max top
    moved: f32[m/grid, h/grid/loop] = sub v4, largest
    v5: f32[m/grid, h/grid/loop] = exp moved
    v5_f16: f16[m/grid, h/grid/loop] = cast v5 dtype(f16)
    v6: f32[m/grid, d] = matmul v_t, v5_f16 over(h)
    v7: f32[m/grid, d] = accumulate v6 rescale largest
    v8: f32[m/grid, h/grid/loop] = accumulate v5 rescale largest
    v9: f32[m/grid] = sum v8 over(h)
    largest_last: f32[m/grid] = accumulate largest max
    store v7_parts: f32[h#/grid, m/grid, d] = v7
    store v9_parts: f32[h#/grid, m/grid] = v9
    store largest_parts: f32[h#/grid, m/grid] = largest_last
  }
  matmul2 = block grid(m / 1) num_warps(2) num_stages(2) descriptors(true) prefetch(4) {
    largest_parts2: f32[h#, m/grid] = load largest_parts
    largest_top: f32[m/grid] = rowshift largest_parts2 over(h#)
    largest_moved: f32[h#, m/grid] = sub largest_parts2, largest_top
    largest_weight: f32[h#, m/grid] = exp largest_moved
    v7_parts2: f32[h#, m/grid, d] = load v7_parts
    v7_weighted: f32[h#, m/grid, d] = mul v7_parts2, largest_weight
    v7: f32[m/grid, d] = sum v7_weighted over(h#)
    v9_parts2: f32[h#, m/grid] = load v9_parts
    v9_weighted: f32[h#, m/grid] = mul v9_parts2, largest_weight
    v9: f32[m/grid] = sum v9_weighted over(h#)
    v10: f32[m/grid, d] = div v7, v9
    store matmul2: f16[m/grid, 1, d] = v10
  }
  return matmul2
}
