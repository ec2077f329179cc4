mirage 1

mugraph latent_attention(
    q: f16[m, k],
    c: f16[n, h],
    wk: f16[h, k],
    wv: f16[h, d]
) -> f16[m, d] where m = 16, k = 128, n = 4093, h = 512, d = 128 {
  matmul2 = block grid(n / 64) loop(k / 32) descriptors(true) {
    c_t: f16[n/grid, h] = load c
    q_t: f16[m, k/loop] = load q
    wk_t: f16[h, k/loop] = load wk
    v3: f32[m, h] = matmul q_t, wk_t over(k)
    v4: f32[m, h] = accumulate v3
    v4_f16: f16[m, h] = cast v4 dtype(f16)
    v5: f32[m, n/grid] = matmul v4_f16, c_t over(h)
    store matmul2: f16[m, n/grid] = v5
  }
  div1 = block grid(m / 1) num_warps(2) num_stages(1) swap_operands(true) descriptors(true) second_load(false) pdl(true) {
    matmul2_t: f16[m/grid, n] = load matmul2
    top: f32[m/grid] = rowshift matmul2_t over(n)
    moved: f32[m/grid, n] = sub matmul2_t, top
    v1: f32[m/grid, n] = exp moved
    v2: f32[m/grid] = sum v1 over(n)
    v3: f32[m/grid, n] = div v1, v2
    store div1: f16[m/grid, n] = v3
  }
  matmul3: f16[n, d] = matmul c, wv over(h)
  matmul4: f16[m, d] = matmul div1, matmul3 over(n)
  return matmul4
}
