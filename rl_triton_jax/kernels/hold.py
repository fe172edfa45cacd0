"""All loads before anything that waits for one of them.

The assembler takes memory to be near: it begins to multiply the coefficients that have come before
it has issued the loads of other operands, and a program waits for memory twice (V-trace took 1.8
times as long). Loads stay above a barrier, but what is computed from them may be moved there from
below. So coefficients get bits added, all of them 0, that are known only behind the barrier.
"""

import triton
import triton.language as tl

from rl_triton_jax.kernels.operands import count

NONE_IS_NULL: tl.constexpr = tl.constexpr("""{
    .reg .pred null;
    setp.eq.s64 null, $1, 0;
    barrier.cta.red.popc.aligned.u32 $0, 0, null;
}""")
"""How many of a program's threads have a null pointer $1, which all of them wait for."""


COEFFICIENTS: tl.constexpr = tl.constexpr(
    ("a", "gamma", "lambda_", "log_rho", "rho", "terminated", "trace", "truncated")
)
"""Operands whose numbers are multiplied from row to row (of flags, if they are numbers)."""


@triton.constexpr_function
def is_factor(name, dtype):
    """Whether what has been read is multiplied: flags that are bytes are not."""
    return name in COEFFICIENTS and dtype.primitive_bitwidth > 8


@triton.constexpr_function
def integer(dtype):
    """Of the same width."""
    return {16: tl.int16, 32: tl.int32, 64: tl.int64}[dtype.primitive_bitwidth]


@triton.jit
def zero_behind_loads(pointer):
    """0, which no compiler knows to be 0."""
    address = pointer.to(tl.int64) + tl.zeros([1, 1], tl.int64)
    return tl.inline_asm_elementwise(
        NONE_IS_NULL, "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def wait(names: tl.constexpr, numbers, zero):
    """What has been read of these operands; coefficients are not known before `zero` is."""
    found = ()
    for i in tl.static_range(count(names)):
        x = numbers[i]
        if is_factor(names[i], x.dtype):
            bits = x.to(integer(x.dtype), bitcast=True)
            x = (bits | zero.to(bits.dtype)).to(x.dtype, bitcast=True)
        found = found + (x,)
    return found


@triton.jit
def hold(plan: tl.constexpr, shared, rows, pointer):
    """What has been read of the operands that all rows share, and of some rows of the others."""
    if plan.holds:
        zero = zero_behind_loads(pointer)
        found = ()
        for i in tl.static_range(count(rows)):
            found = found + (wait(plan.with_rows, rows[i], zero),)
        return wait(plan.shared, shared, zero), found
    else:
        return shared, rows
