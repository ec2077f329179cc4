// plan: {"symbolic": ["d"]}
mirage 1

mugraph mha(
    q: f16[m, n, h],
    k: f16[m, d, h],
    v: f16[m, d, p]
) -> f16[m, n, p] where m = 32, n = 16, h = 64, d = 4096, p = 64 {
  matmul2 = block grid(m / 1, p / 32) loop(d / 256) num_warps(1) num_stages(1) descriptors(true) pdl(true) {
    q_t: f16[m/grid, n, h] = load q
    v1: f32[m/grid, n, h] = mul q_t, 0.125
    v1_f16: f16[m/grid, n, h] = cast v1 dtype(f16)
    v_t: f16[m/grid, d/loop, p/grid] = load v
    k_t: f16[m/grid, d/loop, h] = load k
    v4: f32[m/grid, n, d/loop] = matmul v1_f16, k_t over(h)
    top: f32[m/grid, n] = rowshift v4 over(d)
    largest: f32[m/grid, n] = running max top
    moved: f32[m/grid, n, d/loop] = sub v4, largest
    v5: f32[m/grid, n, d/loop] = exp moved
    v5_f16: f16[m/grid, n, d/loop] = cast v5 dtype(f16)
    v6: f32[m/grid, n, p/grid] = matmul v5_f16, v_t over(d)
    v7: f32[m/grid, n] = sum v5 over(d)
    v8: f32[m/grid, n, p/grid] = accumulate v6 rescale largest
    v9: f32[m/grid, n] = accumulate v7 rescale largest
    v10: f32[m/grid, n, p/grid] = div v8, v9
    store matmul2: f16[m/grid, n, p/grid] = v10
  }
  return matmul2
}
