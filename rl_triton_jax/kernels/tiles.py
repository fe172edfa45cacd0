"""The rows of a chunk, reached from tiles of pointers to its first one.

A step from row to row is a constant and ends up in the instructions. What functions take is kept
small: the text of every call, types and all, is part of what the host hashes at every launch.
"""

import triton
import triton.language as tl

from rl_triton_jax.kernels.operands import address, count, layout_of, load, raw


@triton.constexpr_function
def row_strides(plan):
    """From one row to the next, of the operands with rows."""
    return tuple(layout_of(plan, name).time for name in plan.with_rows)


@triton.constexpr_function
def result_strides(plan):
    """From one row to the next, of the results."""
    return tuple(plan.lanes * width for width in plan.widths)


@triton.jit
def moved(tiles, step, strides: tl.constexpr):
    """Tiles of pointers, so many rows on."""
    found = ()
    for i in tl.static_range(count(strides)):
        found = found + (tiles[i] + step * strides[i],)
    return found


@triton.jit
def tiles_of(plan: tl.constexpr, x):
    """Row t of the operands with rows: pointers."""
    tiles = ()
    for i in tl.static_range(count(plan.with_rows)):
        tiles = tiles + (address(plan, x, plan.with_rows[i], 0),)
    return tiles


@triton.jit
def result_tiles(plan: tl.constexpr, x, results):
    """Row t of the results: pointers."""
    _operands, outer, inner, _inside, t, _loaded, _counting = x
    tiles = ()
    for i in tl.static_range(count(plan.results)):
        first = outer * (plan.rows[i] * plan.lanes) + inner
        tiles = tiles + (results[i] + (first + t * plan.lanes) * plan.widths[i],)
    return tiles


@triton.jit
def fetch(plan: tl.constexpr, x, tiles):
    """Row t of the operands with rows; what no term asks for is never read."""
    loaded = ()
    for i in tl.static_range(count(plan.with_rows)):
        loaded = loaded + (load(plan, x, plan.with_rows[i], 0, tiles[i], plan.even),)
    return loaded


@triton.jit
def fetch_named(plan: tl.constexpr, x, names: tl.constexpr, o: tl.constexpr):
    """Row t + o of these operands, from where it is."""
    loaded = ()
    for i in tl.static_range(count(names)):
        loaded = loaded + (raw(plan, x, names[i], o),)
    return loaded
