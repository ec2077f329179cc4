// Texts that are not in the language, or break a type rule, and what is said of them.

// case empty

// ParseError 1:0 the text is empty, expected `mirage 1`

// case no version
mugraph f() { return }
// ParseError 1:1 a text begins with its version, expected `mirage 1`

// case other version
mirage 2
mugraph f() {}
// ParseError 1:1 this is version 2 of the text format; this program reads version 1

// case unknown operator
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = matmull x, w
  return y
}
// ParseError 3:7 unknown operator matmull; did you mean `matmul`?

// case unknown operator in call
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = exp(sqr(x)) @ w
  return y
}
// ParseError 3:11 unknown operator sqr; did you mean `sqrt`?

// case value as operator
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = x w
  return y
}
// ParseError 3:7 x is a value, expected an operator in front of its operands

// case unknown value
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wtt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 6:20 unknown value wtt; did you mean `wt`?

// case used before its line
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    p = matmul xt, wt
    wt = load w[k/loop, n/grid]
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 5:20 wt is used before line 6 defines it; move that line up, above this one

// case used before its kernel
mirage 1
mugraph f(x: f16[m, k]) -> f16[m, k] where m = 16, k = 64 {
  y = block grid(m / 16) {
    t = load h[m/grid, k]
    store y: f16[m/grid, k] = square(t)
  }
  h = exp x
  return y
}
// ParseError 4:14 h is used before line 7 defines it; move that line up, above this one

// case defined by itself
mirage 1
mugraph f(x: f16[m, k]) -> f16[m, k] where m = 16, k = 64 {
  y = exp y
  return y
}
// ParseError 3:11 y is defined by itself; name a value that is defined above this line

// case unknown dim
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, kk/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 4:20 no extent is given for dim kk; did you mean `k`?

// case unknown piece
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/lop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 4:22 unknown piece /lop; did you mean `loop`?

// case unknown dtype
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store y: f17[m, n/grid] = a
  }
  return y
}
// ParseError 8:14 unknown dtype f17; did you mean `f16`?

// case unknown attribute
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = matmul x, w ovr(k)
  return y
}
// ParseError 3:19 matmul has no attribute ovr; did you mean `over`?

// case unknown parameter
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) num_wraps(4) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 3:38 a block has no parameter num_wraps; did you mean `num_warps`?

// case bad bool
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) pdl(yes) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 3:42 pdl is true or false, found yes

// case tile missing
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 3:18 grid needs a tile: grid(n / 64)

// case tile of zero
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 0) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 3:22 found 0, expected a positive integer

// case tensor not loaded
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul x, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 6:16 x is a tensor outside of the block; load it first: x_tile = load x[...]

// case load without axes
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 4:15 which part of x? write x[m, k], with /grid and /loop behind the dims that are split

// case load of other axes
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[k/loop, m]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// CheckError 4:5 load x[k, m], but x is f16[m, k]

// case wrong annotation
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p: f32[m, k/loop] = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// CheckError 6:8 p is f32[m, n/grid], not f32[m, k/loop]

// case wrong annotation dtype
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p: f16[m, n/grid] = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// CheckError 6:8 p is f32[m, n/grid], not f16[m, n/grid]

// case dtypes differ
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    e = exp xt
    p = matmul e, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// CheckError 7:9 matmul takes operands of one dtype, found f32 and f16; cast one of them

// case missing over
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = sum x
  return y
}
// ParseError 3:7 sum needs over(...) behind its operands

// case ambiguous over
mirage 1
mugraph f(x: f16[m, k], w: f16[k, m]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = matmul x, w
  return y
}
// CheckError 3:7 matmul: the operands share the dims m, k; say which are summed, as in over(m)

// case operand count
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = exp x, w
  return y
}
// ParseError 3:14 exp takes 1 operand, found 2

// case second name
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = x
  return y
}
// ParseError 3:7 y would be a second name of x; use x

// case constant
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = 3
  return y
}
// ParseError 3:7 y would be a constant; write 3 where it is used

// case defined twice
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  x = exp x
  return x
}
// ParseError 3:3 x is defined twice; names are given once

// case number as name
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  inf = exp x
  return inf
}
// ParseError 3:3 inf is a number and cannot name a value

// case no return
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = x @ w
}
// ParseError 2:9 f has no `return` at its end

// case return count
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = x @ w
  return y, y
}
// ParseError 4:10 2 values returned, but 1 type behind `->` in the header

// case returned type
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = exp x
  return y
}
// CheckError 4:10 y is f16[m, k], the header returns f16[m, n]

// case load outside
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = load x[m, k]
  return y
}
// ParseError 3:3 `load`, `accumulate` and `running max` stand in a block, found one outside

// case store outside
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  store y: f16[m, k] = x
  return y
}
// ParseError 3:9 `store` stands in a block, found it outside

// case return in block
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    return a
  }
  return y
}
// ParseError 8:5 `return` stands at the end of the graph; a block ends in `store`

// case block results
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store z: f16[m, n/grid] = a
  }
  return y
}
// ParseError 3:3 the block stores z, the line names y

// case stored dims
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = xt
  }
  return y
}
// CheckError 8:31 xt is f16[m, k/loop], but y is stored as [m, n/grid]

// case after return
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = x @ w
  return y
  z = exp y
}
// ParseError 5:3 nothing may follow `return` but `}`

// case unclosed
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) {
    xt = load x[m, k]
// ParseError 4:22 the text ends too early, expected a name or `}`; the `{` of line 3 is not closed

// case missing comma
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = matmul x w
  return y
}
// ParseError 3:16 found `w`, expected a name with `(`, the end of the line, `,` or an infix sign

// case missing bracket
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y: f16[m, n = x @ w
  return y
}
// ParseError 3:15 found `=`, expected `]`, `,` or `/`

// case odd character
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = x $ w
  return y
}
// ParseError 3:9 `$` is no sign of the language

// case double assignment
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y == x @ w
  return y
}
// ParseError 3:5 found `==`, expected `,`, `:` or `=`

// case constant for value
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = exp 3
  return y
}
// CheckError 3:7 exp needs tensors, found a constant

// case shift by all bits
mirage 1
mugraph f(x: i32[m]) -> i32[m] where m = 16 {
  y = shift_right x, 32
  return y
}
// CheckError 3:7 shift_right of i32 by 32, expected 0 to 31: beyond, its result is undefined on a GPU

// case shift back
mirage 1
mugraph f(x: i8[m]) -> i8[m] where m = 16 {
  y = shift_left x, -1
  return y
}
// CheckError 3:7 shift_left of i8 by -1, expected 0 to 7: beyond, its result is undefined on a GPU

// case shift by an extent
mirage 1
mugraph f(x: i64[m]) -> i64[m] where m = 16 {
  y = shift_left x, 1*m
  return y
}
// CheckError 3:7 shift_left of i64 by 1*m, expected 0 to 63: beyond, its result is undefined on a GPU

// case axis number
mirage 1
mugraph f(x: f16[16, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = x @ w
  return y
}
// ParseError 2:18 an axis is a dim or 1, found 16; name a dim and give its extent after `where`: d = 16

// case pieces at kernel level
mirage 1
mugraph f(x: f16[m, k/loop], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = x @ w
  return y
}
// ParseError 2:21 only values inside of a block have pieces of dims, found k/loop; write k

// case layout
mirage 1
mugraph f(x: f16[m, k] layout(0, 0), w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = x @ w
  return y
}
// ParseError 2:31 layout(0, 0) does not name each of the 2 axes once

// case value in constant
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = w + 2*w
  return y
}
// ParseError 3:11 2*w without spaces is one constant, and w is no dim; for the value w write spaces around the `*`

// case several names
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y, z = x @ w
  return y
}
// ParseError 3:6 only a block has several results, found several names

// case two extents
mirage 1
mugraph f(x: f16[m]) -> f16[m] where m = 1, m = 2 {
  return x
}
// ParseError 2:45 dim m has two extents

// case bad extent
mirage 1
mugraph f(x: f16[m]) -> f16[m] where m = 0 {
  return x
}
// ParseError 2:42 found 0, expected a positive integer

// case no extent
mirage 1
mugraph f(x: f16[m]) -> f16[m] {
  return x
}
// ParseError 2:18 no extent is given for dim m; state it: where m = 64

// case rename mismatch
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = rename x dims(m, k) to(a)
  return y
}
// CheckError 3:7 rename takes one new name per dim, found 2 dims and 1 names

// case sign before a value
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = -x
  return y
}
// ParseError 3:7 found `-`, expected a name, a number or `(`

// case sign inside an expression
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = w * -x
  return y
}
// ParseError 3:11 found `-`, expected a name, a number or `(`

// case text behind the graph
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = x @ w
  return y
}
foo
// ParseError 6:1 found `foo`, expected the end of the text

// case missing sign
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 3:20 found `16`, expected `)`, `,`, `&` or `/`

// case header arrow
mirage 1
mugraph f(x: f16[m]) f16[m] where m = 2 {
  return x
}
// ParseError 2:22 found `f16`, expected `{`, `->` or `where`

// case unknown running
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    t = running mx p
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 7:17 found `mx`, expected the end of the line, an infix sign or `max`

// case unknown accumulator
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p maxx
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 7:22 found `maxx`, expected how iterations are accumulated; did you mean `max`?

// case division in an attribute
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = sum x over(k / 2)
  return y
}
// ParseError 3:22 over takes no division, write over(k)

// case cast to unknown dtype
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = cast x dtype(f33)
  return y
}
// ParseError 3:20 unknown dtype f33; did you mean `f32`?

// case unknown dim of a slice
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = slice x dim(q) start(0) stop(4) to(k2)
  return y
}
// ParseError 3:19 no extent is given for dim q; state it: where q = 64

// case bound of a slice
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = slice x dim(k) start(a) stop(4) to(k2)
  return y
}
// ParseError 3:28 found a, expected an integer that is not negative

// case type missing
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y: = exp x
  return y
}
// ParseError 3:6 found `=`, expected a name

// case sum of constants
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = x * (1 + k)
  return y
}
// ParseError 3:14 1 + 1*k: write the constant that it makes

// case slip in return
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = x @ w
  retrun y
}
// ParseError 4:10 found `y`, expected `,`, `:` or `=`; did you mean `return` by `retrun`?

// case slip in store
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    stor y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 8:10 found `y`, expected `,`, `:` or `=`; did you mean `store` by `stor`?

// case slip in load
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = laod x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 4:16 found `[`, expected a name with `(`, the end of the line, `,` or an infix sign; did you mean `load` by `laod`?

// case slip in block
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = blok grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 3:37 found `{`, expected a name with `(` or the end of the line; did you mean `block` by `blok`?

// case slip in where
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] wher m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 2:52 found `wher`, expected `{`, `,`, `layout` or `where`; did you mean `where` by `wher`?

// case slip in rescale
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p rescal m
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 7:29 found `m`, expected the end of the line or `rescale`; did you mean `rescale` by `rescal`?

// case slip in layout
mirage 1
mugraph f(x: f16[m, k] layuot(1, 0), w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
// ParseError 2:24 found `layuot`, expected `)`, `,` or `layout`; did you mean `layout` by `layuot`?

// case missing brace
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
    return y
}
// ParseError 10:2 the text ends too early, expected a name or `}`; the `{` of line 2 is not closed

// case brace behind a comma
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = x @ w
  return y,
}
// ParseError 5:1 found `}`, expected a name

// case semicolon
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = x @ w;
  return y
}
// ParseError 3:12 `;` is no sign of the language

// case comment of another language
mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = x @ w # comment
  return y
}
// ParseError 3:13 `#` is no sign of the language; comments begin with `//`

// case product of a constant
mirage 1
mugraph f(x: f16[m, k]) -> f16[m, k] where m = 16, k = 64 {
  y = matmul 2, 3
  return y
}
// ParseError 3:7 matmul takes tensors, found a constant

// case product without a shared dim
mirage 1
mugraph f(x: f16[m, k], w: f16[n]) -> f16[m, k] where m = 16, k = 64, n = 2 {
  y = x @ w
  return y
}
// CheckError 3:9 matmul: no dim is shared by f16[m, k] and f16[n]

// case text behind the last statement of a block
mirage 1
mugraph f(x: f16[m]) -> f16[m] where m = 16 {
  y = block { t = load x[m]; }
  return y
}
// ParseError 3:28 `;` is no sign of the language

// case a sign that looks like a space
mirage 1
mugraph f(x: f16[m]) -> f16[m] where m = 16 {
  y = exp x
  return y
}
// ParseError 3:10 NO-BREAK SPACE (U+00A0) is no sign of the language

// case an operator without operands
mirage 1
mugraph f(x: f16[m]) -> f16[m] where m = 16 {
  y = exp
  return y
}
// ParseError 3:7 unknown value exp; the operator exp has its operands behind it

// case two statements in a line
mirage 1
mugraph f(x: f16[m, k]) -> f16[m] where m = 16, k = 4 {
  y = sum x over(k) z = exp y
  return z
}
// ParseError 3:21 found `z`, expected a name with `(` or the end of the line
