"""Types, numbers that are not finite, and operands that lanes share."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rl_triton_jax import reference
from rl_triton_jax.launch import triton as launch
from rl_triton_jax.primitives import estimators
from tests.inputs import DATA, LAYOUTS, OPTIONS
from tests.interpreter.kernels import check_kernel, inputs, kernel_of, same, split
from tests.interpreter.launch import CONFIGS, launched, small


def checks_of_types():
    for name in estimators.__all__:
        for dtype, layout in (("float64", "TN"), ("bfloat16", "NT"), ("float16", "TN")):

            def check(dtype=dtype, name=name, layout=layout):
                options = OPTIONS[name][-1]
                with jax.enable_x64(dtype == "float64"):
                    arguments = inputs(name, options, layout, dtype=jnp.dtype(dtype))
                    check_kernel(name, arguments, "small")

            yield f"{dtype} {name}, {layout}", check
    for layout, config in (("TN", "small"), ("NT", "chosen")):

        def check(layout=layout, config=config):
            arguments = inputs("gae", "bootstrap terminated last", layout)
            arguments["bootstrap_value"] = arguments["bootstrap_value"].astype(np.float16)
            arguments["last_terminated"] = arguments["last_terminated"].astype(np.float32)
            check_kernel("gae", arguments, config)

        yield f"what stands behind the last row is of another type, {layout}", check
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
                before, launch.choose = len(launched), CONFIGS[config]
                kernel = partial(function, kernel_of("gae"))
                plain = partial(function, reference.gae)
                data, rest = split(arguments[layout])
                got, pull = jax.vjp(lambda data: kernel(rest | data), data)
                expected, expected_pull = jax.vjp(lambda data: plain(rest | data), data)
                cotangents = jax.tree.map(jnp.cos, expected)
                same((got, pull(cotangents)), (expected, expected_pull(cotangents)))
                assert len(launched) == before + 2

            yield f"{function.__name__}, {layout}, {config} tiles", check
