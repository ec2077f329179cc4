mirage 1

mugraph lora(
    x: f16[m, k],
    w: f16[k, n],
    a: f16[k, h],
    b: f16[h, n]
) -> f16[m, n] where m = 8, k = 4096, n = 4096, h = 16 {
  v6_parts, v7_parts = block grid(n / 128, k / 1024) loop(k / 64) num_warps(8) descriptors(true) prefetch(4) {
    x_t: f16[m, k/grid/loop] = load x
    w_t: f16[k/grid/loop, n/grid] = load w
    a_t: f16[k/grid/loop, h] = load a
    v4: f32[m, n/grid] = matmul x_t, w_t over(k)
    v5: f32[m, h] = matmul x_t, a_t over(k)
    v6: f32[m, n/grid] = accumulate v4
    v7: f32[m, h] = accumulate v5
    store v6_parts: f32[k#/grid, m, n/grid] = v6
    store v7_parts: f32[k#/grid, n#/grid, m, h] = v7
  }
  add1 = block grid(n / 64) num_warps(2) swap_operands(true) pdl(true) {
    v6_parts2: f32[k#, m, n/grid] = load v6_parts
    v6: f32[m, n/grid] = sum v6_parts2 over(k#)
    v7_parts2: f32[k#, n#, m, h] = load v7_parts
    v7_total: f32[k#, m, h] = sum v7_parts2 over(n#)
    v7_part: f32[k#, m, h] = mul v7_total, 1/n#
    v7: f32[m, h] = sum v7_part over(k#)
    b_t: f16[h, n/grid] = load b
    v7_f16: f16[m, h] = cast v7 dtype(f16)
    v8: f32[m, n/grid] = matmul v7_f16, b_t over(h)
    v9: f32[m, n/grid] = add v6, v8
    store add1: f16[m, n/grid] = v9
  }
  return add1
}
