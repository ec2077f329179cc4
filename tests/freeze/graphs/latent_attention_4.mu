// plan: {"wide": true}
mirage 1

mugraph latent_attention(
    q: f16[m, k],
    c: f16[n, h],
    wk: f16[h, k],
    wv: f16[h, d]
) -> f16[m, d] where m = 16, k = 125, n = 4095, h = 512, d = 121 {
  matmul2, matmul3 = block grid(n / 64) loop(h / 64) num_warps(2) swap_operands(true) descriptors(true) {
    q_t: f16[m, k] = load q
    c_t: f16[n/grid, h/loop] = load c
    wk_t: f16[h/loop, k] = load wk
    wv_t: f16[h/loop, d] = load wv
    v4: f32[k, n/grid] = matmul wk_t, c_t over(h)
    v5: f32[n/grid, d] = matmul c_t, wv_t over(h)
    v6: f32[k, n/grid] = accumulate v4
    v6_f16: f16[k, n/grid] = cast v6 dtype(f16)
    v7: f32[m, n/grid] = matmul q_t, v6_f16 over(k)
    v8: f32[n/grid, d] = accumulate v5
    store matmul2: f16[m, n/grid] = v7
    store matmul3: f16[n/grid, d] = v8
  }
  v5_parts, v6_parts, largest_parts = block grid(d / 64, n / 128) loop(n / 64) num_warps(2) swap_operands(true) prefetch(4) {
    matmul3_t: f16[n/grid/loop, d/grid] = load matmul3
    matmul2_t: f16[m, n/grid/loop] = load matmul2
    top: f32[m] = rowshift matmul2_t over(n)
    largest: f32[m] = running max top
    moved: f32[m, n/grid/loop] = sub matmul2_t, largest
    v2: f32[m, n/grid/loop] = exp moved
    v2_f16: f16[m, n/grid/loop] = cast v2 dtype(f16)
    v3: f32[m, d/grid] = matmul v2_f16, matmul3_t over(n)
    v4: f32[m] = sum v2 over(n)
    v5: f32[m, d/grid] = accumulate v3 rescale largest
    v6: f32[m] = accumulate v4 rescale largest
    largest_last: f32[m] = accumulate largest max
    store v5_parts: f32[n#/grid, m, d/grid] = v5
    store v6_parts: f32[n#/grid, d#/grid, m] = v6
    store largest_parts: f32[n#/grid, d#/grid, m] = largest_last
  }
  matmul4 = block grid(d / 2) num_stages(2) descriptors(true) second_load(false) {
    largest_parts2: f32[n#, d#, m] = load largest_parts
    largest_part: f32[n#, m] = max largest_parts2 over(d#)
    largest_top: f32[m] = rowshift largest_part over(n#)
    largest_moved: f32[n#, m] = sub largest_part, largest_top
    largest_weight: f32[n#, m] = exp largest_moved
    v5_parts2: f32[n#, m, d/grid] = load v5_parts
    v5_weighted: f32[n#, m, d/grid] = mul v5_parts2, largest_weight
    v5: f32[m, d/grid] = sum v5_weighted over(n#)
    v6_parts2: f32[n#, d#, m] = load v6_parts
    v6_total: f32[n#, m] = sum v6_parts2 over(d#)
    v6_part: f32[n#, m] = mul v6_total, 1/d#
    v6_weighted: f32[n#, m] = mul v6_part, largest_weight
    v6: f32[m] = sum v6_weighted over(n#)
    v7: f32[m, d/grid] = div v5, v6
    store matmul4: f16[m, d/grid] = v7
  }
  return matmul4
}
