// plan: {"symbolic": ["h"]}
mirage 1

mugraph new_entries(
    qkv: f16[m, (k n h)],
    cos: f16[d, 1, 1, p],
    sin: f16[d, 1, 1, p]
) -> f16[d, m, n, q] where m = 16, k = 6, n = 8, h = 128, d = 2, p = 64 {
  slice1: f16[m, d, n, h] = slice qkv dim(k) start(4) stop(6) to(d)
  slice2: f16[m, d, n, p] = slice slice1 dim(h) start(0) stop(64) to(p)
  slice3: f16[m, d, n, p] = slice slice1 dim(h) start(64) stop(128) to(p)
  sub1, add1 = block grid(m / 1, n / 4, d / 1) num_warps(8) num_stages(1) descriptors(true) prefetch(4) allow_tf32(true) {
    cos_t: f16[d/grid, 1, 1, p] = load cos
    sin_t: f16[d/grid, 1, 1, p] = load sin
    slice2_t: f16[m/grid, d/grid, n/grid, p] = load slice2
    slice3_t: f16[m/grid, d/grid, n/grid, p] = load slice3
    v4: f32[d/grid, p, m/grid, n/grid] = mul cos_t, slice2_t
    v8: f32[d/grid, p, m/grid, n/grid] = mul sin_t, slice2_t
    v5: f32[d/grid, p, m/grid, n/grid] = mul sin_t, slice3_t
    v6: f32[d/grid, p, m/grid, n/grid] = sub v4, v5
    v7: f32[d/grid, p, m/grid, n/grid] = mul cos_t, slice3_t
    v9: f32[d/grid, p, m/grid, n/grid] = add v7, v8
    store sub1: f16[m/grid, d/grid, n/grid, p] = v6
    store add1: f16[m/grid, d/grid, n/grid, p] = v9
  }
  concat1: f16[m, d, n, q] = concat sub1, add1 dims(p, p) to(q)
  return concat1
}
