"""Ways to call an operation, and contexts to call it in."""

import functools
import inspect
import warnings

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from tests.transforms.checks import EITHER, EVERY_CASE, PLAIN, around, check
from tests.transforms.pieces import both

check(PLAIN, cases=EVERY_CASE)(both)
check("eager", expect=PLAIN, eager=True)(both)
check("debug_nans", expect=PLAIN, context=functools.partial(jax.debug_nans, True))(both)
check("debug_infs", expect=PLAIN, context=functools.partial(jax.debug_infs, True), cases=EITHER)(
    both
)
check("value")(lambda op, args: op(args))
check("disable_jit", expect="value", eager=True, context=jax.disable_jit)(lambda op, args: op(args))
around("nested jit", cases=EITHER)(lambda op, args: jax.jit(jax.jit(op)))


@check("eval_shape")
def types(op, args):
    shapes = jax.eval_shape(functools.partial(both, op), args)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


# In these contexts JAX refuses to trace what is not exact.
for name, context in {
    "strict dtype promotion": functools.partial(jax.numpy_dtype_promotion, "strict"),
    "rank promotion raises": functools.partial(jax.numpy_rank_promotion, "raise"),
    "checking_leaks": jax.checking_leaks,
    "enable_checks": functools.partial(jax.enable_checks, True),
}.items():
    check(name, expect="eval_shape", context=context)(types)


@check("NumPy inputs", expect="value", eager=True)
def _(op, args):
    return op({n: np.asarray(x) for n, x in args.items()})


@check("ensure_compile_time_eval", expect="value", eager=True)
def _(op, args):
    def f():
        with jax.ensure_compile_time_eval():
            return jax.tree.map(np.asarray, op(args))  # fails on a tracer

    return jax.jit(f)()


@around("make_jaxpr", cases=EITHER)
def _(op, args):
    jaxpr, shape = jax.make_jaxpr(op, return_shape=True)(args)
    evaluate = jax.extend.core.jaxpr_as_fun(jaxpr)
    return lambda args: jax.tree.unflatten(
        jax.tree.structure(shape), evaluate(*jax.tree.leaves(args))
    )


@around("static_argnames")
def _(op, args):
    words = {"axis": 0, "implementation": None, "on_truncation": "bootstrap"} | dict(op.options)
    known = inspect.signature(op.function).parameters
    static = {n: x for n, x in words.items() if n in known}
    return lambda args: jax.jit(op.function, static_argnames=tuple(static))(**args, **static)


@check("donated arguments", expect="value", eager=True, cases=EITHER)
def _(op, args):
    with warnings.catch_warnings():
        # Not every argument has the type of a result whose buffer it could become.
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        return jax.jit(op, donate_argnums=0)({n: x.copy() for n, x in args.items()})


KERNELS = jax.export.DisabledSafetyCheck.custom_call("triton_kernel_call_ffi")
"""That JAX gives no guarantee of compatibility for them."""


@around("export for two platforms", eager=True, cases=("eligibility_traces",))
def _(op, args):
    op = op.with_options(implementation=None)  # none but None has something to run on each of them
    export = jax.export.export(jax.jit(op), platforms=("cpu", "cuda"), disabled_checks=[KERNELS])
    return export(args).call


@around("export, serialised", eager=True, cases=EITHER)
def _(op, args):
    pytest.importorskip("flatbuffers", reason="jax.export serialises with flatbuffers")
    exported = jax.export.export(jax.jit(op), disabled_checks=[KERNELS])(args)
    return jax.export.deserialize(exported.serialize(vjp_order=1)).call
