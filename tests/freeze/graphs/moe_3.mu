// plan: {"symbolic": ["h"]}
mirage 1

mugraph moe(
    x: f16[m, k, n],
    a: f16[m, n, h],
    b: f16[m, h, d]
) -> f16[m, k, d] where m = 8, k = 8, n = 4096, h = 4096, d = 4096 {
  silu1 = block grid(m / 1, h / 256) loop(n / 32) num_warps(8) num_stages(1) descriptors(true) prefetch(4) allow_tf32(true) {
    x_t: f16[m/grid, k, n/loop] = load x
    a_t: f16[m/grid, n/loop, h/grid] = load a
    v2: f32[m/grid, k, h/grid] = matmul x_t, a_t over(n)
    v3: f32[m/grid, k, h/grid] = accumulate v2
    v4: f32[m/grid, k, h/grid] = silu v3
    store silu1: f16[m/grid, k, h/grid] = v4
  }
  matmul2 = block grid(d / 32) loop(h / 32) num_warps(8) num_stages(2) prefetch(4) {
    b_t: f16[m, h/loop, d/grid] = load b
    silu1_t: f16[m, k, h/loop] = load silu1
    v2: f32[m, k, d/grid] = matmul silu1_t, b_t over(h)
    v3: f32[m, k, d/grid] = accumulate v2
    store matmul2: f16[m, k, d/grid] = v3
  }
  return matmul2
}
