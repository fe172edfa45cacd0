"""The kernels in Triton's interpreter, behind the library's own launch: no GPU, no compiler.

`python -m tests.interpreter GROUP` runs the checks of one group of `GROUPS` and names those that
fail; without GROUP it lists them. It wants a process of its own, with TRITON_INTERPRET=1 set
before triton is imported: that makes every kernel of the process an interpreted one and patches
`triton.language`.

Eager calls of the library run a kernel at once, since the primitives' eager rule is the launch
itself; under `jit` and the like it is a `jax.pure_callback` in the program that JAX compiles for
the CPU. In both, results hold NaN (or the smallest integer) before the kernel starts, so an
element that it does not write shows up.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

if os.environ.get("TRITON_INTERPRET") != "1":
    raise ImportError("set TRITON_INTERPRET=1 first, in a process of its own")

import jax
import jax.numpy as jnp
import numpy as np
import triton
import triton.language as tl
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from triton.runtime import interpreter

import rl_triton_jax
from rl_triton_jax import reference
from rl_triton_jax.kernels import exchange
from rl_triton_jax.launch import availability, configs
from rl_triton_jax.launch import triton as launch
from rl_triton_jax.primitives import estimators, policy
from tests import inputs as draws
from tests import oracles, transforms
from tests.inputs import LAYOUTS, OPTIONS, make

# ------------------------------------------------------------------------------------------------
# The launch
# ------------------------------------------------------------------------------------------------

TRITON_NAMES = {
    "bool": "i1",
    "int8": "i8",
    "uint8": "u8",
    "int32": "i32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
}
ONE_AT_A_TIME = threading.Lock()  # the interpreter patches triton.language at every launch
launches = 0


@triton.jit
def publish(pointer, word, here):
    tl.store(pointer, word, mask=here)


@triton.jit
def wait_for(word, pointer):
    return word


# Programs run one after another, so that a word is there when it is asked for, or never: as NaN.
exchange.publish, exchange.wait_for = publish, wait_for


class HostTensor:
    """As much of a torch tensor as the interpreter asks for, over a NumPy array."""

    def __init__(self, array):
        assert array.flags.c_contiguous and array.flags.writeable
        self.array, self.dtype = array, TRITON_NAMES[array.dtype.name]

    def data_ptr(self):
        return self.array.ctypes.data

    def untyped_storage(self):
        return HostStorage(self.array)

    def storage_offset(self):
        return 0

    def size(self):
        return self.array.shape

    def stride(self):
        return tuple(n // self.array.itemsize for n in self.array.strides)

    def new_empty(self, *_, **__):
        return HostTensor(self.array)

    def set_(self, storage, *_):
        self.array = storage.array


class HostStorage:
    def __init__(self, array):
        self.array = array

    def data_ptr(self):
        return self.array.ctypes.data

    def cpu(self):
        return self

    def copy_(self, other):
        if other.array is not self.array:
            self.array[...] = other.array


def poisoned(like):
    floating = jnp.issubdtype(like.dtype, jnp.floating)
    return np.full(like.shape, np.nan if floating else jnp.iinfo(like.dtype).min, like.dtype)


def triton_call(
    operands,
    *,
    kernel,
    out_type,
    zeroed_outputs,
    grid,
    name,
    compute_capability,
    backend_options,
    **constants,
):
    """Stands in for `jax_triton.triton_call`, which would compile for a GPU."""

    def run(*arrays):
        global launches
        results = [poisoned(x) for x in out_type]
        for i in zeroed_outputs:
            results[i][:] = 0
        tensors = tuple(HostTensor(np.array(x, order="C")) for x in arrays)
        with ONE_AT_A_TIME:
            launches += 1
            free = [x for x in kernel.arg_names[1:] if x not in constants]
            given = dict(zip(free, map(HostTensor, results), strict=True))
            kernel[grid](tensors, **given, **constants)
        return results

    return jax.pure_callback(run, out_type, *operands)


def run_eagerly(name, *arrays, operands, data=None, implementation=None, **params):
    """A primitive on arrays, without XLA."""
    return launch.call(
        name, dict(zip(operands, arrays, strict=True)), compute_capability=90, **params
    )


def install():
    """Sends every launch of this process to the interpreter, and lets the CPU have kernels."""
    # The interpreter patches triton.language anew in every call of a device function, which takes
    # most of its time, though in this process once for every module is enough.
    patch, patched = interpreter._patch_lang, set()

    def patch_once(function):
        if function.__module__ not in patched:
            patched.add(function.__module__)
            patch(function)
        return SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang = patch_once
    launch.jax_triton.triton_call = triton_call
    availability.why_not = lambda *_, **__: None
    pairs = [getattr(estimators, op) for op in estimators.__all__]
    for p in (policy.p, *(p for pair in pairs for p in (pair.p, pair.vjp_p))):
        p.def_impl(partial(run_eagerly, p.name))


def small(plan, split=False):
    """Ragged tiles, and several blocks of time from a length of 5 on."""
    actions = min(plan.actions, 2)
    if plan.columns:
        lanes = 2 if plan.lanes <= 4 and plan.outer_size == 1 else 4
        return configs.columns(plan, 2, 2, lanes, 1, split=split, actions=actions)
    return configs.rows(plan, 4, 2, 1, split=split, actions=actions)


CONFIGS = {"chosen": configs.choose, "small": small, "split": partial(small, split=True)}

# ------------------------------------------------------------------------------------------------
# Kernels alone
# ------------------------------------------------------------------------------------------------

DATA = {"rewards", "values", "q_values", "next_values", "bootstrap_value", "x", "init", "b"}
"""The arguments that a result is linear in."""

# Largest difference, relative to the largest number of an output (or to 1).
# The interpreter stores bfloat16 by cutting off digits, where a GPU rounds.
TOLERANCE = {"float64": 1e-12, "float32": 2e-6, "bfloat16": 2**-7 + 2e-6, "float16": 2**-11 + 2e-6}


def same(got, expected):
    """Equal numbers and types of results; the expected ones may have more digits."""
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert x.shape == y.shape
        if jnp.issubdtype(x.dtype, jnp.integer):
            np.testing.assert_array_equal(x, y)
            continue
        tolerance = TOLERANCE[x.dtype.name]
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        scale = np.max(abs(y), initial=1.0, where=np.isfinite(y))
        np.testing.assert_allclose(x / scale, y / scale, rtol=0, atol=tolerance)


def kernel_of(name):
    return partial(getattr(rl_triton_jax, name), implementation="triton")


def split(arguments):
    data = {name: x for name, x in arguments.items() if name in DATA}
    return data, {name: x for name, x in arguments.items() if name not in DATA}


def transposed(oracle, data, rest, cotangents):
    """The cotangents of data: a linear operation applied to every row's unit vector.

    Lanes do not see each other, so one evaluation gives a row's numbers in all of them.
    """
    axis, zeros = rest["axis"], {name: np.zeros_like(x) for name, x in data.items()}

    def of(unit):
        outputs = jax.tree.leaves(oracle(**rest, **(zeros | unit)))
        pairs = zip(outputs, cotangents, strict=True)
        return sum(np.sum(np.float64(c) * y, axis) for y, c in pairs)

    found = {}
    for name, x in data.items():
        if np.ndim(x) < cotangents[0].ndim:
            total = of({name: np.ones_like(x)})
            found[name] = total if np.ndim(x) else np.sum(total)
            continue
        rows = []
        for t in range(x.shape[axis]):
            unit = np.zeros_like(x)
            unit[(slice(None),) * axis + (t,)] = 1
            rows.append(of({name: unit}))
        found[name] = np.stack(rows, axis)
    return found


def check_kernel(name, arguments, config="chosen"):
    """Both kernels of an operation against its float64 loop."""
    data, rest = split(arguments)
    oracle = getattr(oracles, name)
    launch.choose, before = CONFIGS[config], launches
    outputs, vjp = jax.vjp(
        lambda data: jax.tree.leaves(kernel_of(name)(**rest, **data)),
        jax.tree.map(jnp.asarray, data),
    )
    same(outputs, oracle(**arguments))
    rng = np.random.default_rng(1)
    cotangents = [np.asarray(rng.standard_normal(y.shape), y.dtype) for y in outputs]
    (found,) = vjp([jnp.asarray(c) for c in cotangents])
    same(found, transposed(oracle, data, rest, cotangents))
    assert launches == before + 2


def inputs(name, options, layout, length=7, **kwargs):
    shape, axis = LAYOUTS[layout](length)
    return make(name, options, shape, axis, rng=np.random.default_rng(7), **kwargs)


OTHERS = [
    ("TN", 7, "chosen"),
    ("TN", 75, "split"),
    ("STN", 9, "split"),
    ("NT", 75, "split"),
    ("TNA", 9, "small"),
    ("T", 7, "chosen"),
]


def checks_of(name):
    """Every option set in small tiles, time-major and batch-major; what else there is in turn."""
    for i, options in enumerate(OPTIONS[name]):
        for layout, length, config in (
            ("TN", 7, "small"),
            ("NT", 7, "small"),
            OTHERS[i % len(OTHERS)],
        ):

            def check(options=options, layout=layout, length=length, config=config):
                check_kernel(name, inputs(name, options, layout, length), config)

            yield f"{options}, {layout}, {config} tiles", check


def checks_of_policy():
    """One action, a few, more than a tile holds; actions and weights that are no ordinary ones."""
    name = "retrace_from_policy"
    for options in OPTIONS[name]:
        for actions, layout, config in (
            (3, "TN", "split"),
            (3, "NT", "small"),
            (1, "STN", "chosen"),
            (40, "TN", "chosen"),
            (40, "T", "split"),
        ):

            def check(options=options, layout=layout, actions=actions, config=config):
                launch.choose, draws.ACTIONS = CONFIGS[config], actions
                arguments, before = inputs(name, options, layout, 9), launches
                same(kernel_of(name)(**arguments), oracles.retrace_from_policy(**arguments))
                assert launches == before + 1

            yield f"{options}, {layout}, {actions} actions, {config} tiles", check

    def unusual(op):
        launch.choose, draws.ACTIONS = small, 3
        arguments = inputs(name, "logits terminated", "TN", 9)
        arguments["actions"][:3] -= 3  # counts from the end
        arguments["actions"][5, 0] = 3  # does not exist
        arguments["target_logits"][..., 1] = -np.inf
        arguments["next_target_logits"][..., 0] = -np.inf
        arguments["next_q_values"][..., 0] = np.inf
        return op(**arguments)

    def narrow():
        """An int8 cannot hold the number of actions."""
        launch.choose, draws.ACTIONS = small, 200
        arguments = inputs(name, "probs terminated", "TN", 5)
        arguments["actions"] = (arguments["actions"] // 2 - 100).astype(np.int8)
        same(kernel_of(name)(**arguments), oracles.retrace_from_policy(**arguments))

    yield "narrow actions", narrow
    yield (
        "unusual actions and weights",
        lambda: same(unusual(kernel_of(name)), unusual(reference.retrace_from_policy)),
    )


def checks_of_types():
    for name in estimators.__all__:
        for dtype, layout in (("float64", "TN"), ("bfloat16", "NT"), ("float16", "TN")):

            def check(dtype=dtype, name=name, layout=layout):
                options = OPTIONS[name][-1]
                with jax.enable_x64(dtype == "float64"):
                    arguments = inputs(name, options, layout, dtype=jnp.dtype(dtype))
                    check_kernel(name, arguments, "small")

            yield f"{dtype} {name}, {layout}", check
    for options in OPTIONS["episodic_prefix_sum"][:3]:
        for layout in ("TN", "NT"):

            def check(options=options, layout=layout):
                arguments = inputs("episodic_prefix_sum", options, layout)
                numbers = {"x", "init"} & arguments.keys()
                arguments |= {k: np.int32(np.round(9 * arguments[k])) for k in numbers}
                launch.choose = small
                got = kernel_of("episodic_prefix_sum")(**arguments)
                same(got, reference.episodic_prefix_sum(**arguments))

            yield f"int32 episodic_prefix_sum: {options}, {layout}", check


def checks_of_nonfinite():
    """NaN and infinity stay in their episode and lane: NaN exactly where the reference has it."""
    options = {
        "gae": "bootstrap terminated mask lambda_full",
        "vtrace": "next log_rho terminated truncated lambda_full clips",
        "retrace": "trace terminated truncated",
        "lambda_returns": "longer_values terminated truncated drop mask",
        "discounted_returns": "next terminated truncated",
        "eligibility_traces": "init terminated truncated mask",
        "episodic_prefix_sum": "scalar_init terminated truncated",
    }
    for name, words in options.items():
        for layout, config in (
            ("TN", "small"),
            ("NT", "small"),
            ("TN", "chosen"),
            ("NT", "chosen"),
        ):
            if layout == "TN" or config == "small" or name == "vtrace":

                def check(name=name, words=words, layout=layout, config=config):
                    arguments = inputs(name, words, layout, length=9, end_rate=0.3)
                    rng = np.random.default_rng(1)
                    for data in sorted(DATA & arguments.keys()):
                        x = np.array(arguments[data])
                        if x.ndim:
                            x[rng.random(x.shape) < 0.06] = np.nan
                            x[rng.random(x.shape) < 0.06] = np.inf
                            arguments[data] = x
                    if "mask" in arguments:  # one lane counts no row
                        arguments["mask"][(slice(None), 0) if layout == "TN" else 0] = False
                    launch.choose = CONFIGS[config]
                    data, rest = split(arguments)
                    results = [
                        jax.vjp(lambda data, op=op: jax.tree.leaves(op(**rest, **data)), data)
                        for op in (kernel_of(name), getattr(reference, name))
                    ]
                    (got, pull), (expected, expected_pull) = results
                    same(got, expected)
                    cotangents = [jnp.where(jnp.isfinite(y), 1, y) for y in expected]
                    same(pull(cotangents), expected_pull(cotangents))

                yield f"{name}: {words}, {layout}, {config} tiles", check


def checks_of_shared():
    """Operands that vmap did not batch, and axes beside time that cannot merge into one."""
    arguments = {
        layout: inputs("gae", "bootstrap terminated last", layout, length=5) for layout in LAYOUTS
    }
    gammas, lambdas = np.float32([0.5, 0.9, 1.0]), np.float32([0.2, 0.9])

    def over_gamma(op, arguments):
        return jax.vmap(lambda gamma: op(**(arguments | {"gamma": gamma})))(gammas)

    def over_gamma_and_lambda(op, arguments):
        def of(gamma, lambda_):
            return op(**(arguments | {"gamma": gamma, "lambda_": lambda_}))

        return jax.vmap(jax.vmap(of, (None, 0)), (0, None))(gammas[:2], lambdas)

    def over_rewards(op, arguments):
        rewards = arguments["rewards"] * lambdas.reshape(2, *(1,) * arguments["rewards"].ndim)
        return jax.vmap(lambda rewards: op(**(arguments | {"rewards": rewards})))(rewards)

    def over_last_axis(op, arguments):
        rewards = arguments["rewards"][..., None] * lambdas
        return jax.vmap(lambda rewards: op(**(arguments | {"rewards": rewards})), -1, -1)(rewards)

    def inner_coefficients(op, arguments):
        """(1, 2, 1) and (1, 1, 3) along the lanes of (T, 2, 3)."""
        _, a, b = arguments["rewards"].shape
        gamma = gammas[:a].reshape(1, a, 1)
        return op(**(arguments | {"gamma": gamma, "lambda_": gammas[:b].reshape(1, 1, b)}))

    def batched_inner_coefficients(op, arguments):
        """Two axes on either side of time, no two of which can merge."""
        _, a, b = arguments["rewards"].shape

        def of(rewards, scale):
            gamma = scale * gammas[:a].reshape(1, a, 1)
            changed = {"rewards": rewards, "gamma": gamma, "lambda_": gammas[:b].reshape(1, 1, b)}
            return op(**(arguments | changed))

        rewards = arguments["rewards"] * lambdas[:, None, None, None]
        return jax.vmap(jax.vmap(of, (None, 0)), (0, None))(rewards, lambdas)

    table = [
        *((over_gamma, layout) for layout in ("T", "TN", "NT")),
        *((over_gamma_and_lambda, layout) for layout in ("T", "NT")),
        *((over_rewards, layout) for layout in ("TN", "NT")),
        *((over_last_axis, layout) for layout in ("TN", "NT")),
        (inner_coefficients, "TNA"),
        (batched_inner_coefficients, "TNA"),
    ]
    for i, (function, layout) in enumerate(table):
        for config in ("small", "chosen")[: 1 + (i % 5 == 1)]:

            def check(function=function, layout=layout, config=config):
                before, launch.choose = launches, CONFIGS[config]
                kernel = partial(function, kernel_of("gae"))
                plain = partial(function, reference.gae)
                data, rest = split(arguments[layout])
                got, pull = jax.vjp(lambda data: kernel(rest | data), data)
                expected, expected_pull = jax.vjp(lambda data: plain(rest | data), data)
                cotangents = jax.tree.map(jnp.cos, expected)
                same((got, pull(cotangents)), (expected, expected_pull(cotangents)))
                assert launches == before + 2

            yield f"{function.__name__}, {layout}, {config} tiles", check


# ------------------------------------------------------------------------------------------------
# Kernels in programs that JAX compiles
# ------------------------------------------------------------------------------------------------


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

                before, launch.choose = launches, small
                got = on(kernel_of(name))
                jax.block_until_ready(got)
                assert launches > before
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


GROUPS: dict[str, Callable] = {
    **{name: partial(checks_of, name) for name in estimators.__all__},
    "retrace_from_policy": checks_of_policy,
    "types": checks_of_types,
    "nonfinite": checks_of_nonfinite,
    "shared": checks_of_shared,
    "gae in programs": partial(checks_of_stack, STACK, ["gae"]),
    "others in programs": partial(
        checks_of_stack, ["grad"], [n for n in STACK_CASES if n != "gae"]
    ),
}


TABLE = {f"table {case}": partial(checks_of_table, case) for case in transforms.CASES}
"""Groups that take minutes each, over eight devices; not part of the tests."""


def main(group):
    install()
    failed = count = 0
    for name, check in (GROUPS | TABLE)[group]():
        count += 1
        try:
            check()
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc(limit=-4)}")
    print(f"{group}: {count} checks, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(main(sys.argv[1]))
    print(*GROUPS, sep="\n")
