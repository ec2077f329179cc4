mirage 1

mugraph attention(
    qkv: f16[m, (k n h)],
    cos: f16[1, 1, d],
    sin: f16[1, 1, d],
    keys: f16[m, p, q, s],
    values: f16[m, p, q, t]
) -> f16[m, (p n t)] where m = 8, k = 12, n = 4, h = 128, d = 64, p = 8, q = 4096, s = 128, t = 128 {
  qkv_d: f16[m, k, n, d] = slice qkv dim(h) start(0) stop(64) to(d)
  qkv_d_p: f16[m, p, n, d] = slice qkv_d dim(k) start(0) stop(8) to(p)
  qkv_d_: f16[m, k, n, d] = slice qkv dim(h) start(64) stop(128) to(d)
  qkv_d__p: f16[m, p, n, d] = slice qkv_d_ dim(k) start(0) stop(8) to(p)
  keys_d: f16[m, p, q, d] = slice keys dim(s) start(0) stop(64) to(d)
  keys_d_: f16[m, p, q, d] = slice keys dim(s) start(64) stop(128) to(d)
  v20_parts, v22_parts, largest_parts = block grid(m / 1, p / 1, q / 2048) loop(q / 64) num_warps(1) num_stages(2) descriptors(true) second_load(false) {
    qkv_d_p_t: f16[m/grid, p/grid, n, d] = load qkv_d_p
    sin_t: f16[1, 1, d] = load sin
    qkv_d__p_t: f16[m/grid, p/grid, n, d] = load qkv_d__p
    cos_t: f16[1, 1, d] = load cos
    v4: f32[d] = mul sin_t, 0.08838834764831843
    v5: f32[m/grid, p/grid, n, d] = mul qkv_d_p_t, v4
    v6: f32[d] = mul cos_t, 0.08838834764831843
    v7: f32[m/grid, p/grid, n, d] = mul qkv_d__p_t, v6
    v8: f32[m/grid, p/grid, n, d] = add v5, v7
    v8_f16: f16[m/grid, p/grid, n, d] = cast v8 dtype(f16)
    v9: f32[m/grid, p/grid, n, d] = mul qkv_d_p_t, v6
    v10: f32[m/grid, p/grid, n, d] = mul qkv_d__p_t, v4
    v11: f32[m/grid, p/grid, n, d] = sub v9, v10
    v11_f16: f16[m/grid, p/grid, n, d] = cast v11 dtype(f16)
    values_t: f16[m/grid, p/grid, q/grid/loop, t] = load values
    keys_d__t: f16[m/grid, p/grid, q/grid/loop, d] = load keys_d_
    keys_d_t: f16[m/grid, p/grid, q/grid/loop, d] = load keys_d
    v15: f32[m/grid, p/grid, n, q/grid/loop] = matmul v8_f16, keys_d__t over(d)
    v16: f32[m/grid, p/grid, n, q/grid/loop] = matmul v11_f16, keys_d_t over(d)
    v17: f32[m/grid, p/grid, n, q/grid/loop] = add v15, v16
    top: f32[m/grid, p/grid, n] = rowshift v17 over(q)
    largest: f32[m/grid, p/grid, n] = running max top
    moved: f32[m/grid, p/grid, n, q/grid/loop] = sub v17, largest
    v18: f32[m/grid, p/grid, n, q/grid/loop] = exp moved
    v18_f16: f16[m/grid, p/grid, n, q/grid/loop] = cast v18 dtype(f16)
    v19: f32[m/grid, p/grid, n, t] = matmul v18_f16, values_t over(q)
    v20: f32[m/grid, p/grid, n, t] = accumulate v19 rescale largest
    v21: f32[m/grid, p/grid, n, q/grid/loop] = accumulate v18 rescale largest
    v22: f32[m/grid, p/grid, n] = sum v21 over(q)
    largest_last: f32[m/grid, p/grid, n] = accumulate largest max
    store v20_parts: f32[q#/grid, m/grid, p/grid, n, t] = v20
    store v22_parts: f32[q#/grid, m/grid, p/grid, n] = v22
    store largest_parts: f32[q#/grid, m/grid, p/grid, n] = largest_last
  }
  matmul2 = block grid(m / 1, p / 1) num_stages(2) swap_operands(true) descriptors(true) allow_tf32(true) {
    largest_parts2: f32[q#, m/grid, p/grid, n] = load largest_parts
    v20_parts2: f32[q#, m/grid, p/grid, n, t] = load v20_parts
    v22_parts2: f32[q#, m/grid, p/grid, n] = load v22_parts
    largest_top: f32[m/grid, p/grid, n] = rowshift largest_parts2 over(q#)
    largest_moved: f32[q#, m/grid, p/grid, n] = sub largest_parts2, largest_top
    largest_weight: f32[q#, m/grid, p/grid, n] = exp largest_moved
    v20_weighted: f32[q#, m/grid, p/grid, n, t] = mul v20_parts2, largest_weight
    v20: f32[m/grid, p/grid, n, t] = sum v20_weighted over(q#)
    v22_weighted: f32[q#, m/grid, p/grid, n] = mul v22_parts2, largest_weight
    v22: f32[m/grid, p/grid, n] = sum v22_weighted over(q#)
    v23: f32[m/grid, p/grid, n, t] = div v20, v22
    store matmul2: f16[m/grid, (p/grid n t)] = v23
  }
  return matmul2
}
