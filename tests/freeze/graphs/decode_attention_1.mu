mirage 1

mugraph decode_attention(
    q: f16[m, 1, n],
    k: f16[m, h, n],
    v: f16[m, h, d]
) -> f16[m, 1, d] where m = 64, n = 128, h = 4096, d = 128 {
  matmul2 = block grid(m / 1) loop(h / 128) num_stages(4) descriptors(true) {
    q_t: f16[m/grid, 1, n] = load q
    v1: f32[m/grid, n] = mul q_t, 0.08838834764831843
    v1_f16: f16[m/grid, n] = cast v1 dtype(f16)
    v_t: f16[m/grid, h/loop, d] = load v
    k_t: f16[m/grid, h/loop, n] = load k
    v4: f32[m/grid, h/loop] = matmul k_t, v1_f16 over(n)
    top: f32[m/grid] = rowshift v4 over(h)
    largest: f32[m/grid] = running max top
    moved: f32[m/grid, h/loop] = sub v4, largest
    v5: f32[m/grid, h/loop] = exp moved
    v5_f16: f16[m/grid, h/loop] = cast v5 dtype(f16)
    v6: f32[m/grid, d] = matmul v_t, v5_f16 over(h)
    v7: f32[m/grid, d] = accumulate v6 rescale largest
    v8: f32[m/grid, h/loop] = accumulate v5 rescale largest
    v9: f32[m/grid] = sum v8 over(h)
    v10: f32[m/grid, d] = div v7, v9
    store matmul2: f16[m/grid, 1, d] = v10
  }
  return matmul2
}
