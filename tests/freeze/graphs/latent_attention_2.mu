mirage 1

mugraph latent_attention(
    q: f16[m, k],
    c: f16[n, h],
    wk: f16[h, k],
    wv: f16[h, d]
) -> f16[m, d] where m = 16, k = 121, n = 4096, h = 505, d = 127 {
  u13, u17, maxima = block grid(n / 64) loop(h / 64) num_stages(2) allow_tf32(true) {
    q_t: f16[m, k] = load q
    c_t: f16[n/grid, h/loop] = load c
    wk_t: f16[h/loop, k] = load wk
    wv_t: f16[h/loop, d] = load wv
    v4: f32[m, h/loop] = matmul q_t, wk_t over(k)
    v4_f16: f16[m, h/loop] = cast v4 dtype(f16)
    v5: f32[m, n/grid] = matmul v4_f16, c_t over(h)
    v6: f32[n/grid, d] = matmul c_t, wv_t over(h)
    v7: f32[m, n/grid] = accumulate v5
    top: f32[m] = rowshift v7 over(n)
    moved: f32[m, n/grid] = sub v7, top
    v8: f32[m, n/grid] = exp moved
    v8_f16: f16[m, n/grid] = cast v8 dtype(f16)
    v9: f32[m] = sum v8 over(n)
    v10: f32[n/grid, d] = accumulate v6
    v10_f16: f16[n/grid, d] = cast v10 dtype(f16)
    v11: f32[m, d] = matmul v8_f16, v10_f16 over(n)
    store u13: f32[n#/grid, m] = v9
    store u17: f32[n#/grid, m, d] = v11
    store maxima: f32[m, n#/grid] = top
  }
  matmul4 = block grid(m / 1, d / 16) num_warps(1) num_stages(1) swap_operands(true) descriptors(true) second_load(false) {
    maxima2: f32[m/grid, n#] = load maxima
    top2: f32[m/grid] = rowshift maxima2 over(n#)
    moved2: f32[m/grid, n#] = sub maxima2, top2
    weight: f32[m/grid, n#] = exp moved2
    u17_t: f32[n#, m/grid, d/grid] = load u17
    u17_t_weighted: f32[n#, m/grid, d/grid] = mul u17_t, weight
    u13_t: f32[n#, m/grid] = load u13
    u13_t_weighted: f32[n#, m/grid] = mul u13_t, weight
    v2: f32[m/grid, d/grid] = sum u17_t_weighted over(n#)
    v3: f32[m/grid] = sum u13_t_weighted over(n#)
    v4: f32[m/grid, d/grid] = div v2, v3
    store matmul4: f16[m/grid, d/grid] = v4
  }
  return matmul4
}
