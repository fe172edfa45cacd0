"""All loads before anything that waits for one of them.

The assembler takes memory to be near. Where coefficients are numbers that are read, such as ratios,
it multiplies the first of them before it has issued the loads of other operands, and a program
waits for memory twice (V-trace took 1.8 times as long). Loads stay above a barrier, but what
is computed from them may be moved there from below. So coefficients get bits added, all of them 0,
that are known only behind the barrier.
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


@triton.constexpr_function
def is_held(plan, i):
    """Of the operands that are read for every row, the one at i."""
    return plan.with_rows[i] in plan.held


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
def hold(plan: tl.constexpr, rows, pointer):
    """What has been read of rows, of which the operands that are `held` wait for all of it."""
    if count(plan.held) == 0:
        return rows
    else:
        zero = zero_behind_loads(pointer)
        found = ()
        for i in tl.static_range(count(rows)):
            row = ()
            for j in tl.static_range(count(plan.with_rows)):
                x = rows[i][j]
                if is_held(plan, j):
                    bits = x.to(integer(x.dtype), bitcast=True)
                    x = (bits | zero.to(bits.dtype)).to(x.dtype, bitcast=True)
                row = row + (x,)
            found = found + (row,)
        return found
