"""The product that cuts: 0 where the coefficient is exactly 0, whatever stands beside it."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from rl_triton_jax import rules


def gate(coefficient: jax.Array, x: jax.Array) -> jax.Array:
    """`coefficient * x`, but exactly 0 where the coefficient is 0, even if x is NaN or infinite.

    An episode's end is a coefficient of 0, so nothing behind it, not even NaN, crosses it. It is a
    primitive of its own because its derivative by the coefficient is the product's, x (0 where x is
    not finite), in every order; a `jnp.where` would give 0 at the cut.
    """
    return gate_p.bind(*rules.same_varying(coefficient, x))


gate_p = Primitive("gate")
gate_p.def_impl(partial(xla.apply_primitive, gate_p))


@gate_p.def_abstract_eval
def _type(coefficient, x):
    shape = jnp.broadcast_shapes(coefficient.shape, x.shape)
    return rules.result_type(shape, x.dtype, (coefficient, x), replicated=())


def _batch(args, dims):
    position = rules.batch_axis(dims)
    return gate_p.bind(*rules.batch_together(args, dims, position)), position


def _jvp(primals, tangents):
    coefficient, x = primals
    d_coefficient, dx = tangents
    terms = []
    if type(d_coefficient) is not ad.Zero:
        terms.append(d_coefficient * jnp.where(jnp.isfinite(x), x, jnp.zeros_like(x)))
    if type(dx) is not ad.Zero:
        terms.append(gate(coefficient, dx))
    out = gate(coefficient, x)
    if not terms:
        return out, rules.zero_tangent(out)
    tangent = terms[0] if len(terms) == 1 else terms[0] + terms[1]
    return out, jnp.broadcast_to(tangent, out.shape)


def _transpose(cotangent, coefficient, x):
    if type(cotangent) is ad.Zero:
        return None, ad.Zero(x.aval)
    return None, rules.unbroadcast(gate(coefficient, cotangent), x.aval)


def _lower(coefficient, x):
    product = coefficient * x
    return (jnp.where(coefficient == 0, jnp.zeros_like(product), product),)


batching.primitive_batchers[gate_p] = _batch
ad.primitive_jvps[gate_p] = _jvp
ad.primitive_transposes[gate_p] = _transpose
mlir.register_lowering(gate_p, rules.lower_as(_lower))
