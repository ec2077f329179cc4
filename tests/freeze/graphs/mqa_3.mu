// plan: {"out": true}
mirage 1

mugraph mqa(
    q: f16[1, m, n],
    k: f16[h, n],
    v: f16[h, d]
) -> f16[1, m, d] where m = 1024, n = 64, h = 4096, d = 64 {
  matmul1: f16[m, h] = matmul q, k over(n)
  div1 = block grid(m / 4) num_stages(2) descriptors(true) {
    matmul1_t: f16[m/grid, h] = load matmul1
    top: f32[m/grid] = rowshift matmul1_t over(h)
    moved: f32[m/grid, h] = sub matmul1_t, top
    v1: f32[m/grid, h] = exp moved
    v2: f32[m/grid] = sum v1 over(h)
    v3: f32[m/grid, h] = div v1, v2
    store div1: f16[m/grid, h] = v3
  }
  matmul2: f16[m, d] = matmul div1, v over(h)
  return matmul2
}
