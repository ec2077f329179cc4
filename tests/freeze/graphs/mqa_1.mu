mirage 1

mugraph mqa(
    q: f16[1, m, n],
    k: f16[h, n],
    v: f16[h, d]
) -> f16[1, m, d] where m = 1024, n = 64, h = 4096, d = 64 {
  u6, u8, maxima = block grid(m / 64, h / 256) loop(h / 128) {
    q_t: f16[1, m/grid, n] = load q
    k_t: f16[h/grid/loop, n] = load k
    v_t: f16[h/grid/loop, d] = load v
    v3: f32[m/grid, h/grid/loop] = matmul q_t, k_t over(n)
    top: f32[m/grid] = rowshift v3 over(h)
    largest: f32[m/grid] = running max top
    moved: f32[m/grid, h/grid/loop] = sub v3, largest
    v4: f32[m/grid, h/grid/loop] = exp moved
    v4_f16: f16[m/grid, h/grid/loop] = cast v4 dtype(f16)
    v5: f32[m/grid, d] = matmul v4_f16, v_t over(h)
    v6: f32[m/grid, h/grid/loop] = accumulate v4 rescale largest
    v7: f32[m/grid] = sum v6 over(h)
    v8: f32[m/grid, d] = accumulate v5 rescale largest
    store u6: f32[h#/grid, m/grid] = v7
    store u8: f32[h#/grid, m/grid, d] = v8
    last: f32[m/grid] = accumulate largest max
    store maxima: f32[m/grid, h#/grid] = last
  }
  matmul2 = block grid(m / 16, d / 32) num_stages(2) pdl(true) {
    maxima2: f32[m/grid, h#] = load maxima
    u8_t: f32[h#, m/grid, d/grid] = load u8
    u6_t: f32[h#, m/grid] = load u6
    top2: f32[m/grid] = rowshift maxima2 over(h#)
    moved2: f32[m/grid, h#] = sub maxima2, top2
    weight: f32[m/grid, h#] = exp moved2
    u8_t_weighted: f32[h#, m/grid, d/grid] = mul u8_t, weight
    u6_t_weighted: f32[h#, m/grid] = mul u6_t, weight
    v2: f32[m/grid] = sum u6_t_weighted over(h#)
    v3: f32[h#, m/grid, d/grid] = div u8_t_weighted, v2
    v4: f32[m/grid, d/grid] = sum v3 over(h#)
    store matmul2: f16[1, m/grid, d/grid] = v4
  }
  return matmul2
}
