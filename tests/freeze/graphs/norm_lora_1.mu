mirage 1

mugraph norm_lora(
    x: f16[m, k],
    w: f16[k, n],
    a: f16[k, h],
    b: f16[h, n]
) -> f16[m, n] where m = 16, k = 4096, n = 4096, h = 16 {
  u22 = block grid(k / 1024, n / 128) loop(k / 64) num_stages(5) swap_operands(true) {
    b_t: f16[h, n/grid] = load b
    x_t: f16[m, k/grid/loop] = load x
    w_t: f16[k/grid/loop, n/grid] = load w
    a_t: f16[k/grid/loop, h] = load a
    v4: f32[m, n/grid] = matmul x_t, w_t over(k)
    v5: f32[m, h] = matmul x_t, a_t over(k)
    v6: f32[m, n/grid] = accumulate v4
    v7: f32[m, h] = accumulate v5
    v7_f16: f16[m, h] = cast v7 dtype(f16)
    v8: f32[m, n/grid] = matmul v7_f16, b_t over(h)
    v9: f32[m, n/grid] = add v6, v8
    store u22: f32[k#/grid, m, n/grid] = v9
  }
  add2 = block grid(m / 1, n / 512) num_stages(2) {
    u22_t: f32[k#, m/grid, n/grid] = load u22
    x_t: f16[m/grid, k] = load x
    v2: f32[m/grid, n/grid] = sum u22_t over(k#)
    v3: f32[m/grid, k] = mul x_t, x_t
    v4: f32[m/grid] = sum v3 over(k)
    v5: f32[m/grid] = mul v4, 1/k
    v6: f32[m/grid] = add v5, 1e-06
    v7: f32[m/grid] = sqrt v6
    v8: f32[m/grid, n/grid] = div v2, v7
    store add2: f16[m/grid, n/grid] = v8
  }
  return add2
}
