"""Rows that a mask does not count are passed over: each row's neighbour is the nearest that counts.

Which row that is, and which rows that count are the outermost, is found from the mask alone, before
the scan; the neighbour is then read by its index.
"""

import triton
import triton.language as tl

from rl_triton_jax.kernels.operands import raw

NONE: tl.constexpr = tl.constexpr(-2)
"""No row; -1 is the row before the first one."""


@triton.jit
def counts_at(plan: tl.constexpr, x, o):
    """Where in the tile row t + o exists and counts."""
    operands, outer, inner, inside, t, _loaded, _counting = x
    return raw(plan, (operands, outer, inner, inside, t + o, (), ()), "mask", 0) != 0


@triton.jit
def outermost(plan: tl.constexpr, x, axis: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """The first and the last row that counts, of every lane: the last and the first of all rows if
    none does. `x` stands at the first tile of R rows and C lanes, or the other way round."""
    first = tl.full([R, C], plan.length - 1, plan.index)
    last = tl.full([R, C], 0, plan.index)
    for block in range(0, plan.length, C if axis == 1 else R):
        t = block + x[4]
        counts = counts_at(plan, x, block)
        first = tl.minimum(first, tl.where(counts, t, plan.length - 1))
        last = tl.maximum(last, tl.where(counts, t, 0))
    return tl.min(first, axis, keep_dims=True), tl.max(last, axis, keep_dims=True)


@triton.jit
def latest(f1, e1, f2, e2):
    """Two segments of rows, in the order in which they are computed: the last row that counts, of
    the whole segment and of all but its final part."""
    return tl.where(f2 == NONE, f1, f2), tl.where(e2 == NONE, f1, e2)


@triton.constexpr_function
def start(plan):
    """The row that stands before the one that is computed first."""
    return plan.length if plan.reverse else -1


@triton.jit
def rows_before(
    plan: tl.constexpr,
    x,
    entered,
    S: tl.constexpr,
    axis: tl.constexpr,
    reverse: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """The last row that counts before each of the tile's chunks of S rows; `entered` is the one
    before them all."""
    f = tl.full([R, C], NONE, plan.index)
    for s in tl.static_range(S):
        t = x[4] + plan.direction * s
        f = tl.where(counts_at(plan, x, plan.direction * s), t, f)
    _f, e = tl.associative_scan(
        (f, tl.full([R, C], NONE, plan.index)), axis, latest, reverse=reverse
    )
    return tl.where(e == NONE, entered, e)


@triton.jit
def look(plan: tl.constexpr, x, o: tl.constexpr, before, ends):
    """x from its row at offset o, before which `before` counts; and what counts up to this row."""
    operands, outer, inner, inside, t, _loaded, _counting = x
    counts = counts_at(plan, x, o)
    t = t + o
    counting = (counts, before, ends[0], ends[1])
    return (operands, outer, inner, inside, t, (), counting), tl.where(counts, t, before)
