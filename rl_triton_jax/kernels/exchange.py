"""How programs that share a window of time pass the carry on, within one launch.

A program's part of the rows is one affine map h -> a h + b a lane. It is published as one 64-bit
word, so that map and readiness cannot be seen apart: a word is 0 until it is written, and never
after. A program composes the maps of all parts that are computed before its own, in their order
and in fixed groups whatever the timing, so repeats are bitwise equal. Those parts have smaller
program numbers: a program waits only for programs that the GPU has started before it.
"""

import triton
import triton.language as tl

from rl_triton_jax.kernels.gate import coefficient, follow, gate, then

IDENTITY: tl.constexpr = tl.constexpr(0x3F80_0000_0000_0000)
"""The word of a = 1, b = 0."""

WAIT: tl.constexpr = tl.constexpr("""{
    .reg .pred wait;
    .reg .u32 tries;
    mov.u32 tries, 0;
    mov.b64 $0, $1;
AGAIN:
    setp.eq.s64 wait, $0, 0;
    setp.lt.and.u32 wait, tries, 4194304, wait;
    @!wait bra DONE;
    nanosleep.u32 32;
    ld.relaxed.gpu.global.b64 $0, [$2];
    add.u32 tries, tries, 1;
    bra AGAIN;
DONE:
}""")
"""Reads $2 until it is not 0, or until seconds have passed; $1 is what was read before."""


PUBLISH: tl.constexpr = tl.constexpr("""{
    .reg .pred here;
    setp.ne.s32 here, $3, 0;
    @here st.relaxed.gpu.global.b64 [$1], $2;
    mov.u32 $0, 0;
}""")
"""Writes $2 to $1 if $3 is set: like `tl.atomic_xchg`, but the tile keeps its layout."""


@triton.jit
def pack(a, b):
    """Two float32 as a word that is not 0: where a is 0, its sign is set, by its bit, for Triton
    3.7 takes the constant -0.0 for 0.0."""
    high = (a.to(tl.int32, bitcast=True) | ((a == 0).to(tl.int32) << 31)).to(tl.int64) << 32
    return high | (b.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def unpack(word):
    """The two numbers of a word; NaN of one that never came."""
    a = (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    b = word.to(tl.int32).to(tl.float32, bitcast=True)
    return tl.where(word == 0, float("nan"), a), b


@triton.jit
def publish(pointer, word, here):
    arguments = [pointer.to(tl.int64), word, here.to(tl.int32)]
    tl.inline_asm_elementwise(PUBLISH, "=r,l,l,r", arguments, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def wait_for(word, pointer):
    """The word, once it is there: every thread waits for what it has asked for itself."""
    return tl.inline_asm_elementwise(
        WAIT, "=&l,l,l", [word, pointer.to(tl.int64)], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def only(here, value, axis: tl.constexpr):
    """The value at the only place along the axis that is `here`."""
    return tl.sum(tl.where(here, value, 0), axis, keep_dims=True)


@triton.jit
def after(plan: tl.constexpr, words, n, lane, inside, a, b, axis: tl.constexpr):
    """The map (a, b) followed by those of n words; without a, the number b is what they map.

    The words are read as tiles like the arrays in `scan.columns`: each place along the axis takes
    several that follow one another.
    """
    LANES: tl.constexpr = plan.outer_size * plan.lanes
    PLACES: tl.constexpr = plan.places
    FOLD: tl.constexpr = plan.words
    place = tl.expand_dims(tl.arange(0, PLACES), 1 - axis).to(plan.index)
    for first in range(0, n, PLACES * FOLD):
        start = first + place * FOLD
        found = ()
        for s in tl.static_range(FOLD):
            awaited = (start + s < n) & inside
            pointer = words + ((start + s) * LANES + lane)
            word = tl.load(pointer, mask=awaited, other=IDENTITY, volatile=True)
            found = found + ((word, pointer),)
        maps = unpack(wait_for(found[0][0], found[0][1]))
        for s in tl.static_range(1, FOLD):
            next_a, next_b = unpack(wait_for(found[s][0], found[s][1]))
            maps = then(maps[0], maps[1], next_a, next_b)
        if PLACES > 1:
            maps = tl.associative_scan(maps, axis, then)
        composed = coefficient(maps[0])
        is_last = place == PLACES - 1
        b = only(is_last, follow(composed, maps[1], b), axis)
        if a is not None:
            a = only(is_last, gate(composed, a), axis)
    return a, b


@triton.jit
def exchange(plan: tl.constexpr, words, part, lane, inside, at_end, a, b, h, axis: tl.constexpr):
    """The h that enters a part, from the h that enters the first one.

    Along the axis, (a, b) is the map of the part where it is `at_end`. Many parts form groups, so
    that no program reads the words of all others: the last part of a group publishes the group's
    map, behind those of the parts.
    """
    LANES: tl.constexpr = plan.outer_size * plan.lanes
    words = words.to(tl.pointer_type(tl.int64))
    own, a = tl.broadcast(words + (part * LANES + lane), a)
    publish(own, pack(a, b), at_end & inside)
    if plan.groups == 1:
        return after(plan, words, part, lane, inside, None, h, axis)[1]
    else:
        group, n = part // plan.group, part % plan.group
        nothing = tl.full(h.shape, 1, plan.dtype), tl.zeros(h.shape, plan.dtype)
        in_group = words + group * (plan.group * LANES)
        e, f = after(plan, in_group, n, lane, inside, nothing[0], nothing[1], axis)
        a, b = then(e, f, a, b)
        words += plan.parts * LANES
        own, a = tl.broadcast(words + (group * LANES + lane), a)
        publish(own, pack(a, b), at_end & inside & (n == plan.group - 1))
        h = after(plan, words, group, lane, inside, None, h, axis)[1]
        return follow(coefficient(e), f, h)
