"""The linear recurrence itself, and its derivative."""

import jax
import jax.numpy as jnp

from rl_triton_jax.recurrences.gate import gate
from rl_triton_jax.recurrences.rows import Arrays, Rows


def linear_recurrence(x: Rows) -> Arrays:
    """h_t = a_t h_{t-1} + b_t, or h_t = a_t h_{t+1} + b_t in reverse; init precedes them all."""
    return {"h": x.solve(lambda y: (y.a, y.b), reverse=x.options["reverse"], init=x.init)}


def linear_recurrence_vjp(x: Rows) -> Arrays:
    """From the cotangent h̄, in the other direction: b̄_t = h̄_t + a_{t+1} b̄_{t+1}  (a_{t-1} b̄_{t-1}
    in reverse); init's is a b̄ of the row computed first.
    """
    reverse = x.options["reverse"]

    def neighbour(y: Rows) -> jax.Array:
        return y.previous(lambda z: z.a) if reverse else y.next(lambda z: z.a)

    g = x.solve(lambda y: (neighbour(y), y.h), reverse=not reverse)
    seed = gate(x.a, g)
    return {"b": g, "init": x.last(seed) if reverse else x.first(seed)}


def linear_recurrence_tangent(x: Rows) -> Arrays:
    """ḣ_t = a_t ḣ_{t-1} + (ḃ_t + ȧ_t h_{t-1}), from those of the tangents `da`, `db`, `dinit`
    that there are.
    """

    def terms(y: Rows) -> tuple[jax.Array, jax.Array]:
        tangents = [] if y.db is None else [y.db]
        if y.da is not None:
            shift = y.next if y.options["reverse"] else y.previous
            before = shift(lambda z: z.h, edge=y.init)
            tangents.append(y.da * jnp.where(jnp.isfinite(before), before, jnp.zeros_like(before)))
        nothing = jnp.zeros((1,) * len(y.shape), y.dtype)
        return y.a, sum(tangents[1:], start=tangents[0]) if tangents else nothing

    return {"h": x.solve(terms, reverse=x.options["reverse"], init=x.dinit)}
