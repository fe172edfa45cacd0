"""From a recurrence and its derivative to two JAX primitives: `<op>` and `<op>_vjp`.

Every operation here is linear in its data operands (rewards, values, ...) with coefficients made of
the others (gamma, flags, ratios, ...). So its derivative by the data is itself, its transpose is
`<op>_vjp`, and the transpose of that is `<op>` again: the pair is closed under every order of
forward and reverse mode. The derivative by a coefficient is JAX's own of the recurrence, with
`linear_recurrence` as the scan.

The primitives' parameters:
  operands: the names of the operands, in order; the first one has every row.
  results: (name, rows, dtype) of each result: all lanes, and so many rows along time.
  axis: where time is.
  dtype: of the accumulation.
  implementation: a name of `config.IMPLEMENTATIONS`, or None: what suits the platform.
  actions: where there are tables (`rows.TABLES`), how many actions they have.
  data: of `<op>_vjp`, what `results` says of every data operand of `<op>`, wanted or not.
All others are the recurrence's own options.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, partial_eval, xla

from rl_triton_jax import config, rules
from rl_triton_jax.primitives import lowering
from rl_triton_jax.primitives.lowering import Recurrence
from rl_triton_jax.recurrences import linear
from rl_triton_jax.recurrences.rows import Rows, Terms, lanes_of, no_lanes, result_types, shape_of
from rl_triton_jax.recurrences.solvers import SOLVERS


class LinearOp:
    """An estimator as a pair of primitives, `p` and its transpose `vjp_p`.

    Args:
      forward: the recurrence; its name is the primitive's.
      backward: its derivative by the data operands, named `<op>_vjp`; reads the results' cotangents
        and the coefficients.
      data: the operands it is linear in; the first one has every row.
      results: the names of its results.
    """

    def __init__(
        self,
        forward: Recurrence,
        backward: Recurrence,
        *,
        data: Sequence[str],
        results: Sequence[str],
    ):
        self.name, self.data, self.results = forward.__name__, tuple(data), tuple(results)
        self.forward = forward
        self.p = _primitive(forward, self.data, self._transpose)
        self.vjp_p = _primitive(backward, self.results, self._transpose_vjp)

    def __call__(
        self,
        operands: Mapping[str, jax.Array],
        *,
        axis: int,
        out_dtype: Any,
        implementation: str | None,
        **options: Any,
    ) -> list[jax.Array]:
        rows = operands[self.data[0]].shape[axis]
        params = dict(
            options,
            results=tuple((name, rows, out_dtype) for name in self.results),
            axis=axis,
            dtype=accumulation_type(out_dtype),
        )
        if config.is_unfused():
            chosen = config.resolve(implementation, None, self.name, "the reference has no kernel")
            return _evaluate(self.forward, SOLVERS[chosen], operands, **params)
        return _bind(self.p, operands, implementation=implementation, **params)

    def _transpose(self, cotangents, *primals, operands, results, axis, **params):
        given = _not_zero(results, cotangents)
        data = []
        for name, x in zip(operands, primals, strict=True):
            if name in self.data:
                aval = x.aval if ad.is_undefined_primal(x) else jax.typeof(x)
                data.append((name, aval.shape[axis], aval.dtype))
            else:
                given[name] = x
        params |= dict(axis=axis, data=tuple(data))
        return _cotangents(self.vjp_p, given, operands, primals, params)

    def _transpose_vjp(self, cotangents, *primals, operands, results, data, axis, **params):
        given = _not_zero(results, cotangents)
        rank = len(primals[-1].shape)
        actions = params.get("actions")
        still = {name: _zeros(name, rank, axis, rows, dtype, actions) for name, rows, dtype in data}
        coefficients = {
            name: x
            for name, x in zip(operands, primals, strict=True)
            if not ad.is_undefined_primal(x)
        }
        arrays = still | given | coefficients if given else {}
        return _cotangents(self.p, arrays, operands, primals, params | dict(axis=axis))


def accumulation_type(dtype: Any) -> Any:
    """At least float32; integers stay what they are."""
    short = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.dtype(jnp.float32 if short else dtype)


def _primitive(recurrence: Recurrence, linear: tuple[str, ...], transpose: Callable) -> Primitive:
    p = Primitive(recurrence.__name__)
    p.multiple_results = True
    p.def_impl(partial(xla.apply_primitive, p))
    p.def_abstract_eval(_types)
    batching.primitive_batchers[p] = partial(_batch, p)
    ad.primitive_jvps[p] = partial(_jvp, p, recurrence, linear)
    ad.primitive_transposes[p] = transpose
    partial_eval.dce_rules[p] = _drop_unused_results
    lowering.register(p, lowering.by_solver(recurrence))
    return p


def _bind(p: Primitive, operands: Mapping[str, jax.Array], **params) -> list[jax.Array]:
    return p.bind(*rules.same_varying(*operands.values()), operands=tuple(operands), **params)


def _evaluate(recurrence, solver, operands: Mapping[str, jax.Array], **params) -> list[jax.Array]:
    arrays = operands.values()
    return lowering.evaluate(recurrence, solver, *arrays, operands=tuple(operands), **params)


def _zeros(
    name: str, rank: int, axis: int, rows: int, dtype: Any, actions: int | None
) -> jax.Array:
    """Zeros shared by all lanes: what does not move, or has no cotangent."""
    return jnp.zeros(shape_of(name, (1,) * rank, axis, rows, actions), dtype)


def _types(*avals, operands, axis, results, actions=None, **_):
    lanes = lanes_of(dict(zip(operands, avals, strict=True)), axis)
    apart = no_lanes(axis, len(lanes), actions)
    return [
        rules.result_type(x.shape, x.dtype, avals, apart)
        for x in result_types(results, lanes, axis, actions).values()
    ]


def _drop_unused_results(used, *live_and_eqn):
    """What nobody reads is not written. JAX 0.12 says which inputs are live, JAX 0.11 does not."""
    eqn = live_and_eqn[-1]
    if not any(used):
        return [False] * len(eqn.invars), None
    kept = [i for i, is_used in enumerate(used) if is_used]
    results = tuple(eqn.params["results"][i] for i in kept)
    eqn = eqn.replace(
        outvars=[eqn.outvars[i] for i in kept], params=eqn.params | {"results": results}
    )
    return [True] * len(eqn.invars), eqn


def _batch(p: Primitive, args, dims, *, axis, results, **params):
    position = rules.batch_axis(dims)
    if "actions" in params and position == max(x.ndim for x in args) - 1:
        position = 0  # actions stay the last axis
    args = rules.batch_together(args, dims, position)
    out = p.bind(*args, axis=axis + (position <= axis), results=results, **params)
    return out, [position] * len(results)


def _jvp(p, recurrence, linear, primals, tangents, *, operands, implementation, **params):
    given = dict(zip(operands, primals, strict=True))
    moving = _not_zero([(name,) for name in operands], tangents)
    out = _bind(p, given, implementation=implementation, **params)
    terms = []
    if any(name in linear for name in moving):
        axis, actions = params["axis"], params.get("actions")
        data = {
            name: _zeros(name, x.ndim, axis, x.shape[axis], x.dtype, actions)
            for name, x in given.items()
            if name in linear
        }
        data |= {name: tangent for name, tangent in moving.items() if name in linear}
        terms.append(_bind(p, given | data, implementation=implementation, **params))
    moving = {name: tangent for name, tangent in moving.items() if name not in linear}
    if moving:
        solver = partial(_linear_recurrence, implementation)
        at = {name: given[name] for name in moving}
        _, by_coefficients = jax.jvp(
            lambda moved: _evaluate(recurrence, solver, given | moved, **params), (at,), (moving,)
        )
        terms.append(by_coefficients)
    if not terms:
        return out, [rules.zero_tangent(x) for x in out]
    return out, terms[0] if len(terms) == 1 else [x + y for x, y in zip(*terms, strict=True)]


def _not_zero(names: Sequence[tuple], vectors: Sequence) -> dict[str, jax.Array]:
    """The tangents or cotangents that there are, by name."""
    pairs = zip(names, vectors, strict=True)
    return {name: x for (name, *_), x in pairs if type(x) is not ad.Zero}


def _cotangents(p: Primitive, arrays: Mapping[str, jax.Array], operands, primals, params) -> list:
    """The cotangents of the operands that `p`, the other primitive of the pair, was asked for."""
    axis = params["axis"]
    wanted = {
        name: x.aval for name, x in zip(operands, primals, strict=True) if ad.is_undefined_primal(x)
    }
    results = tuple((name, x.shape[axis], x.dtype) for name, x in wanted.items())
    zeros = [ad.Zero(x) for x in wanted.values()]
    found: list[Any] = _bind(p, arrays, results=results, **params) if arrays else zeros
    by_name = {
        name: x if type(x) is ad.Zero else rules.unbroadcast(x, aval)
        for (name, aval), x in zip(wanted.items(), found, strict=True)
    }
    return [by_name.get(name) for name in operands]


def _linear_recurrence(
    implementation: str | None, x: Rows, terms: Terms, init: jax.Array | None, reverse: bool
) -> jax.Array:
    """The solver of derivatives: `linear_recurrence`, which has derivatives of its own."""
    a, b = terms(x)
    operands = {"b": x.every_row(b), "a": a} | ({} if init is None else {"init": init})
    results = (("h", x.length, x.dtype),)
    params = dict(results=results, axis=x.axis, dtype=x.dtype, reverse=reverse)
    (h,) = _bind(linear_recurrence.p, operands, implementation=implementation, **params)
    return jnp.broadcast_to(h, x.shape)


linear_recurrence = LinearOp(
    linear.linear_recurrence, linear.linear_recurrence_vjp, data=("b", "init"), results=("h",)
)


def _jvp_of_linear_recurrence(primals, tangents, *, operands, implementation, **params):
    """The base case, in which the derivatives of all others by a coefficient end."""
    given = dict(zip(operands, primals, strict=True))
    out = _bind(linear_recurrence.p, given, implementation=implementation, **params)
    moving = {f"d{n}": t for n, t in _not_zero([(n,) for n in operands], tangents).items()}
    if not moving:
        return out, [rules.zero_tangent(x) for x in out]
    arrays = given | {"h": out[0]} | moving
    solver = partial(_linear_recurrence, implementation)
    return out, _evaluate(linear.linear_recurrence_tangent, solver, arrays, **params)


ad.primitive_jvps[linear_recurrence.p] = _jvp_of_linear_recurrence
