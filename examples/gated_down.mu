// The second half of a gated MLP: (silu(x) * y) @ w, with sizes that are no powers of two.
mirage 1

mugraph gated_down(
    x: f16[m, k],
    y: f16[m, k],
    w: f16[k, n]
) -> f16[m, n] where m = 1, k = 18944, n = 3584 {
  z = block grid(n / 64) loop(k / 296) {
    x_tile: f16[m, k/loop] = load x
    y_tile: f16[m, k/loop] = load y
    w_tile: f16[k/loop, n/grid] = load w
    active: f32[m, k/loop] = silu x_tile
    gated: f32[m, k/loop] = mul active, y_tile
    gated_half: f16[m, k/loop] = cast gated dtype(f16)
    product: f32[m, n/grid] = matmul gated_half, w_tile over(k)
    result: f32[m, n/grid] = accumulate product
    store z: f16[m, n/grid] = result
  }
  return z
}
