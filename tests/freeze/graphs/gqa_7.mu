mirage 1

mugraph gqa(
    q: f16[m, n, h],
    k: f16[m, h, d],
    v: f16[m, d, p]
) -> f16[m, n, p] where m = 2, n = 256, h = 64, d = 4096, p = 64 {
  u6, u8, maxima = block grid(n / 64, d / 128) loop(d / 32) num_warps(8) swap_operands(true) descriptors(true) second_load(false) prefetch(4) allow_tf32(true) {
    q_t: f16[m, n/grid, h] = load q
    k_t: f16[m, h, d/grid/loop] = load k
    v_t: f16[m, d/grid/loop, p] = load v
    v3: f32[m, n/grid, d/grid/loop] = matmul q_t, k_t over(h)
    top: f32[m, n/grid] = rowshift v3 over(d)
    largest: f32[m, n/grid] = running max top
    moved: f32[m, n/grid, d/grid/loop] = sub v3, largest
    v4: f32[m, n/grid, d/grid/loop] = exp moved
    v4_f16: f16[m, n/grid, d/grid/loop] = cast v4 dtype(f16)
    v5: f32[m, n/grid, p] = matmul v4_f16, v_t over(d)
    v6: f32[m, n/grid, d/grid/loop] = accumulate v4 rescale largest
    v7: f32[m, n/grid] = sum v6 over(d)
    v8: f32[m, n/grid, p] = accumulate v5 rescale largest
    store u6: f32[d#/grid, m, n/grid] = v7
    store u8: f32[d#/grid, m, n/grid, p] = v8
    last: f32[m, n/grid] = accumulate largest max
    store maxima: f32[m, n/grid, d#/grid] = last
  }
  matmul2 = block grid(m / 1, n / 8, p / 32) num_warps(8) swap_operands(true) {
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
