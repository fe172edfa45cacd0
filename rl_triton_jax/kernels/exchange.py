"""How programs that share a window of time pass the carry on, within one launch.

A program's part of the rows is one affine map h -> a h + b a lane. It is published as one 64-bit
word, so that map and readiness cannot be seen apart: a word is 0 until it is written, and never
after. A program composes the words of all parts that are computed before its own, in their order
whatever the timing, so repeats are bitwise equal. Those parts have smaller program numbers: a
program waits only for programs that the GPU has started before it.
"""

import triton
import triton.language as tl

from rl_triton_jax.kernels.gate import follow, then

IDENTITY: tl.constexpr = tl.constexpr(0x3F80_0000_0000_0000)
"""The word of a = 1, b = 0."""

PATIENCE: tl.constexpr = tl.constexpr(1 << 22)
"""Polls, of half a microsecond and more, before a program gives up and computes NaN."""


@triton.jit
def pack(a, b):
    """Two float32 as a word that is not 0: where a is 0, its sign is set."""
    a = tl.where(a == 0, -0.0, a)
    high = a.to(tl.int32, bitcast=True).to(tl.int64) << 32
    return high | (b.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def unpack(word):
    """The two numbers of a word."""
    a = (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return a, word.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def only(here, value, axis: tl.constexpr):
    """The value at the only place along the axis that is `here`."""
    return tl.sum(tl.where(here, value, 0), axis, keep_dims=True)


@triton.jit
def exchange(plan: tl.constexpr, words, part, lane, inside, at_end, a, b, h, axis: tl.constexpr):
    """The h that enters a part, from the h that enters the first one.

    Along the axis, (a, b) is the map of the part where it is `at_end`.
    """
    LANES: tl.constexpr = plan.outer_size * plan.lanes
    words = words.to(tl.pointer_type(tl.int64))
    own, a = tl.broadcast(words + (part * LANES + lane), a)
    tl.atomic_xchg(own, pack(a, b), mask=at_end & inside, sem="relaxed", scope="gpu")
    place = tl.expand_dims(tl.arange(0, plan.parts_read), 1 - axis).to(plan.index)
    for first in range(0, part, plan.parts_read):
        earlier = first + place
        pointer = words + (earlier * LANES + lane)
        awaited = (earlier < part) & inside
        ready = 0
        tries = 0
        while (ready == 0) & (tries < PATIENCE):
            found = tl.load(pointer, mask=awaited, other=IDENTITY, volatile=True)
            ready = tl.min(tl.min((found != 0).to(tl.int32), 1), 0)
            tries += 1
        # Several threads may hold copies of one element, each from a load of its own, and `ready`
        # has seen one of them: after the barrier all read what is there.
        tl.debug_barrier()
        maps = unpack(tl.load(pointer, mask=awaited, other=IDENTITY, volatile=True))
        all_a, all_b = tl.associative_scan(maps, axis, then)
        following = tl.where(ready == 1, follow(all_a, all_b, h), float("nan"))
        h = only(place == plan.parts_read - 1, following, axis)
    return h
