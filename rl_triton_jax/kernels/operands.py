"""How a kernel reads its operands and writes its results.

A kernel gets its operands as one tuple of pointers and, at compile time, a plan
(`rl_triton_jax.launch.plan.Plan`) that says which operands there are and how each is laid out.
Arrays are seen as (outer, time, inner): the index along outer and inner is a *lane*, and a tile of
the kernel covers several rows of several lanes. A stride of 0 is an operand that is shared along
an axis.

`x` is (pointers, outer, inner, inside, t, loaded, counting): the operands, the tile's index along
outer and inner, which of its lanes exist, its rows, what `fetch` has read of them, and what `masks`
knows of rows that a mask does not count. A row is named by its offset `o` from t, a constant: so
that the address of any row is that of t and a number in the instruction.
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
def always(plan, offset):
    """Whether the row at this offset exists everywhere in every tile."""
    return plan.span[0] <= offset <= plan.span[1]


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
def fetched(plan, has_rows):
    """The operands that `fetch` reads: those with a number for every row, those with one for all.
    What belongs to the first or the last row alone, few tiles need."""
    return tuple(
        name
        for name, layout in zip(plan.operands, plan.layouts, strict=True)
        if layout.width == 1 and (layout.time != 0) == has_rows
        if name not in ("bootstrap_value", "last_terminated", "init")
    )


@triton.constexpr_function
def load_slot(plan, name, offset):
    """Where `loaded` has this row of an operand: the neighbour of the first row is in front."""
    shared, with_rows = fetched(plan, False), fetched(plan, True)
    if name in shared:
        return shared.index(name)
    row = offset * plan.direction + 1
    return len(shared) + row * len(with_rows) + with_rows.index(name)


@triton.constexpr_function
def is_loaded(plan, loaded, name, offset):
    """Whether `fetch` has read this row of this operand."""
    if name in fetched(plan, True) and offset * plan.direction < -1:
        return False
    known = name in fetched(plan, True) + fetched(plan, False)
    return known and load_slot(plan, name, offset) < len(loaded)


@triton.jit
def fetch(plan: tl.constexpr, x, S: tl.constexpr):
    """S rows and the neighbour before them, of every operand that has a number for every row, and
    the numbers that all rows share; what no term asks for is never read."""
    loaded = ()
    for i in tl.static_range(count(fetched(plan, False))):
        loaded = loaded + (raw(plan, x, fetched(plan, False)[i], 0),)
    for s in tl.static_range(S + 1):
        for i in tl.static_range(count(fetched(plan, True))):
            loaded = loaded + (raw(plan, x, fetched(plan, True)[i], plan.direction * (s - 1)),)
    return loaded


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
def raw(plan: tl.constexpr, x, name: tl.constexpr, o: tl.constexpr):
    """Row t + o of an operand, in its own type; 0 outside of it.

    A neighbouring row is another load of what the neighbour loads for itself: with o a constant the
    two are the same instruction to the compiler, which then keeps one.
    """
    inside, loaded = x[3], x[5]
    layout: tl.constexpr = layout_of(plan, name)
    if is_loaded(plan, loaded, name, o):
        return loaded[load_slot(plan, name, o)]
    pointer = address(plan, x, name, o)
    ragged: tl.constexpr = lanes_vary(plan, layout) and not plan.whole
    if layout.time == 0 or always(plan, o):
        if ragged:
            return tl.load(pointer, mask=inside, other=0)
        else:
            return tl.load(pointer)
    else:
        exists = exists_in(plan, x, o, layout.rows)
        if ragged:
            return tl.load(pointer, mask=exists & inside, other=0)
        else:
            return tl.load(pointer, mask=exists, other=0)


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
def write(plan: tl.constexpr, x, o: tl.constexpr, results, name: tl.constexpr, value):
    """Stores row t + o of a result, if that is asked for."""
    if wants(plan, name):
        _operands, outer, inner, inside, t, _loaded, _counting = x
        if masked(plan):
            value = tl.where(counts(plan, x, o), value, 0)
        pointer = results[slot(plan.results, name)]
        first = outer * (rows_of(plan, name) * plan.lanes) + inner
        pointer = pointer + (first + t * plan.lanes) + o * plan.lanes
        value = value.to(pointer.dtype.element_ty)
        if always(plan, o):
            if plan.whole:
                tl.store(pointer, value)
            else:
                tl.store(pointer, value, mask=inside)
        else:
            tl.store(pointer, value, mask=exists_in(plan, x, o, plan.length) & inside)


@triton.jit
def write_at(
    plan: tl.constexpr,
    x,
    o: tl.constexpr,
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
            value = tl.where(counts(plan, x, o), value, 0)
        pointer = results[slot(plan.results, name)]
        place = (outer * rows_of(plan, name) + row) * plan.lanes + inner + t * 0
        value = value.to(pointer.dtype.element_ty)
        tl.store(pointer + place, value, mask=here & inside)
