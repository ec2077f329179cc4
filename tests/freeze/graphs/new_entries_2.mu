// plan: {"symbolic": ["h"], "dense": ["qkv", "cos", "sin"]}
mirage 1

mugraph new_entries(
    qkv: f16[1, (m k n)],
    cos: f16[h, 1, 1, d],
    sin: f16[h, 1, 1, d]
) -> f16[h, 1, k, p] where m = 6, k = 8, n = 128, h = 2, d = 64 {
  qkv_h: f16[h, k, n] = slice qkv dim(m) start(4) stop(6) to(h)
  qkv_h_d: f16[h, k, d] = slice qkv_h dim(n) start(0) stop(64) to(d)
  qkv_h_: f16[h, k, n] = slice qkv dim(m) start(4) stop(6) to(h)
  qkv_h__d: f16[h, k, d] = slice qkv_h_ dim(n) start(64) stop(128) to(d)
  sub1, add1 = block grid(k / 4, d / 32) num_warps(8) prefetch(4) {
    cos_t: f16[h, 1, 1, d/grid] = load cos
    qkv_h_d_t: f16[h, k/grid, d/grid] = load qkv_h_d
    sin_t: f16[h, 1, 1, d/grid] = load sin
    qkv_h__d_t: f16[h, k/grid, d/grid] = load qkv_h__d
    v4: f32[h, d/grid, k/grid] = mul cos_t, qkv_h_d_t
    v7: f32[h, d/grid, k/grid] = mul sin_t, qkv_h_d_t
    v5: f32[h, d/grid, k/grid] = mul sin_t, qkv_h__d_t
    v6: f32[h, d/grid, k/grid] = sub v4, v5
    v8: f32[h, d/grid, k/grid] = mul cos_t, qkv_h__d_t
    v9: f32[h, d/grid, k/grid] = add v7, v8
    store sub1: f16[h, k/grid, d/grid] = v6
    store add1: f16[h, k/grid, d/grid] = v9
  }
  concat1: f16[h, k, p] = concat sub1, add1 dims(d, d) to(p)
  return concat1
}
