// plan: {"symbolic": ["d"], "dense": ["q", "k", "v"]}
mirage 1

mugraph gqa(
    q: f16[m, n, h],
    k: f16[m, h, d],
    v: f16[m, d, p]
) -> f16[m, n, p] where m = 32, n = 256, h = 64, d = 4096, p = 64 {
  sum1, u7 = block grid(m / 1, n / 64) loop(d / 64) num_warps(8) swap_operands(true) second_load(false) pdl(true) prefetch(4) {
    q_t: f16[m/grid, n/grid, h] = load q
    k_t: f16[m/grid, h, d/loop] = load k
    v_t: f16[m/grid, d/loop, p] = load v
    v3: f32[m/grid, n/grid, d/loop] = matmul q_t, k_t over(h)
    top: f32[m/grid, n/grid] = rowshift v3 over(d)
    largest: f32[m/grid, n/grid] = running max top
    moved: f32[m/grid, n/grid, d/loop] = sub v3, largest
    v4: f32[m/grid, n/grid, d/loop] = exp moved
    v4_f16: f16[m/grid, n/grid, d/loop] = cast v4 dtype(f16)
    v5: f32[m/grid, n/grid, p] = matmul v4_f16, v_t over(d)
    v6: f32[m/grid, n/grid, d/loop] = accumulate v4 rescale largest
    v7: f32[m/grid, n/grid] = sum v6 over(d)
    v8: f32[m/grid, n/grid, p] = accumulate v5 rescale largest
    store sum1: f16[m/grid, n/grid] = v7
    store u7: f32[m/grid, n/grid, p] = v8
  }
  matmul2 = block grid(m / 1, n / 64) num_warps(2) num_stages(2) swap_operands(true) descriptors(true) pdl(true) allow_tf32(true) {
    u7_t: f32[m/grid, n/grid, p] = load u7
    sum1_t: f16[m/grid, n/grid] = load sum1
    v2: f32[m/grid, n/grid, p] = div u7_t, sum1_t
    store matmul2: f16[m/grid, n/grid, p] = v2
  }
  return matmul2
}
