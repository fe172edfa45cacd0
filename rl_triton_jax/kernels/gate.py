"""The product that cuts: 0 where the coefficient is exactly 0, whatever stands beside it; and what
is made of it: affine maps h -> a h + b."""

import triton
import triton.language as tl


@triton.jit
def gate(coefficient, x):
    """Their product, and exactly 0 where the coefficient is 0, whatever x is."""
    return tl.where(coefficient == 0, 0, coefficient * x)


@triton.jit
def follow(a, b, h):
    """a h + b, and b where a is exactly 0."""
    return tl.where(a == 0, b, b + a * h)


@triton.jit
def then(a1, b1, a2, b2):
    """The map (a1, b1) followed by (a2, b2), as one map."""
    return gate(a2, a1), follow(a2, b2, b1)
