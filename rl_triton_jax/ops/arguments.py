"""From a user's arguments to operands in normal form, or to an error that says what is wrong.

Normal form: every operand has the rank of the first one, each axis full or 1. A value per lane
gets a time axis of size 1, a scalar is 1 everywhere; nothing is copied or transposed.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rl_triton_jax import config
from rl_triton_jax.primitives.linear_op import accumulation_type


class Arguments:
    """The arguments of one call of an operation.

    Args:
      op: the operation's name, for messages.
      name: of the argument that sets the shape.
      array: that argument.
      axis: where time is in it.
    """

    def __init__(self, op: str, name: str, array: ArrayLike, axis: int):
        self.op, self.leader = op, name
        self._data: dict[str, Any] = {}
        self._coefficients: dict[str, Any] = {}
        self._as_they_are: dict[str, Any] = {}
        self.shape = self._array(name, array).shape
        if not self.shape:
            self.refuse(name, "a scalar", "an array with a time axis")
        try:
            axis = operator.index(axis)
        except TypeError:
            self.refuse("axis", repr(axis), "an int", error=TypeError)
        if not -len(self.shape) <= axis < len(self.shape):
            self.refuse("axis", axis, f"an axis of {name}, which has shape {self.shape}")
        self.axis = axis % len(self.shape)
        self.lanes = self.shape[: self.axis] + self.shape[self.axis + 1 :]
        self.rows(name, array)

    def refuse(self, name: str, got: object, expected: str, error: type[Exception] = ValueError):
        """Raises the error of a wrong argument."""
        raise error(f"{self.op}: {name}: got {got}, expected {expected}")

    def rows(self, name: str, array: ArrayLike | None, *, store_as: str | None = None) -> None:
        """Adds data with a value for every row and lane."""
        if array is not None:
            self._data[store_as or name] = self.exact(name, array)

    def values(self, name: str, array: ArrayLike, *, read: bool) -> bool:
        """Adds values if they are read; returns whether they have a row behind the last one."""
        x = self._array(name, array)
        rows = self.shape[self.axis]
        longer = (*self.shape[: self.axis], rows + 1, *self.shape[self.axis + 1 :])
        if x.shape not in (self.shape, longer):
            self.refuse(
                name,
                f"shape {x.shape}",
                f"the shape of {self.leader}, {self.shape}, or {longer} with the bootstrap",
            )
        if read:
            self._data[name] = x
        return x.shape == longer

    def per_lane(self, name: str, array: ArrayLike | None) -> None:
        """Adds data with one value for every lane, or a scalar."""
        if array is not None:
            self._data[name] = self._lanes_or_scalar(name, array)

    def flags(self, name: str, array: ArrayLike | None) -> None:
        """Adds flags for every row and lane."""
        if array is not None:
            self._as_they_are[name] = self.exact(name, array)

    def last_flag(self, name: str, array: ArrayLike | None) -> None:
        """Adds flags for every lane."""
        if array is not None:
            self._as_they_are[name] = self._lanes_or_scalar(name, array)

    def coefficient(self, name: str, array: ArrayLike) -> None:
        """Adds γ or λ: a scalar, a value per lane, or full rank with each axis full or 1."""
        self._coefficients[name] = self._broadcasting(name, array)

    def data_coefficient(self, name: str, array: ArrayLike) -> None:
        """Adds a coefficient that takes part in the type of the result."""
        self._data[name] = self._broadcasting(name, array)

    def _broadcasting(self, name: str, array: ArrayLike) -> jax.Array:
        x = self._array(name, array)
        if x.ndim == len(self.shape):
            if any(n not in (1, full) for n, full in zip(x.shape, self.shape, strict=True)):
                self.refuse(
                    name, f"shape {x.shape}", f"each axis 1 or that of {self.leader}, {self.shape}"
                )
            return x
        return self._lanes_or_scalar(name, array)

    def scalar(self, name: str, array: ArrayLike | None) -> None:
        """Adds a scalar coefficient."""
        if array is None:
            return
        x = self._array(name, array)
        if x.ndim:
            self.refuse(name, f"shape {x.shape}", "a scalar")
        self._coefficients[name] = jnp.reshape(x, (1,) * len(self.shape))

    def ratios(self, **arrays: ArrayLike | None) -> None:
        """Adds the one of these that is given: a scalar, or a value for every row and lane."""
        name, array = self.one_of(**arrays)
        x = self._array(name, array)
        x = self.exact(name, x) if x.ndim else jnp.reshape(x, (1,) * len(self.shape))
        self._as_they_are[name] = _floating(x)

    def one_of(self, **arrays: ArrayLike | None) -> tuple[str, ArrayLike]:
        """The one of these that is given, and its name."""
        given = [(name, x) for name, x in arrays.items() if x is not None]
        if len(given) != 1:
            got = " and ".join(name for name, _ in given) or "none of them"
            self.refuse(" and ".join(arrays), got, "exactly one of them")
        return given[0]

    def table(
        self, name: str, array: ArrayLike, *, like: str | None = None, typed: bool = True
    ) -> None:
        """Adds numbers for every row, lane and action: as many actions as another table has.

        They are data, unless they take no part in the type of the result.
        """
        x = self._array(name, array)
        if x.ndim != len(self.shape) + 1 or x.shape[:-1] != self.shape:
            expected = f"the shape of {self.leader}, {self.shape}, and an axis of actions"
            self.refuse(name, f"shape {x.shape}", expected)
        if like is not None and x.shape != self._data[like].shape:
            self.refuse(name, f"shape {x.shape}", f"the shape of {like}, {self._data[like].shape}")
        if typed:
            self._data[name] = x
        else:
            self._as_they_are[name] = _floating(x)

    def integers(self, name: str, array: ArrayLike) -> None:
        """Adds an index for every row and lane, of 32 bits at least: the length of what a narrower
        one counts from the end of might not fit its type."""
        x = self.exact(name, array)
        if not jnp.issubdtype(x.dtype, jnp.integer):
            self.refuse(name, f"dtype {x.dtype}", "integers", error=TypeError)
        self._as_they_are[name] = x.astype(jnp.int32) if x.dtype.itemsize < 4 else x

    def exact(self, name: str, array: ArrayLike) -> jax.Array:
        """A number for every row and lane."""
        x = self._array(name, array)
        if x.shape != self.shape:
            self.refuse(name, f"shape {x.shape}", f"the shape of {self.leader}, {self.shape}")
        return x

    def choice(self, name: str, value: object, options: tuple[str, ...]) -> None:
        """Checks an argument that is one of a few words."""
        if value not in options:
            self.refuse(name, repr(value), "one of " + ", ".join(map(repr, options)))

    def varies_in_time(self, name: str) -> bool:
        """Whether a coefficient has more than one row."""
        return self._coefficients[name].shape[self.axis] != 1

    def call(
        self,
        op: Callable[..., list[jax.Array]],
        implementation: str | None,
        *,
        keep_integers: bool = False,
        **options: Any,
    ) -> list[jax.Array]:
        """Runs the operation on what was added."""
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(*self._data.values())
            if not jnp.issubdtype(dtype, jnp.floating):
                if not keep_integers:
                    dtype = jnp.result_type(dtype, float)
                elif dtype == jnp.bool:
                    dtype = jnp.result_type(int)
        floating = {n: jnp.issubdtype(x.dtype, jnp.floating) for n, x in self._data.items()}
        data = {
            n: x if floating[n] and not x.weak_type else x.astype(dtype)
            for n, x in self._data.items()
        }
        accumulation = accumulation_type(dtype)
        coefficients = {n: x.astype(accumulation) for n, x in self._coefficients.items()}
        return op(
            data | coefficients | self._as_they_are,
            axis=self.axis,
            out_dtype=dtype,
            implementation=config.requested(implementation, self.op),
            **options,
        )

    def _array(self, name: str, array: ArrayLike) -> jax.Array:
        try:
            x = jnp.asarray(array)
        except (TypeError, ValueError):
            dtype = f"dtype {np.asarray(array).dtype}"
            got = dtype if np.ndim(array) else f"{array!r}, of {dtype}"
            self.refuse(name, got, "an array of numbers", error=TypeError)
        if not jnp.issubdtype(x.dtype, jnp.number) and x.dtype != jnp.bool:
            self.refuse(name, f"dtype {x.dtype}", "an array of numbers", error=TypeError)
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            self.refuse(name, f"dtype {x.dtype}", "real numbers", error=TypeError)
        return x

    def _lanes_or_scalar(self, name: str, array: ArrayLike) -> jax.Array:
        x = self._array(name, array)
        if x.ndim == 0:
            return jnp.reshape(x, (1,) * len(self.shape))
        if x.shape != self.lanes:
            self.refuse(
                name,
                f"shape {x.shape}",
                f"a scalar or {self.lanes}: the shape of {self.leader} without time",
            )
        return jnp.expand_dims(x, self.axis)


def _floating(x: jax.Array) -> jax.Array:
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)
