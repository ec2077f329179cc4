// What may be written for short, and what it stands for.

// case operators inside operators, infix signs, inferred dims
mirage 1
mugraph rms_linear(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    s = accumulate square(xt)
    a = accumulate xt @ wt
    r = rsqrt(sum(s, k) * 1/k + 1e-06)
    y = a * r
    store y[m, n/grid]
  }
  return y
}
// prints
mirage 1

mugraph rms_linear(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt: f16[m, k/loop] = load x
    wt: f16[k/loop, n/grid] = load w
    s_1: f32[m, k/loop] = square xt
    s: f32[m, k/loop] = accumulate s_1
    a_1: f32[m, n/grid] = matmul xt, wt over(k)
    a: f32[m, n/grid] = accumulate a_1
    r_1: f32[m] = sum s over(k)
    r_2: f32[m] = mul r_1, 1/k
    r_3: f32[m] = add r_2, 1e-06
    r: f32[m] = rsqrt r_3
    y: f32[m, n/grid] = mul a, r
    store y: f16[m, n/grid] = y
  }
  return y
}

// case precedence and sides of infix signs
mirage 1
mugraph f(a: f32[m], b: f32[m]) -> f32[m], f32[m], bool[m] where m = 4 {
  x = a - b * a - -2
  y = (a - b) / 2 / b
  z = a + b > 1/m
  return x, y, z
}
// prints
mirage 1

mugraph f(a: f32[m], b: f32[m]) -> f32[m], f32[m], bool[m] where m = 4 {
  x_1: f32[m] = mul b, a
  x_2: f32[m] = sub a, x_1
  x: f32[m] = sub x_2, -2
  y_1: f32[m] = sub a, b
  y_2: f32[m] = div y_1, 2
  y: f32[m] = div y_2, b
  z_1: f32[m] = add a, b
  z: bool[m] = less 1/m, z_1
  return x, y, z
}

// case constants are multiplied out, and dims are constants
mirage 1
mugraph f(a: f32[m, k]) -> f32[m], f32[m, k] where k = 4, m = ? {
  b = sum(a, k) * (2 / k * m)
  c = 3 / 4 * a / m
  return b, c
}
// prints
mirage 1

mugraph f(a: f32[m, k]) -> f32[m], f32[m, k] where m = ?, k = 4 {
  b_1: f32[m] = sum a over(k)
  b: f32[m] = mul b_1, 2/k*m
  c_1: f32[m, k] = mul 0.75, a
  c: f32[m, k] = div c_1, 1*m
  return b, c
}

// case values come before dims of the same name, but for constants
mirage 1
mugraph f(k: f32[k, m]) -> f32[k, m], f32[k, m] where k = 4, m = 8 {
  a = 1/k * k
  b = 2 * k / m
  return a, b
}
// prints
mirage 1

mugraph f(k: f32[k, m]) -> f32[k, m], f32[k, m] where k = 4, m = 8 {
  a: f32[k, m] = mul 1/k, k
  b_1: f32[k, m] = mul 2, k
  b: f32[k, m] = div b_1, 1*m
  return a, b
}

// case dims of a contraction follow from the stated type
mirage 1
mugraph f(q: f16[b, m, d], k: f16[b, n, d]) -> f16[b, m, n], f16[m, n] where b = 2, m = 4, n = 8, d = 16 {
  s: f16[b, m, n] = q @ k
  t: f16[m, n] = q @ k
  return s, t
}
// prints
mirage 1

mugraph f(
    q: f16[b, m, d],
    k: f16[b, n, d]
) -> f16[b, m, n], f16[m, n] where b = 2, m = 4, d = 16, n = 8 {
  s: f16[b, m, n] = matmul q, k over(d)
  t: f16[m, n] = matmul q, k over(b, d)
  return s, t
}

// case views and library kernels
mirage 1
mugraph f(x: f16[m, (h d)] layout(1, 0), w: f16[h, d, 1, n], s: f16[]) -> f32[n, m], f16[(m h d)] layout(0,) where m = 4, h = 2, d = 8, n = 6 {
  x2 = slice(x, d, 0, 4, d0)
  x3 = slice(x, d, 4, 8, d1)
  x4 = concat(x3, x2) dims(d1, d0) to(d)
  x5 = rename x4 dims(m, h) to(m2, h2)
  x6 = rename(x5) dims(m2, h2) to(m, h)
  y = cast(matmul(x6, w, h, d), f32)
  z = x6 * s
  return y, z
}
// prints
mirage 1

mugraph f(
    x: f16[m, (h d)] layout(1, 0),
    w: f16[h, d, 1, n],
    s: f16[]
) -> f32[n, m], f16[(m h d)] layout(0,) where m = 4, h = 2, d = 8, n = 6 {
  x2: f16[m, h, d0] = slice x dim(d) start(0) stop(4) to(d0)
  x3: f16[m, h, d1] = slice x dim(d) start(4) stop(8) to(d1)
  x4: f16[m, h, d] = concat x3, x2 dims(d1, d0) to(d)
  x5: f16[m2, h2, d] = rename x4 dims(m, h) to(m2, h2)
  x6: f16[m, h, d] = rename x5 dims(m2, h2) to(m, h)
  y_1: f16[m, n] = matmul x6, w over(h, d)
  y: f32[m, n] = cast y_1 dtype(f32)
  z: f16[m, h, d] = mul x6, s
  return y, z
}

// case stores in any order, dtypes from the header, parts of a split
mirage 1
mugraph f(x: f16[m, k]) -> f16[m], f32[m] where m = 4, k = 100 {
  b, a = block grid(m / 2, k / 30) num_stages(2) pdl(true) {
    t = load x[m/grid, k/grid]
    e = exp t
    store a[m/grid, k#/grid] = sum(e, k)
    store b[m/grid, (k#/grid)] = sum(t, k)
  }
  c = cast(sum(a, k#), f16)
  d = sum b over(k#)
  return c, d
}
// prints
mirage 1

mugraph f(x: f16[m, k]) -> f16[m], f32[m] where m = 4, k = 100 {
  a, b = block grid(m / 2, k / 30) num_stages(2) pdl(true) {
    t: f16[m/grid, k/grid] = load x
    e: f32[m/grid, k/grid] = exp t
    a_1: f32[m/grid] = sum e over(k)
    store a: f32[m/grid, k#/grid] = a_1
    b_1: f32[m/grid] = sum t over(k)
    store b: f32[m/grid, k#/grid] = b_1
  }
  c_1: f32[m] = sum a over(k#)
  c: f16[m] = cast c_1 dtype(f16)
  d: f32[m] = sum b over(k#)
  return c, d
}

// case line breaks, comments and spaces
// A comment before the version.

mirage 1 // and behind it
mugraph f (
  x: f16 [ m , k ],  // first
  w: f16[k,n],
  )
-> f16[m,n]
 where m=16,
    k = 64, n = 32
{
  y: f16[m, n] =
    x @
    w   // 1/k in a comment


  return y }
// prints
mirage 1

mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y: f16[m, n] = matmul x, w over(k)
  return y
}
