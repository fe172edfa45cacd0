"""Two ways to run h_t = b_t + a_t h_{t-1} (or h_{t+1}) in XLA; a_t = 0 selects in both."""

import jax
import jax.numpy as jnp
from jax import lax

from rl_triton_jax.recurrences.gate import gate
from rl_triton_jax.recurrences.rows import Rows, Solver, Terms


def _then(first, second):
    """The affine map h -> a h + b of `first`, followed by that of `second`."""
    (a1, b1), (a2, b2) = first, second
    return gate(a2, a1), b2 + gate(a2, b1)


def associative(x: Rows, terms: Terms, init: jax.Array | None, reverse: bool) -> jax.Array:
    """A parallel scan over time: `jax.lax.associative_scan` of affine maps."""
    a, b = (x.every_row(y) for y in terms(x))
    b = jnp.broadcast_to(
        b, jnp.broadcast_shapes(a.shape, b.shape)
    )  # a may stay shared, b becomes h
    a, b = lax.associative_scan(_then, (a, b), reverse=reverse, axis=x.axis)
    h = b if init is None else b + gate(a, init)
    return jnp.broadcast_to(h, x.shape)


def sequential(x: Rows, terms: Terms, init: jax.Array | None, reverse: bool) -> jax.Array:
    """A loop over time that reads the operands row by row, so that a and b are never stored.

    With a mask, shifted reads need more than the neighbouring row: a and b are stored then.
    """
    if x.counts is not None:
        a, b = terms(x)
        x, terms = x.beside({"b": jnp.broadcast_to(b, x.shape), "a": a}), lambda y: (y.a, y.b)

    def step(i, state):
        rows, h = state
        t = x.length - 1 - i if reverse else i
        a, b = terms(x.at(t))
        h = jnp.broadcast_to(b + gate(a, h), x.lanes)
        return lax.dynamic_update_slice_in_dim(rows, h, t, x.axis), h

    rows = jnp.zeros(x.shape, x.dtype)
    h = jnp.zeros(x.lanes, x.dtype) if init is None else jnp.broadcast_to(init, x.lanes)
    return lax.fori_loop(0, x.length, step, (rows, h))[0]


SOLVERS: dict[str, Solver] = {"associative_scan": associative, "scan": sequential}
