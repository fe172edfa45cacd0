"""How operands are laid out in memory.

Any array is seen as (outer, time, inner), row-major. Axes on either side of time are merged as far
as every operand allows; an operand that is shared along an axis has stride 0 there.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

type Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Strides of an operand, in elements, along the merged axes; its length along time; and how
    many numbers it holds for a row: one, or one for every action."""

    outer: Shape
    time: int
    inner: Shape
    rows: int
    width: int


def _merge(sizes: Sequence[int], operands: Sequence[Sequence[int]]) -> tuple[Shape, list[Shape]]:
    """Merges neighbouring axes; returns the merged sizes and each operand's merged sizes."""
    merged: list[int] = []
    parts: list[list[int]] = [[] for _ in operands]
    shared: list[bool] | None = None
    for axis, size in enumerate(sizes):
        if size == 1:
            continue
        now = [x[axis] == 1 for x in operands]
        if now == shared:
            merged[-1] *= size
            for part, x in zip(parts, operands, strict=True):
                part[-1] *= x[axis]
        else:
            merged.append(size)
            for part, x in zip(parts, operands, strict=True):
                part.append(x[axis])
            shared = now
    return tuple(merged), [tuple(part) for part in parts]


ONE_ROW = ("bootstrap_value", "last_terminated", "init")
"""Operands that belong to no row: they have one, however long time is."""


def layouts(
    shapes: Mapping[str, Shape], widths: Mapping[str, int], axis: int, length: int
) -> tuple[Shape, Shape, tuple[Layout, ...]]:
    """The merged sizes along outer and inner, and the layout of each operand."""
    full = [max(sizes) for sizes in zip(*shapes.values(), strict=True)]
    outer, outers = _merge(full[:axis], [s[:axis] for s in shapes.values()])
    inner, inners = _merge(full[axis + 1 :], [s[axis + 1 :] for s in shapes.values()])
    found = []
    for (name, shape), o, i in zip(shapes.items(), outers, inners, strict=True):
        width = widths.get(name, 1)
        sizes = (*o, shape[axis], *i)
        strides = [width * math.prod(sizes[k + 1 :]) for k in range(len(sizes))]
        along = [stride if n != 1 else 0 for stride, n in zip(strides, sizes, strict=True)]
        # in a window of one row, what is shared along time and what is not look the same
        has_rows = shape[axis] == length and name not in ONE_ROW
        found.append(
            Layout(
                outer=tuple(along[: len(o)]),
                time=strides[len(o)] if has_rows or shape[axis] > 1 else 0,
                inner=tuple(along[len(o) + 1 :]),
                rows=shape[axis],
                width=width,
            )
        )
    return outer, inner, tuple(found)
