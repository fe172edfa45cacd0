"""The product that cuts: 0 where the coefficient is exactly 0, whatever stands beside it."""

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
