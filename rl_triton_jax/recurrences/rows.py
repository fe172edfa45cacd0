"""How a recurrence reads its operands: whole arrays over time, or one row of them inside a loop.

The recurrences are written once, against `Rows`: `x.rewards` is all rows when `associative_scan`
or a derivative evaluates them, and row t when a sequential loop does. Every operand has the same
rank, its time axis full or 1 (see `rl_triton_jax.rules`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax import lax

type Arrays = dict[str, jax.Array | None]
"""Results of a recurrence, by name; `None` for what no operand asks for."""

type Terms = Callable[[Rows], tuple[jax.Array, jax.Array]]
"""(a, b) of h_t = b_t + a_t h_{t∓1}, from the rows."""

type Solver = Callable[[Rows, Terms, jax.Array | None, bool], jax.Array]
"""(rows, terms, init, reverse) -> h, all rows of it."""


TABLES = (
    "q_values",
    "target_probs",
    "target_logits",
    "next_q_values",
    "next_target_probs",
    "next_target_logits",
)
"""What has a number for every action, along the last axis; all else beside it has size 1 there."""


def with_time(shape: tuple[int, ...], axis: int, length: int) -> tuple[int, ...]:
    """The shape with another length along time."""
    return (*shape[:axis], length, *shape[axis + 1 :])


def lanes_of(operands: Mapping[str, Any], axis: int) -> tuple[int, ...]:
    """The shape of one row of all lanes, from the shapes of the operands."""
    rows = (x.shape if n not in TABLES else (*x.shape[:-1], 1) for n, x in operands.items())
    return jnp.broadcast_shapes(*(with_time(shape, axis, 1) for shape in rows))


def shape_of(
    name: str, lanes: tuple[int, ...], axis: int, rows: int, actions: int | None
) -> tuple[int, ...]:
    """The shape of so many rows of an operand or a result."""
    shape = with_time(lanes, axis, rows)
    return (*shape[:-1], actions) if actions is not None and name in TABLES else shape


def result_types(
    results: Sequence[tuple[str, int, Any]], lanes: tuple[int, ...], axis: int, actions: int | None
) -> dict[str, jax.ShapeDtypeStruct]:
    """The shape and type of each result, from its name, rows and type."""
    return {
        name: jax.ShapeDtypeStruct(shape_of(name, lanes, axis, rows, actions), dtype)
        for name, rows, dtype in results
    }


def no_lanes(axis: int, rank: int, actions: int | None) -> tuple[int, ...]:
    """The axes that hold no lanes: time, and actions where there are any."""
    return (axis,) if actions is None else (axis, rank - 1)


class Rows:
    """The operands of one call, by name, as attributes; floating ones in the accumulation type.

    Absent operands are `None`. With a mask, rows that do not count read as 0, and `next`,
    `previous`, `first` and `last` look past them.
    """

    def __init__(
        self,
        operands: Mapping[str, jax.Array],
        *,
        length: int,
        axis: int,
        dtype: Any,
        options: Mapping[str, Any],
        solver: Solver,
        row: jax.Array | None = None,
    ):
        self._operands, self._solver, self._row = operands, solver, row
        self.length, self.axis, self.dtype, self.options = length, axis, dtype, options
        self.lanes = lanes_of(operands, axis)
        self.shape = with_time(self.lanes, axis, length)
        mask = operands.get("mask")
        self.counts = None if mask is None else mask != 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        x = self._operands.get(name)
        if x is None:
            return None
        if jnp.issubdtype(x.dtype, jnp.floating):
            x = x.astype(self.dtype)
        if x.shape[self.axis] == 1 and self.length != 1:
            return x
        if self._row is not None:
            return lax.dynamic_slice_in_dim(x, self._row, 1, self.axis)
        if x.shape[self.axis] > self.length:  # values may hold a row more
            x = lax.slice_in_dim(x, 0, self.length, axis=self.axis)
        return self.counted(x)

    def beyond(self, name: str) -> jax.Array:
        """The row behind the last one, of an operand that has one row more than the others."""
        x = self._operands[name].astype(self.dtype)
        return lax.slice_in_dim(x, self.length, self.length + 1, axis=self.axis)

    def at(self, row: jax.Array) -> Self:
        """The same operands, seen from one row."""
        return self._seen(self._operands, row)

    def beside(self, operands: Mapping[str, jax.Array]) -> Self:
        """Other operands over the same rows, without mask."""
        return self._seen(operands, None)

    def instead(self, of: Collection[str], operands: Mapping[str, jax.Array]) -> Self:
        """These operands instead of some others, over the same rows."""
        rest = {name: x for name, x in self._operands.items() if name not in of}
        return self._seen(rest | dict(operands), self._row)

    def _seen(self, operands: Mapping[str, jax.Array], row: jax.Array | None) -> Self:
        return type(self)(
            operands,
            length=self.length,
            axis=self.axis,
            dtype=self.dtype,
            options=self.options,
            solver=self._solver,
            row=row,
        )

    def counted(self, x: jax.Array) -> jax.Array:
        """x, and 0 in the rows that do not count."""
        return x if self.counts is None else jnp.where(self.counts, x, jnp.zeros_like(x))

    def every_row(self, x: jax.Array) -> jax.Array:
        """x with its time axis at full length."""
        if x.shape[self.axis] == self.length:
            return x
        return jnp.broadcast_to(x, with_time(x.shape, self.axis, self.length))

    def solve(self, terms: Terms, *, reverse: bool, init: jax.Array | None = None) -> jax.Array:
        """All h of h_t = b_t + a_t h_{t-1} (or h_{t+1}); rows that do not count hand h on."""
        counts = self.counts
        if counts is None:
            return self._solver(self, terms, init, reverse)

        def transparent(x: Rows) -> tuple[jax.Array, jax.Array]:
            a, b = terms(x)
            return jnp.where(counts, a, jnp.ones_like(a)), x.counted(b)

        return self._solver(self, transparent, init, reverse)

    def next(self, what: Callable[[Self], jax.Array], edge: jax.Array | None = None) -> jax.Array:
        """`what` at row t+1, and `edge` (0 if absent) behind the last row."""
        return self._shift(what, edge, forward=True)

    def previous(
        self, what: Callable[[Self], jax.Array], edge: jax.Array | None = None
    ) -> jax.Array:
        """`what` at row t-1, and `edge` (0 if absent) before the first row."""
        return self._shift(what, edge, forward=False)

    def first(self, x: jax.Array) -> jax.Array:
        """The first row of x (all rows of some quantity) that counts."""
        return lax.slice_in_dim(self._carried(x, reverse=True), 0, 1, axis=self.axis)

    def last(self, x: jax.Array) -> jax.Array:
        """The last row of x (all rows of some quantity) that counts."""
        x = self._carried(x, reverse=False)
        return lax.slice_in_dim(x, self.length - 1, self.length, axis=self.axis)

    def is_last(self) -> jax.Array:
        """True in the last row that counts."""
        counts = self.counts
        if counts is None:
            return self._is_row(self.length - 1)
        return self.next(lambda x: counts.astype(x.dtype)) == 0

    def _is_row(self, row: int) -> jax.Array:
        shape = (1,) * len(self.shape)
        if self._row is not None:
            return jnp.reshape(self._row == row, shape)
        return (
            lax.broadcasted_iota(jnp.int32, with_time(shape, self.axis, self.length), self.axis)
            == row
        )

    def _shift(self, what, edge, *, forward: bool) -> jax.Array:
        at_edge = self._is_row(self.length - 1 if forward else 0)
        if self._row is not None:
            x = what(self.at(self._row + 1 if forward else self._row - 1))
        else:
            x = self._carried(self.every_row(what(self)), reverse=forward, init=edge)
            cut = 1 if forward else self.length - 1  # the row that wraps around is replaced
            early, late = lax.split(x, (cut, self.length - cut), axis=self.axis)
            x = lax.concatenate([late, early], self.axis)
        return jnp.where(at_edge, jnp.zeros_like(x) if edge is None else edge, x)

    def _carried(self, x: jax.Array, *, reverse: bool, init: jax.Array | None = None) -> jax.Array:
        """Fills rows that do not count with the nearest one before, in the direction of travel."""
        if self.counts is None:
            return x
        shape = jnp.broadcast_shapes(x.shape, self.counts.shape)
        x = jnp.broadcast_to(self.counted(x), shape)
        return self._solver(
            self, lambda _: (jnp.where(self.counts, 0, 1).astype(x.dtype), x), init, reverse
        )
