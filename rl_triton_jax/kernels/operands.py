"""How a kernel reads its operands and writes its results.

A kernel gets its operands as one tuple of pointers and, at compile time, a plan
(`rl_triton_jax.launch.plan.Plan`) that says which operands there are and how each is laid out.
Arrays are seen as (outer, time, inner): the index along outer and inner is a *lane*, and a tile of
the kernel covers several rows of several lanes. A stride of 0 is an operand that is shared along
an axis.

`x` is (pointers, outer, inner, inside, t, loaded, counting): the operands, the tile's index along
outer and inner, which of its lanes exist, its rows, what has been read of them and of their
neighbours, and what `masks` knows of rows that a mask does not count. A row is named by its offset
`o` from t, a constant: 0, or that of the neighbour that is computed before it; observation-aligned
flags are also read from the neighbour on the other side.
"""

import triton
import triton.language as tl


@triton.constexpr_function
def has(plan, name):
    """Whether the call has this operand."""
    return name in plan.operands


@triton.constexpr_function
def wants(plan, name):
    """Whether the call asks for this result."""
    return name in plan.results


@triton.constexpr_function
def slot(names, name):
    return names.index(name)


@triton.constexpr_function
def layout_of(plan, name):
    return plan.layouts[plan.operands.index(name)]


@triton.constexpr_function
def rows_of(plan, name):
    return plan.rows[plan.results.index(name)]


@triton.constexpr_function
def behind(plan, name):
    """The operand that is read for the row after the last one of this operand; or None."""
    return dict(plan.behind).get(name)


@triton.constexpr_function
def lanes_vary(plan, layout):
    """Whether the tile's lanes read different numbers."""
    return any(layout.inner if plan.columns else layout.outer)


@triton.constexpr_function
def count(things):
    return len(things)


@triton.jit
def spread(n, sizes: tl.constexpr, strides: tl.constexpr):
    """The offset of index n over axes of these sizes, the last one fastest."""
    offset = 0
    for axis in tl.static_range(count(sizes) - 1, -1, -1):
        if strides[axis] != 0:
            if axis == 0:
                offset += n * strides[axis]
            else:
                offset += (n % sizes[axis]) * strides[axis]
        n = n // sizes[axis]
    return offset


@triton.constexpr_function
def masked(plan):
    """Whether some rows do not count."""
    return "mask" in plan.operands


@triton.constexpr_function
def past_mask(plan, offset):
    """Whether the row at this offset is the nearest one that counts, rather than the nearest."""
    return "mask" in plan.operands and offset != 0


@triton.jit
def exists_in(plan: tl.constexpr, x, o: tl.constexpr, rows: tl.constexpr):
    """Where in the tile row t + o exists."""
    if past_mask(plan, o):
        _counts, before, _first, _last = x[6]
        return (before >= 0) & (before < rows)
    else:
        return (x[4] >= -o) & (x[4] < rows - o)


@triton.jit
def counts(plan: tl.constexpr, x, o: tl.constexpr):
    """Where in the tile row t + o exists and counts."""
    if masked(plan):
        return x[6][0]
    else:
        return exists_in(plan, x, o, plan.length)


@triton.jit
def is_first(plan: tl.constexpr, x, o: tl.constexpr):
    """Where in the tile t + o is the first row that counts."""
    if masked(plan):
        return x[4] == x[6][2]
    else:
        return x[4] == -o


@triton.jit
def is_last(plan: tl.constexpr, x, o: tl.constexpr):
    """Where in the tile t + o is the last row that counts."""
    if past_mask(plan, o):
        return x[6][1] == x[6][3]
    elif masked(plan):
        return x[4] == x[6][3]
    else:
        return x[4] == plan.length - 1 - o


@triton.constexpr_function
def load_slot(plan, name, offset):
    """Where `loaded` has a row of an operand: first what all rows share, then the row, then its
    neighbour."""
    if name in plan.shared:
        return plan.shared.index(name)
    neighbours = len(plan.with_rows) if offset != 0 else 0
    return len(plan.shared) + neighbours + plan.with_rows.index(name)


@triton.constexpr_function
def is_loaded(plan, loaded, name, offset):
    """Whether this row of this operand has been read."""
    near = name in plan.with_rows and offset in (0, -plan.direction)
    return len(loaded) > 0 and (near or name in plan.shared)


@triton.jit
def address(plan: tl.constexpr, x, name: tl.constexpr, o: tl.constexpr):
    """Where row t + o of an operand is."""
    pointers, outer, inner, _inside, t, _loaded, counting = x
    layout: tl.constexpr = layout_of(plan, name)
    pointer = pointers[slot(plan.operands, name)] + tl.zeros([1, 1], tl.int32)  # a tile, always
    pointer += spread(outer, plan.outer, layout.outer) + spread(inner, plan.inner, layout.inner)
    if layout.time == 0:
        return pointer
    elif past_mask(plan, o):
        return pointer + counting[1] * layout.time
    else:
        return pointer + t * layout.time + o * layout.time


@triton.jit
def load(plan: tl.constexpr, x, name: tl.constexpr, o: tl.constexpr, pointer, sure: tl.constexpr):
    """What is there; 0 outside of the operand. Rows that are `sure` to exist need no mask."""
    layout: tl.constexpr = layout_of(plan, name)
    last: tl.constexpr = behind(plan, name) if o > 0 else None
    if last is not None:
        pointer = tl.where(is_last(plan, x, o - 1), address(plan, x, last, 0), pointer)
    ragged: tl.constexpr = lanes_vary(plan, layout) and not plan.whole
    if sure:
        if ragged:
            return tl.load(pointer, mask=x[3], other=0)
        else:
            return tl.load(pointer)
    else:
        exists = exists_in(plan, x, o, layout.rows if last is None else layout.rows + 1)
        if ragged:
            return tl.load(pointer, mask=exists & x[3], other=0)
        else:
            return tl.load(pointer, mask=exists, other=0)


@triton.jit
def raw(plan: tl.constexpr, x, name: tl.constexpr, o: tl.constexpr):
    """Row t + o of an operand, in its own type; 0 outside of it.

    A neighbouring row that has not been read ahead is another load of what the neighbour loads for
    itself: the two are the same instruction to the compiler, which then keeps one.
    """
    if is_loaded(plan, x[5], name, o):
        return x[5][load_slot(plan, name, o)]
    else:  # Triton compiles what stands behind a return, and the types may differ
        sure: tl.constexpr = layout_of(plan, name).time == 0 or (plan.even and o == 0)
        return load(plan, x, name, o, address(plan, x, name, o), sure)


@triton.jit
def read(plan: tl.constexpr, x, name: tl.constexpr, o: tl.constexpr):
    """Row t + o of a floating or integer operand, in the accumulation type."""
    return raw(plan, x, name, o).to(plan.dtype)


@triton.jit
def read_or_zero(plan: tl.constexpr, x, name: tl.constexpr, o: tl.constexpr):
    """Row t + o of an operand that may be absent."""
    if has(plan, name):
        return read(plan, x, name, o)
    else:
        return tl.zeros([1, 1], plan.dtype)


@triton.jit
def write(plan: tl.constexpr, x, results, name: tl.constexpr, value):
    """Stores row t of a result, if that is asked for; `results` are pointers, and tiles of them."""
    if wants(plan, name):
        if masked(plan):
            value = tl.where(counts(plan, x, 0), value, 0)
        pointer = results[1][slot(plan.results, name)]
        value = value.to(pointer.dtype.element_ty)
        if not plan.even:
            tl.store(pointer, value, mask=exists_in(plan, x, 0, plan.length) & x[3])
        elif plan.whole:
            tl.store(pointer, value)
        else:
            tl.store(pointer, value, mask=x[3])


@triton.jit
def write_at(
    plan: tl.constexpr,
    x,
    results,
    name: tl.constexpr,
    here,
    row: tl.constexpr,
    value,
):
    """Stores the value of the only row that is `here`, if it counts, in one row of a result."""
    if wants(plan, name):
        _operands, outer, inner, inside, t, _loaded, _counting = x
        if masked(plan):
            value = tl.where(counts(plan, x, 0), value, 0)
        pointer = results[0][slot(plan.results, name)]
        place = (outer * rows_of(plan, name) + row) * plan.lanes + inner + t * 0
        value = value.to(pointer.dtype.element_ty)
        tl.store(pointer + place, value, mask=here & inside)
