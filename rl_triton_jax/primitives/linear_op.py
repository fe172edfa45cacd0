"""From a recurrence and its derivative to two JAX primitives: `<op>` and `<op>_vjp`.

Every operation here is linear in its data operands (rewards, values, ...) with coefficients made of
the others (gamma, flags, ratios, ...). So its derivative by the data is itself, its transpose is
`<op>_vjp`, and the transpose of that is `<op>` again: the pair is closed under every order of
forward and reverse mode. The derivative by a coefficient is JAX's own of the recurrence, with
`linear_recurrence` as the scan.

The primitives' parameters:
  operands: the names of the operands, in order.
  results: (name, rows, dtype) of each result: all lanes, and so many rows along time.
  axis: where time is.
  dtype: of the accumulation.
  implementation: a name of `config.IMPLEMENTATIONS`, or None: what suits the platform.
  data: of `<op>_vjp`, what `results` says of every data operand of `<op>`, wanted or not.
All others are the recurrence's own options.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from rl_triton_jax import config, rules
from rl_triton_jax.recurrences import linear
from rl_triton_jax.recurrences.rows import Arrays, Rows, Solver, with_time
from rl_triton_jax.recurrences.solvers import SOLVERS

type Recurrence = Callable[[Rows], Arrays]

BEHIND = {"values": "bootstrap_value"}
"""Of an operand with one row more than the others, that row's cotangent goes by this name."""


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
        out_dtype,
        implementation: str | None,
        **options,
    ) -> list[jax.Array]:
        rows = operands[self.data[0]].shape[axis]
        params = dict(
            options,
            results=tuple((name, rows, out_dtype) for name in self.results),
            axis=axis,
            dtype=accumulation_type(out_dtype),
        )
        if config.is_unfused():
            solver = SOLVERS[config.resolve(implementation, None, self.name)]
            return _evaluate(self.forward, solver, tuple(operands), *operands.values(), **params)
        return _bind(self.p, operands, implementation=implementation, **params)

    def _transpose(self, cotangents, *primals, operands, results, axis, **params):
        data, wanted, arrays = [], [], {}
        for (name, _, _), cotangent in zip(results, cotangents, strict=True):
            if type(cotangent) is not ad.Zero:
                arrays[name] = cotangent
        for name, x in zip(operands, primals, strict=True):
            if name not in self.data:
                arrays[name] = x
                continue
            aval = x.aval if ad.is_undefined_primal(x) else jax.typeof(x)
            data.append((name, aval.shape[axis], aval.dtype))
            if ad.is_undefined_primal(x):
                wanted.append((name, aval.shape[axis], aval.dtype))
        if all(type(x) is ad.Zero for x in cotangents):
            found = {}
        else:
            found = _bind(
                self.vjp_p, arrays, results=tuple(wanted), data=tuple(data), axis=axis, **params
            )
            found = {name: x for (name, _, _), x in zip(wanted, found, strict=True)}
        return [_cotangent(x, found.get(name)) for name, x in zip(operands, primals, strict=True)]

    def _transpose_vjp(self, cotangents, *primals, operands, results, data, axis, **params):
        given = {
            name: x
            for (name, _, _), x in zip(results, cotangents, strict=True)
            if type(x) is not ad.Zero
        }
        if not given:
            return [_cotangent(x, None) for x in primals]
        rank = next(iter(given.values())).ndim
        arrays = {
            name: given[name]
            if name in given
            else jnp.zeros(with_time((1,) * rank, axis, rows), dtype)
            for name, rows, dtype in data
        }
        wanted = []
        for name, x in zip(operands, primals, strict=True):
            if ad.is_undefined_primal(x):
                wanted.append((name, x.aval.shape[axis], x.aval.dtype))
            else:
                arrays[name] = x
        found = _bind(self.p, arrays, results=tuple(wanted), axis=axis, **params)
        found = {name: x for (name, _, _), x in zip(wanted, found, strict=True)}
        return [_cotangent(x, found.get(name)) for name, x in zip(operands, primals, strict=True)]


def accumulation_type(dtype):
    """At least float32; integers stay what they are."""
    return (
        jnp.promote_types(dtype, jnp.float32)
        if jnp.issubdtype(dtype, jnp.floating)
        else jnp.dtype(dtype)
    )


def _cotangent(primal, found: jax.Array | None):
    if not ad.is_undefined_primal(primal):
        return None
    return ad.Zero(primal.aval) if found is None else rules.unbroadcast(found, primal.aval.shape)


def _bind(p: Primitive, operands: Mapping[str, jax.Array], **params) -> list[jax.Array]:
    return p.bind(*rules.same_varying(*operands.values()), operands=tuple(operands), **params)


def _primitive(recurrence: Recurrence, linear: tuple[str, ...], transpose: Callable) -> Primitive:
    p = Primitive(recurrence.__name__)
    p.multiple_results = True
    p.def_impl(partial(xla.apply_primitive, p))
    p.def_abstract_eval(_types)
    batching.primitive_batchers[p] = partial(_batch, p)
    ad.primitive_jvps[p] = partial(_jvp, p, recurrence, linear)
    ad.primitive_transposes[p] = transpose
    mlir.register_lowering(p, rules.lower_as(partial(_lowered, recurrence, None)))
    mlir.register_lowering(p, rules.lower_as(partial(_lowered, recurrence, "cpu")), platform="cpu")
    return p


def _types(*avals, axis, results, **_):
    lanes = jnp.broadcast_shapes(*(with_time(x.shape, axis, 1) for x in avals))
    return [
        rules.result_type(with_time(lanes, axis, rows), dtype, avals, replicated=axis)
        for _, rows, dtype in results
    ]


def _batch(p: Primitive, args, dims, *, axis, results, **params):
    args, position = rules.batch_together(args, dims)
    out = p.bind(*args, axis=axis + (position <= axis), results=results, **params)
    return out, [position] * len(results)


def _jvp(
    p: Primitive, recurrence: Recurrence, linear: tuple[str, ...], primals, tangents, **params
):
    names, axis = params.pop("operands"), params["axis"]
    operands = dict(zip(names, primals, strict=True))
    moving = {n: t for n, t in zip(names, tangents, strict=True) if type(t) is not ad.Zero}
    out = _bind(p, operands, **params)
    terms = []
    if any(name in linear for name in moving):
        still = {
            name: jnp.zeros(with_time((1,) * x.ndim, axis, x.shape[axis]), x.dtype)
            for name, x in operands.items()
            if name in linear and name not in moving
        }
        data = {name: t for name, t in moving.items() if name in linear}
        terms.append(_bind(p, operands | still | data, **params))
    moving = {name: t for name, t in moving.items() if name not in linear}
    if moving:
        solver = partial(_linear_recurrence_solver, params["implementation"])

        def evaluate(coefficients):
            arrays = operands | coefficients
            return _evaluate(recurrence, solver, tuple(arrays), *arrays.values(), **params)

        point = {name: operands[name] for name in moving}
        terms.append(jax.jvp(evaluate, (point,), (moving,))[1])
    if not terms:
        return out, [ad.Zero.from_primal_value(x) for x in out]
    return out, terms[0] if len(terms) == 1 else [x + y for x, y in zip(*terms, strict=True)]


def _lowered(
    recurrence: Recurrence, platform: str | None, *args, operands, implementation, **params
):
    solver = SOLVERS[config.resolve(implementation, platform, recurrence.__name__)]
    return _evaluate(recurrence, solver, operands, *args, **params)


def _evaluate(
    recurrence: Recurrence,
    solver: Solver,
    names,
    *args,
    results,
    axis,
    dtype,
    implementation=None,
    data=None,
    **options,
) -> list[jax.Array]:
    """The results of a recurrence, from plain JAX operations and this solver."""
    length = args[0].shape[axis]
    wanted = tuple(name for name, _, _ in results)
    options["wanted"] = wanted
    x = Rows(
        dict(zip(names, args, strict=True)),
        length=length,
        axis=axis,
        dtype=dtype,
        options=options,
        solver=solver,
    )
    if 0 in x.shape:
        return [jnp.zeros(with_time(x.lanes, axis, rows), dtype) for _, rows, dtype in results]
    found = recurrence(x)

    def finish(name, rows, dtype):
        y = found[name]
        if rows == length + 1:
            y, behind = x.all_lanes(x.counted(y)), x.all_lanes(found[BEHIND[name]])
            return lax.concatenate([y, behind], axis).astype(dtype)
        y = x.all_lanes(y)
        return (x.counted(y) if rows == length else y).astype(dtype)

    return [finish(*result) for result in results]


def _linear_recurrence_solver(implementation, x: Rows, terms, init, reverse) -> jax.Array:
    a, b = terms(x)
    operands = {"b": x.every_row(b), "a": a} | ({} if init is None else {"init": init})
    (h,) = linear_recurrence(
        operands, axis=x.axis, out_dtype=x.dtype, implementation=implementation, reverse=reverse
    )
    return jnp.broadcast_to(h, x.shape)


linear_recurrence = LinearOp(
    linear.linear_recurrence, linear.linear_recurrence_vjp, data=("b", "init"), results=("h",)
)


def _jvp_of_linear_recurrence(primals, tangents, *, operands, **params):
    """The base case, in which the derivatives of all others by a coefficient end."""
    given = dict(zip(operands, primals, strict=True))
    out = _bind(linear_recurrence.p, given, **params)
    moving = {f"d{n}": t for n, t in zip(operands, tangents, strict=True) if type(t) is not ad.Zero}
    if not moving:
        return out, [ad.Zero.from_primal_value(x) for x in out]
    arrays = given | {"h": out[0]} | moving
    solver = partial(_linear_recurrence_solver, params["implementation"])
    return out, _evaluate(
        linear.linear_recurrence_tangent, solver, tuple(arrays), *arrays.values(), **params
    )


ad.primitive_jvps[linear_recurrence.p] = _jvp_of_linear_recurrence
