mirage 1
mugraph softmax(x: f32[m, k]) -> f32[m, k] where m = 6, k = 20 {
  top = max x over(k)
  e = exp(x - top)
  y = e / sum(e, k)
  return y
}
// ----
mirage 1
mugraph norm_linear(x: f32[m, k], w: f32[k, n]) -> f32[m, n] where m = 5, k = 24, n = 20 {
  y = block grid(n / 16) loop(k / 16) {
    t = load x[m, k/loop]
    v = load w[k/loop, n/grid]
    s = accumulate square(t)
    a = accumulate t @ v
    y = a * rsqrt(sum(s, k) * 1/k + 1e-06)
    store y[m, n/grid]
  }
  return y
}
// ----
mirage 1
mugraph attention(q: f32[m, d], k: f32[n, d], v: f32[n, d]) -> f32[m, d]
    where m = 4, n = 40, d = 8 {
  y = block loop(n / 16) {
    qt = load q[m, d]
    kt = load k[n/loop, d]
    vt = load v[n/loop, d]
    s = matmul(qt, kt, d) * 0.35
    top = max s over(n)
    r = running max top
    e = exp(s - r)
    total = accumulate sum(e, n) rescale r
    o = accumulate matmul(e, vt, n) rescale r
    y = o / total
    store y[m, d]
  }
  return y
}
// ----
mirage 1
mugraph split_sum(x: f32[m, k], y: f32[m, k]) -> f32[m] where m = 3, k = 70 {
  parts = block grid(k / 32) loop(k / 16) {
    t = load x[m, k/grid/loop]
    u = load y[m, k/grid/loop]
    a = accumulate sum(t * u, k)
    store parts[m, k#/grid] = a
  }
  z = sum parts over(k#)
  return z
}
// ----
mirage 1
mugraph joined(x: f16[m, k], y: f16[m, j]) -> f16[m, l], f16[m, h] where m = 4, k = 12, j = 5 {
  both: f16[m, l] = concat x, y dims(k, j) to(l)
  a: f16[m, h] = slice x dim(k) start(2) stop(9) to(h)
  b: f16[m, h] = slice x dim(k) start(5) stop(12) to(h)
  c: f16[m, h] = a * sigmoid(b)
  return both, c
}
// ----
mirage 1
mugraph scores(x: f32[m, k], y: f32[n, k], b: f32[m]) -> f32[m, n], f32[n]
    where m = 6, n = 10, k = 8 {
  s = matmul x, y over(k)
  c = where(s < b, 2 * s, s - b)
  d = maximum(c, 0.25) / (1 + abs(s))
  e = max(abs(d), m)
  return d, e
}
// ----
mirage 1
mugraph two(x: f32[m, k], w: f32[k, n], v: f32[k, l]) -> f32[m, n], f32[m, l]
    where m = 4, k = 20, n = 40, l = 20 {
  y, z = block grid(n / 16 & l / 8) loop(k / 16) {
    t = load x[m, k/loop]
    a = load w[k/loop, n/grid]
    b = load v[k/loop, l/grid]
    p = accumulate t @ a
    q = accumulate t @ b
    store y[m, n/grid] = relu(p)
    store z[m, l/grid] = tanh(q)
  }
  return y, z
}
// ----
mirage 1
mugraph squares(x: f32[(g h), k], y: f32[k, g, h] layout(1, 2, 0)) -> f32[g, (k h)], f32[]
    where g = 2, h = 3, k = 4 {
  a = sqrt(x * x + 1/3) - log(abs(y) + 2*k/g)
  b = sum(a, g, h, k)
  t = rename a dims(g, h) to(u, v)
  w = sum(t * t, u, v)
  z = exp(0 - w) * a
  return z, b
}
