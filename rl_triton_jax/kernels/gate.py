"""The product that cuts: 0 where the coefficient is exactly 0, whatever stands beside it; and what
is made of it: affine maps h -> a h + b.

A row's coefficient is a pair (scale, cut): the scale, and exactly 0 where it is cut. Most often the
scale is the same for all rows and only flags differ, so that kept apart, products of coefficients
cost next to nothing. What is scanned across threads is a number.
"""

import triton
import triton.language as tl


@triton.jit
def coefficient(number):
    return number, number == 0


@triton.jit
def number(a):
    scale, cut = a
    return tl.where(cut, 0, scale)


@triton.jit
def complement(a):
    """1 - a."""
    return coefficient(1 - number(a))


@triton.jit
def zero_where(here, a):
    scale, cut = a
    return scale, cut | here


@triton.jit
def choose(here, a1, a2):
    """The coefficient a1 where it is `here`, a2 elsewhere."""
    return tl.where(here, a1[0], a2[0]), tl.where(here, a1[1], a2[1])


@triton.jit
def times(a1, a2):
    return a1[0] * a2[0], a1[1] | a2[1]


@triton.jit
def gate(a, x):
    """a x, and exactly 0 where a is 0, whatever x is."""
    scale, cut = a
    return tl.where(cut, 0, scale * x)


@triton.jit
def follow(a, b, h):
    """a h + b, and b where a is exactly 0."""
    scale, cut = a
    return tl.where(cut, b, b + scale * h)


@triton.jit
def then(a1, b1, a2, b2):
    """The map of numbers (a1, b1) followed by (a2, b2), as one map."""
    a = coefficient(a2)
    return gate(a, a1), follow(a, b2, b1)
