mirage 1

mugraph attention(
    qkv: f16[1, (m k n)],
    cos: f16[1, 1, h],
    sin: f16[1, 1, h],
    keys: f16[1, d, p, q],
    values: f16[1, d, p, s]
) -> f16[1, (d k s)] where m = 12, k = 4, n = 128, h = 64, d = 8, p = 4096, q = 128, s = 128 {
  qkv_d: f16[d, k, n] = slice qkv dim(m) start(0) stop(8) to(d)
  qkv_d_h: f16[d, k, h] = slice qkv_d dim(n) start(0) stop(64) to(h)
  qkv_d__h: f16[d, k, h] = slice qkv_d dim(n) start(64) stop(128) to(h)
  keys_h: f16[d, p, h] = slice keys dim(q) start(0) stop(64) to(h)
  keys_h_: f16[d, p, h] = slice keys dim(q) start(64) stop(128) to(h)
  u88, u90, maxima = block grid(d / 1, p / 256) loop(p / 128) swap_operands(true) descriptors(true) pdl(true) prefetch(4) {
    qkv_d_h_t: f16[d/grid, k, h] = load qkv_d_h
    sin_t: f16[1, 1, h] = load sin
    qkv_d__h_t: f16[d/grid, k, h] = load qkv_d__h
    cos_t: f16[1, 1, h] = load cos
    v4: f32[h] = mul sin_t, 0.08838834764831843
    v5: f32[d/grid, k, h] = mul qkv_d_h_t, v4
    v6: f32[h] = mul cos_t, 0.08838834764831843
    v7: f32[d/grid, k, h] = mul qkv_d__h_t, v6
    v8: f32[d/grid, k, h] = add v5, v7
    v8_f16: f16[d/grid, k, h] = cast v8 dtype(f16)
    v9: f32[h, d/grid, k] = mul cos_t, qkv_d_h_t
    v10: f32[h, d/grid, k] = mul sin_t, qkv_d__h_t
    v11: f32[h, d/grid, k] = sub v9, v10
    v12: f32[h, d/grid, k] = mul v11, 0.08838834764831843
    v12_f16: f16[h, d/grid, k] = cast v12 dtype(f16)
    keys_h__t: f16[d/grid, p/grid/loop, h] = load keys_h_
    keys_h_t: f16[d/grid, p/grid/loop, h] = load keys_h
    values_t: f16[1, d/grid, p/grid/loop, s] = load values
    v16: f32[d/grid, k, p/grid/loop] = matmul v8_f16, keys_h__t over(h)
    v17: f32[d/grid, k, p/grid/loop] = matmul v12_f16, keys_h_t over(h)
    v18: f32[d/grid, k, p/grid/loop] = add v16, v17
    top: f32[d/grid, k] = rowshift v18 over(p)
    largest: f32[d/grid, k] = running max top
    moved: f32[d/grid, k, p/grid/loop] = sub v18, largest
    v19: f32[d/grid, k, p/grid/loop] = exp moved
    v19_f16: f16[d/grid, k, p/grid/loop] = cast v19 dtype(f16)
    v20: f32[d/grid, k, s] = matmul v19_f16, values_t over(p)
    v21: f32[d/grid, k, p/grid/loop] = accumulate v19 rescale largest
    v22: f32[d/grid, k] = sum v21 over(p)
    v23: f32[d/grid, k, s] = accumulate v20 rescale largest
    store u88: f32[p#/grid, d/grid, k] = v22
    store u90: f32[p#/grid, d/grid, k, s] = v23
    last: f32[d/grid, k] = accumulate largest max
    store maxima: f32[d/grid, k, p#/grid] = last
  }
  matmul2 = block grid(k / 1, d / 1, s / 32) num_warps(8) num_stages(2) allow_tf32(true) {
    maxima2: f32[d/grid, k/grid, p#] = load maxima
    u90_t: f32[p#, d/grid, k/grid, s/grid] = load u90
    u88_t: f32[p#, d/grid, k/grid] = load u88
    top2: f32[d/grid, k/grid] = rowshift maxima2 over(p#)
    moved2: f32[d/grid, k/grid, p#] = sub maxima2, top2
    weight: f32[d/grid, k/grid, p#] = exp moved2
    u90_t_weighted: f32[p#, d/grid, k/grid, s/grid] = mul u90_t, weight
    u88_t_weighted: f32[p#, d/grid, k/grid] = mul u88_t, weight
    v2: f32[d/grid, k/grid, s/grid] = sum u90_t_weighted over(p#)
    v3: f32[d/grid, k/grid] = sum u88_t_weighted over(p#)
    v4: f32[d/grid, k/grid, s/grid] = div v2, v3
    store matmul2: f16[1, (d/grid k/grid s/grid)] = v4
  }
  return matmul2
}
