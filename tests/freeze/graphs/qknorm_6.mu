// plan: {"symbolic": ["m"]}
mirage 1

mugraph qknorm(
    q: f16[m, n, h],
    k: f16[m, d, h],
    v: f16[m, d, p]
) -> f16[m, n, p] where m = 32, n = 256, h = 64, d = 4096, p = 64 {
  div1 = block grid(m / 1, n / 32) num_warps(1) second_load(false) prefetch(4) allow_tf32(true) {
    q_t: f16[m/grid, n/grid, h] = load q
    v1: f32[m/grid, n/grid, h] = mul q_t, q_t
    v2: f32[m/grid, n/grid] = sum v1 over(h)
    v3: f32[m/grid, n/grid] = mul v2, 1/h
    v4: f32[m/grid, n/grid] = add v3, 1e-06
    v5: f32[m/grid, n/grid] = sqrt v4
    v6: f32[m/grid, n/grid, h] = div q_t, v5
    store div1: f16[m/grid, n/grid, h] = v6
  }
  div2 = block grid(m / 1, d / 512) loop(d / 128) num_warps(8) num_stages(2) swap_operands(true) pdl(true) allow_tf32(true) {
    k_t: f16[m/grid, d/grid/loop, h] = load k
    v1: f32[m/grid, d/grid/loop, h] = mul k_t, k_t
    v2: f32[m/grid, d/grid/loop] = sum v1 over(h)
    v3: f32[m/grid, d/grid/loop] = mul v2, 1/h
    v4: f32[m/grid, d/grid/loop] = add v3, 1e-06
    v5: f32[m/grid, d/grid/loop] = sqrt v4
    v6: f32[m/grid, d/grid/loop, h] = div k_t, v5
    v7: f32[m/grid, d/grid, h] = accumulate v6 concat
    store div2: f16[m/grid, d/grid, h] = v7
  }
  v8_parts, v9_parts, largest_parts = block grid(m / 1, n / 64, d / 2048) loop(d / 128) num_warps(1) num_stages(2) descriptors(true) second_load(false) pdl(true) prefetch(4) {
    div1_t: f16[m/grid, n/grid, h] = load div1
    v1: f32[m/grid, n/grid, h] = mul div1_t, 0.125
    v1_f16: f16[m/grid, n/grid, h] = cast v1 dtype(f16)
    v_t: f16[m/grid, d/grid/loop, p] = load v
    div2_t: f16[m/grid, d/grid/loop, h] = load div2
    v4: f32[m/grid, d/grid/loop, n/grid] = matmul div2_t, v1_f16 over(h)
    top: f32[m/grid, n/grid] = rowshift v4 over(d)
    largest: f32[m/grid, n/grid] = running max top
    moved: f32[m/grid, d/grid/loop, n/grid] = sub v4, largest
    v5: f32[m/grid, d/grid/loop, n/grid] = exp moved
    largest_last: f32[m/grid, n/grid] = accumulate largest max
    v7: f32[m/grid, n/grid] = sum v5 over(d)
    v5_f16: f16[m/grid, d/grid/loop, n/grid] = cast v5 dtype(f16)
    v6: f32[m/grid, p, n/grid] = matmul v_t, v5_f16 over(d)
    v8: f32[m/grid, p, n/grid] = accumulate v6 rescale largest
    v9: f32[m/grid, n/grid] = accumulate v7 rescale largest
    store v8_parts: f32[d#/grid, m/grid, p, n/grid] = v8
    store v9_parts: f32[d#/grid, m/grid, n/grid] = v9
    store largest_parts: f32[d#/grid, m/grid, n/grid] = largest_last
  }
  matmul2 = block grid(m / 1, n / 32) num_stages(2) swap_operands(true) pdl(true) prefetch(4) allow_tf32(true) {
    largest_parts2: f32[d#, m/grid, n/grid] = load largest_parts
    largest_top: f32[m/grid, n/grid] = rowshift largest_parts2 over(d#)
    largest_moved: f32[d#, m/grid, n/grid] = sub largest_parts2, largest_top
    largest_weight: f32[d#, m/grid, n/grid] = exp largest_moved
    v8_parts2: f32[d#, m/grid, p, n/grid] = load v8_parts
    v8_weighted: f32[d#, m/grid, p, n/grid] = mul v8_parts2, largest_weight
    v8: f32[m/grid, p, n/grid] = sum v8_weighted over(d#)
    v9_parts2: f32[d#, m/grid, n/grid] = load v9_parts
    v9_weighted: f32[d#, m/grid, n/grid] = mul v9_parts2, largest_weight
    v9: f32[m/grid, n/grid] = sum v9_weighted over(d#)
    v10: f32[m/grid, p, n/grid] = div v8, v9
    store matmul2: f16[m/grid, n/grid, p] = v10
  }
  return matmul2
}
