"""Kernels in programs that JAX compiles."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from rl_triton_jax import reference
from rl_triton_jax.launch import triton as launch
from tests import transforms
from tests.inputs import make
from tests.interpreter.kernels import kernel_of, same
from tests.interpreter.launch import launched, small


def of_sine(op):
    return lambda *args: sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(op(*args)))


def scanned(op, x, *rest):
    def body(x, _):
        return jnp.tanh(jax.tree.leaves(op(x, *rest))[0]), None

    return jax.lax.scan(body, x, None, length=3)[0]


def batch(*args):
    return [jnp.stack([x, 0.5 * x]) for x in args]


def over_two_devices(op, *args):
    """Lanes are the last axis; a coefficient is one number for all."""
    mesh = jax.make_mesh((2,), ("lanes",), (AxisType.Auto,))

    def spec(x):
        return P(*[None] * (x.ndim - 1), "lanes") if x.ndim else P()

    out_specs = P(None, "lanes")
    return jax.shard_map(op, mesh=mesh, in_specs=tuple(map(spec, args)), out_specs=out_specs)(*args)


def sum_over_two_devices(op, *args):
    """The same, differentiated through the shard_map, by the shared coefficient too."""
    return jax.grad(of_sine(partial(over_two_devices, op)), tuple(range(len(args))))(*args)


STACK = {
    "jit": lambda op, *args: op(*args),
    "grad": lambda op, *args: jax.grad(of_sine(op), tuple(range(len(args))))(*args),
    "hessian": lambda op, *args: jax.hessian(lambda g: of_sine(op)(*args[:-1], g))(args[-1]),
    "jvp": lambda op, *args: jax.jvp(op, args, tuple(map(jnp.cos, args))),
    "vmap": lambda op, *args: jax.vmap(op, (0,) * len(args))(*batch(*args)),
    "nested vmap": lambda op, *args: jax.vmap(
        jax.vmap(op, (0, *(None,) * (len(args) - 1))), (None, *(0,) * (len(args) - 1))
    )(*batch(*args)),
    "vmap of grad": lambda op, *args: jax.vmap(
        jax.grad(of_sine(op), tuple(range(len(args)))), (0, *(None,) * (len(args) - 1))
    )(batch(args[0])[0], *args[1:]),
    "scan": scanned,
    "grad of checkpoint in scan": lambda op, *args: jax.grad(
        lambda *args: jnp.sum(scanned(jax.checkpoint(op), *args)), tuple(range(len(args)))
    )(*args),
    "shard_map": over_two_devices,
    "grad of shard_map": sum_over_two_devices,
}

# Compiling takes the time: gae goes through all of these, the others through `grad`, which holds
# their two kernels and those of the linear recurrence.
# operation -> the arguments that vary, last a coefficient, and the option set of the others
STACK_CASES = {
    "gae": (("rewards", "values", "bootstrap_value", "gamma"), "bootstrap soft_terminated"),
    "vtrace": (("values", "log_rho", "lambda_"), "next log_rho terminated truncated lambda mixed"),
    "retrace": (("rewards", "log_rho", "gamma"), "log_rho lambda terminated truncated drop"),
    "lambda_returns": (("rewards", "next_values", "lambda_"), "next soft_terminated truncated"),
    "discounted_returns": (("rewards", "bootstrap_value", "gamma"), "bootstrap terminated"),
    "eligibility_traces": (("x", "init", "lambda_"), "init soft_terminated truncated"),
    "episodic_prefix_sum": (("x", "init"), "init soft_terminated truncated"),
    "linear_recurrence": (("b", "init", "a"), "a_scalar init reverse"),
}


def checks_of_stack(transformations, names):
    for name in names:
        varied, options = STACK_CASES[name]
        for transformation in transformations:

            def check(name=name, varied=varied, options=options, transform=STACK[transformation]):
                arguments = make(name, options, (7, 4), rng=np.random.default_rng(7))
                if transform in (over_two_devices, sum_over_two_devices):
                    arguments = {
                        k: x for k, x in arguments.items() if k in varied or not np.ndim(x)
                    }
                args = [jnp.asarray(arguments.pop(k), jnp.float32) for k in varied]

                def on(op):
                    def of(*args):
                        outputs = op(**arguments, **dict(zip(varied, args, strict=True)))
                        return tuple(jax.tree.leaves(outputs))

                    return jax.tree.map(jnp.asarray, jax.jit(partial(transform, of))(*args))

                before, launch.choose = len(launched), small
                got = on(kernel_of(name))
                jax.block_until_ready(got)
                assert len(launched) > before
                same(got, on(getattr(reference, name)))

            yield f"{transformation} of {name}", check


def checks_of_table(case):
    """The whole table of transformations; a program with partly manual axes has no kernel."""
    for name, transform in transforms.CHECKS.items():
        if case not in transform.cases:
            continue

        def check(transform=transform):
            launch.choose = small
            with jax.enable_x64(True):
                arguments = transforms.arguments(case)
                got = transform(transforms.operation(case, "triton"), arguments)
                transform = transforms.CHECKS[transform.expect]
                expected = transform(transforms.oracle(case), arguments)
                same(jax.tree.map(jnp.asarray, got), expected)

        yield f"{name}, {case}", check
