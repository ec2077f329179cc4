// plan: {"symbolic": ["m"], "dense": ["q", "k", "v"]}
mirage 1

mugraph gqa(
    q: f16[m, n, h],
    k: f16[m, h, d],
    v: f16[m, d, p]
) -> f16[m, n, p] where m = 2, n = 256, h = 64, d = 4096, p = 64 {
  u8, u6, maxima = block grid(m / 1, n / 64, d / 128) num_warps(8) num_stages(2) pdl(true) {
    q_t: f16[m/grid, n/grid, h] = load q
    k_t: f16[m/grid, h, d/grid] = load k
    v3: f32[m/grid, n/grid, d/grid] = matmul q_t, k_t over(h)
    top: f32[m/grid, n/grid] = rowshift v3 over(d)
    v_t: f16[m/grid, d/grid, p] = load v
    moved: f32[m/grid, n/grid, d/grid] = sub v3, top
    v4: f32[m/grid, n/grid, d/grid] = exp moved
    v5: f32[m/grid, n/grid] = sum v4 over(d)
    v4_f16: f16[m/grid, n/grid, d/grid] = cast v4 dtype(f16)
    v6: f32[m/grid, n/grid, p] = matmul v4_f16, v_t over(d)
    store u8: f32[d#/grid, m/grid, n/grid, p] = v6
    store u6: f32[d#/grid, m/grid, n/grid] = v5
    store maxima: f32[m/grid, n/grid, d#/grid] = top
  }
  matmul2 = block grid(m / 1, n / 4, p / 32) num_stages(1) pdl(true) {
    maxima2: f32[m/grid, n/grid, d#] = load maxima
    top2: f32[m/grid, n/grid] = rowshift maxima2 over(d#)
    moved2: f32[m/grid, n/grid, d#] = sub maxima2, top2
    weight: f32[m/grid, n/grid, d#] = exp moved2
    u8_t: f32[d#, m/grid, n/grid, p/grid] = load u8
    u8_t_weighted: f32[d#, m/grid, n/grid, p/grid] = mul u8_t, weight
    u6_t: f32[d#, m/grid, n/grid] = load u6
    u6_t_weighted: f32[d#, m/grid, n/grid] = mul u6_t, weight
    v2: f32[m/grid, n/grid, p/grid] = sum u8_t_weighted over(d#)
    v3: f32[m/grid, n/grid] = sum u6_t_weighted over(d#)
    v4: f32[m/grid, n/grid, p/grid] = div v2, v3
    store matmul2: f16[m/grid, n/grid, p/grid] = v4
  }
  return matmul2
}
