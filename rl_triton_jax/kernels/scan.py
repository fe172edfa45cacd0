"""The one scan behind every kernel, over two kinds of tiles.

`columns`: lanes lie side by side in memory (time-major arrays). `rows`: time does (batch-major).
Both read every operand once, keep coefficients and scan on chip, and write every result once.
"""

import triton
import triton.language as tl

from rl_triton_jax.kernels.exchange import exchange, only
from rl_triton_jax.kernels.flags import one
from rl_triton_jax.kernels.gate import coefficient, follow, number, then, times
from rl_triton_jax.kernels.hold import hold
from rl_triton_jax.kernels.masks import look, outermost, rows_before, start
from rl_triton_jax.kernels.operands import masked
from rl_triton_jax.kernels.recurrences import finish, needs_before, terms
from rl_triton_jax.kernels.tiles import (
    fetch,
    fetch_named,
    moved,
    result_strides,
    result_tiles,
    row_strides,
    tiles_of,
)


@triton.jit
def compose(a1, b1, e1, f1, a2, b2, e2, f2):
    """Two segments of rows, in the order in which they are computed.

    (a, b) is the map of a whole segment, (e, f) that of all its rows but the last: applied to what
    enters the segment, it is what enters the last row.
    """
    a, b = then(a1, b1, a2, b2)
    e, f = then(a1, b1, e2, f2)
    return a, b, e, f


@triton.jit
def enter(plan: tl.constexpr, a, b, h):
    """a h + b, of the h that enters a block; there is none if one block holds all rows."""
    if plan.blocks > 1:
        return follow(coefficient(a), b, h)
    else:
        return b


@triton.jit
def place(plan: tl.constexpr, PROGRAMS: tl.constexpr):
    """Which part of the time this program has, the earliest computed first, and where in it."""
    program = tl.program_id(0).to(plan.index)
    if plan.parts > 1:
        return program // PROGRAMS, program % PROGRAMS
    else:
        return program * 0, program


@triton.jit
def columns(
    operands,
    r0,
    r1,
    r2,
    r3,
    words,
    plan: tl.constexpr,
    S: tl.constexpr,
    WT: tl.constexpr,
    BN: tl.constexpr,
):
    """One program: BN lanes side by side, time in blocks of WT chunks of S rows, one after another
    or, if time is in parts, each in a program of its own.

    A tile is one row of every chunk. The S rows of a chunk are folded one after the other, so that
    only the WT maps of the chunks have to be scanned across threads; then they are unrolled again.
    """
    GROUPS: tl.constexpr = (plan.lanes + BN - 1) // BN
    results = (r0, r1, r2, r3)
    part, program = place(plan, plan.outer_size * GROUPS)
    outer = program // GROUPS
    inner = (program % GROUPS * BN + tl.arange(0, BN))[None, :]
    inside = inner < plan.lanes
    chunk = tl.arange(0, WT)[:, None].to(plan.index)
    h = tl.zeros([1, BN], plan.dtype)
    if masked(plan):
        lanes = (operands, outer, inner, inside, chunk, (), ())
        ends = outermost(plan, lanes, 0, WT, BN)
        entered = tl.full([1, BN], start(plan), plan.index)
    for turn in range(plan.blocks if plan.parts == 1 else 1):
        block = part + turn
        t = start(plan) + plan.direction * (block * (S * WT) + chunk * S + 1)
        x = (operands, outer, inner, inside, t, (), ())
        outputs = result_tiles(plan, x, results)
        if masked(plan):
            passed = rows_before(plan, x, entered, S, 0, False, WT, BN)
        else:  # all loads are issued before anything waits for one of them
            tiles = tiles_of(plan, x)
            shared = fetch_named(plan, x, plan.shared, 0)
            fetched = (fetch_named(plan, x, plan.with_rows, -plan.direction),)
            for s in tl.static_range(S):
                step = tl.full([], plan.direction * s, plan.index)
                x_s = (operands, outer, inner, inside, t + step, (), ())
                fetched = fetched + (fetch(plan, x_s, moved(tiles, step, row_strides(plan))),)
            shared, fetched = hold(plan, shared, fetched, operands[0])
        a, b = one(plan), tl.zeros([WT, BN], plan.dtype)
        rows = ()
        for s in tl.static_range(S):
            if masked(plan):
                x_s, passed = look(plan, x, plan.direction * s, passed, ends)
            else:
                loaded = shared + fetched[s + 1] + fetched[s]
                x_s = (operands, outer, inner, inside, t + plan.direction * s, loaded, ())
            a_s, b_s, kept = terms(plan, x_s, 0)
            rows = rows + ((x_s, a_s, b_s, kept),)
            if s == 0:
                a, b = a_s, tl.broadcast_to(b_s, [WT, BN])
            else:
                a, b = times(a, a_s), follow(a_s, b_s, b)
        a, b, e, f = tl.associative_scan(
            (
                tl.broadcast_to(number(a), [WT, BN]),
                b,
                tl.full([WT, BN], 1, plan.dtype),
                tl.zeros([WT, BN], plan.dtype),
            ),
            0,
            compose,
        )
        if plan.parts > 1:
            lane = outer * plan.lanes + inner
            h = exchange(plan, words, part, lane, inside, chunk == WT - 1, a, b, h, 0)
        before = enter(plan, e, f, h)
        for s in tl.static_range(S):
            x_s, a_s, b_s, kept = rows[s]
            after = follow(a_s, b_s, before)
            step = tl.full([], plan.direction * s, plan.index)
            pointers = moved(outputs, step, result_strides(plan))
            finish(plan, x_s, (results, pointers), after, before, kept)
            before = after
        if plan.parts < plan.blocks:
            h = only(chunk == WT - 1, before, 0)
            if masked(plan):
                entered = only(chunk == WT - 1, passed, 0)


@triton.jit
def rows(operands, r0, r1, r2, r3, words, plan: tl.constexpr, BT: tl.constexpr, BN: tl.constexpr):
    """One program: BN lanes, time along the tile in blocks of BT rows, as in `columns`."""
    GROUPS: tl.constexpr = (plan.outer_size + BN - 1) // BN
    results = (r0, r1, r2, r3)
    part, program = place(plan, GROUPS)
    outer = (program * BN + tl.arange(0, BN))[:, None]
    inside = outer < plan.outer_size
    along = tl.arange(0, BT)[None, :].to(plan.index)
    h = tl.zeros([BN, 1], plan.dtype)
    if masked(plan):
        lanes = (operands, outer, 0, inside, along, (), ())
        ends = outermost(plan, lanes, 1, BN, BT)
        entered = tl.full([BN, 1], start(plan), plan.index)
    for turn in range(plan.blocks if plan.parts == 1 else 1):
        block = part + turn
        if plan.reverse:
            t = (plan.blocks - 1 - block) * BT + along
        else:
            t = block * BT + along
        x = (operands, outer, 0, inside, t, (), ())
        if masked(plan):
            before = rows_before(plan, x, entered, 1, 1, plan.reverse, BN, BT)
            x, passed = look(plan, x, 0, before, ends)
        else:  # the rows themselves first: numbers that neighbours share with them are loaded once
            shared = fetch_named(plan, x, plan.shared, 0)
            row = fetch_named(plan, x, plan.with_rows, 0)
            neighbour = fetch_named(plan, x, plan.with_rows, -plan.direction)
            shared, fetched = hold(plan, shared, (row, neighbour), operands[0])
            x = (operands, outer, 0, inside, t, shared + fetched[0] + fetched[1], ())
        a, b, kept = terms(plan, x, 0)
        maps = tl.broadcast_to(number(a), [BN, BT]), tl.broadcast_to(b, [BN, BT])
        is_last = along == (0 if plan.reverse else BT - 1)
        if needs_before(plan):
            nothing = tl.full([BN, BT], 1, plan.dtype), tl.zeros([BN, BT], plan.dtype)
            all_a, all_b, e, f = tl.associative_scan(
                maps + nothing, 1, compose, reverse=plan.reverse
            )
        else:
            all_a, all_b = tl.associative_scan(maps, 1, then, reverse=plan.reverse)
        if plan.parts > 1:
            h = exchange(plan, words, part, outer, inside, is_last, all_a, all_b, h, 1)
        if needs_before(plan):
            before = enter(plan, e, f, h)
            after = follow(a, b, before)
        else:
            after = enter(plan, all_a, all_b, h)
            before = after
        finish(plan, x, (results, result_tiles(plan, x, results)), after, before, kept)
        if plan.parts < plan.blocks:
            h = only(is_last, after, 1)
            if masked(plan):
                entered = only(is_last, passed, 1)
