mirage 1

mugraph moe(
    x: f16[m, k, n],
    a: f16[m, n, h],
    b: f16[m, h, d]
) -> f16[m, k, d] where m = 8, k = 8, n = 4096, h = 4096, d = 4096 {
  silu1 = block grid(m / 1, h / 256) loop(n / 32) num_warps(1) num_stages(1) swap_operands(true) descriptors(true) {
    x_t: f16[m/grid, k, n/loop] = load x
    a_t: f16[m/grid, n/loop, h/grid] = load a
    v2: f32[m/grid, k, h/grid] = matmul x_t, a_t over(n)
    v3: f32[m/grid, k, h/grid] = accumulate v2
    v4: f32[m/grid, k, h/grid] = silu v3
    store silu1: f16[m/grid, k, h/grid] = v4
  }
  v3_parts = block grid(m / 1, d / 256, h / 2048) loop(h / 16) num_stages(2) descriptors(true) second_load(false) prefetch(4) {
    b_t: f16[m/grid, h/grid/loop, d/grid] = load b
    silu1_t: f16[m/grid, k, h/grid/loop] = load silu1
    v2: f32[m/grid, d/grid, k] = matmul b_t, silu1_t over(h)
    v3: f32[m/grid, d/grid, k] = accumulate v2
    store v3_parts: f32[h#/grid, m/grid, d/grid, k] = v3
  }
  matmul2 = block grid(m / 1, d / 128) num_stages(1) swap_operands(true) descriptors(true) pdl(true) {
    v3_parts2: f32[h#, m/grid, d/grid, k] = load v3_parts
    v3: f32[m/grid, d/grid, k] = sum v3_parts2 over(h#)
    store matmul2: f16[m/grid, k, d/grid] = v3
  }
  return matmul2
}
