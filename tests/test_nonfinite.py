"""What is not finite stays in its episode, in values and gradients; inside it, it is not hidden.

Every scene holds two episodes that meet between rows `END` and `END + 1`, in two lanes. One number
of one of them is replaced by NaN or infinity, or one cotangent: nothing may change in the other
episode and the other lane.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rl_triton_jax
from tests.inputs import DATA
from tests.transforms import (
    CASES,
    along,
    arguments,
    both,
    floats,
    loss,
    operation,
    oracle,
)

LENGTH, LANES, END = 6, 2, 2
IMPLEMENTATIONS = ("scan", "associative_scan")
FLAG_TYPES = [(bool, "scan"), (float, "associative_scan")]  # neither knows of the other
PLANTS = (np.nan, np.inf, -np.inf)
FLAGS = ("terminated", "truncated", "last_terminated")


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@dataclass(frozen=True)
class Scene:
    """An operation, the arguments in which something is planted, and what cuts row END from the
    next: a flag that is set, or a coefficient that is 0, at row `at`."""

    op: str
    planted: str
    cut: str
    at: int = END
    options: tuple = ()

    def arguments(self, flags):
        """Positive numbers: γ a scalar, every other coefficient by row and lane."""
        rng = np.random.default_rng(3)
        names = [*self.planted.split(), self.cut, *OTHERS[self.op].split()]
        args = {}
        for name in dict.fromkeys(names):
            x = rng.uniform(0.5, 1.5, SHAPES.get(name, (LENGTH, LANES)))
            if name in FLAGS:
                x = np.zeros(x.shape, flags)
            if name == "gamma" and self.cut != "gamma":
                x = np.float64(0.9)
            args[name] = x
        args[self.cut][self.at] = self.cut in FLAGS
        return args


SHAPES = {
    "bootstrap_value": (LANES,),
    "init": (LANES,),
    "last_terminated": (LANES,),
    "clip_rho": (),
    "clip_c": (),
    "clip_pg_rho": (),
}
OTHERS = {
    "gae": "gamma lambda_",
    "vtrace": "gamma lambda_ clip_rho clip_c clip_pg_rho",
    "retrace": "gamma",
    "lambda_returns": "gamma lambda_",
    "discounted_returns": "gamma",
    "eligibility_traces": "gamma lambda_",
    "episodic_prefix_sum": "",
    "linear_recurrence": "",
}
DROP, MIXED = ("on_truncation", "drop"), ("pg_bootstrap", "mixed")
BACKWARD, FORWARD = ("reverse", True), ("reverse", False)
SCENES = {
    "gae, terminated": Scene("gae", "rewards values bootstrap_value", "terminated"),
    "gae, truncated": Scene("gae", "rewards values next_values", "truncated"),
    "gae, dropped": Scene("gae", "rewards values bootstrap_value", "truncated", options=(DROP,)),
    "gae, aligned": Scene(
        "gae", "rewards values bootstrap_value last_terminated", "terminated", at=END + 1
    ),
    "gae, γ = 0": Scene("gae", "rewards values bootstrap_value", "gamma"),
    "gae, λ = 0": Scene("gae", "rewards values next_values", "lambda_"),
    "vtrace, terminated": Scene("vtrace", "rewards values bootstrap_value log_rho", "terminated"),
    "vtrace, truncated": Scene("vtrace", "rewards values next_values log_rho", "truncated"),
    "vtrace, dropped": Scene(
        "vtrace", "rewards values bootstrap_value rho", "truncated", options=(DROP, MIXED)
    ),
    "vtrace, ρ = 0": Scene("vtrace", "rewards values bootstrap_value rho", "rho"),
    "retrace, terminated": Scene(
        "retrace", "rewards q_values next_values log_rho lambda_", "terminated"
    ),
    "retrace, truncated": Scene("retrace", "rewards q_values next_values trace", "truncated"),
    "retrace, w = 0": Scene("retrace", "rewards q_values next_values trace", "trace", at=END + 1),
    "lambda_returns, terminated": Scene(
        "lambda_returns", "rewards values bootstrap_value", "terminated"
    ),
    "lambda_returns, truncated": Scene("lambda_returns", "rewards next_values", "truncated"),
    "lambda_returns, dropped": Scene(
        "lambda_returns", "rewards values bootstrap_value", "truncated", options=(DROP,)
    ),
    "lambda_returns, λ = 0": Scene("lambda_returns", "rewards next_values", "lambda_"),
    "discounted_returns, terminated": Scene(
        "discounted_returns", "rewards bootstrap_value", "terminated"
    ),
    "discounted_returns, truncated": Scene(
        "discounted_returns", "rewards next_values", "truncated"
    ),
    "eligibility_traces, terminated": Scene("eligibility_traces", "x", "terminated"),
    "eligibility_traces, truncated": Scene("eligibility_traces", "x", "truncated"),
    "episodic_prefix_sum, ends_at": Scene("episodic_prefix_sum", "x init", "terminated"),
    "episodic_prefix_sum, starts_at": Scene(
        "episodic_prefix_sum", "x init", "truncated", END + 1, (("boundary", "starts_at"),)
    ),
    "linear_recurrence, forward": Scene("linear_recurrence", "b init a", "a", END + 1, (FORWARD,)),
    "linear_recurrence, backward": Scene("linear_recurrence", "b init a", "a", END, (BACKWARD,)),
}


def run(scene, implementation):
    """(arguments, cotangent) -> results and gradients, over batches of both."""
    op = functools.partial(
        getattr(rl_triton_jax, scene.op), **dict(scene.options), implementation=implementation
    )

    def f(args, cotangent):
        moving = {n: x for n, x in args.items() if x.dtype == jnp.float64}
        out, vjp = jax.vjp(lambda x: op(**args | x), moving)
        gradients = vjp(jax.tree.map(lambda y: cotangent.astype(y.dtype), out))[0]
        return {f"result {i}": y for i, y in enumerate(jax.tree.leaves(out))} | gradients

    return jax.jit(jax.vmap(f))


def labels(scene, name, shape):
    """Which episode each number belongs to: 0 or 1 in the first lane, 2 in the other."""
    rows = np.zeros((LENGTH, LANES), int)
    rows[END + 1 :] = 1
    if name == "terminated" and "last_terminated" in scene.planted:
        rows = np.roll(rows, 1, 0)  # row t's flag stands in row t+1
        rows[0] = 0
    rows[:, 1] = 2
    if shape == (LANES,):
        first = scene.op in ("eligibility_traces", "episodic_prefix_sum")
        first |= scene.options == (FORWARD,)
        return rows[0] if first else rows[-1]
    return rows if shape == (LENGTH, LANES) else np.full(shape, -1)


def check(scene, name, got, want, *, episode, scalars=False, cut=False):
    """Nothing outside the episode has changed, and all of it is finite.

    Scalars and what cuts belong to both episodes, and are looked at where asked for.
    """
    outside = labels(scene, name, got.shape) != episode
    if got.shape == () and not scalars:
        return
    if name == scene.cut:
        assert not cut or np.isfinite(got[outside]).all()
        outside[scene.at] = False
    assert np.isfinite(want[outside]).all()
    np.testing.assert_array_equal(got[outside], want[outside], err_msg=name)


def stacked(trees):
    return jax.tree.map(lambda *x: np.stack(x), *trees)


@pytest.mark.parametrize(("flags", "implementation"), FLAG_TYPES)
@pytest.mark.parametrize("name", SCENES)
def test_episodes_do_not_touch(name, flags, implementation):
    """Plants in each number of the first lane; the loss reads all rows, or the untouched ones."""
    scene = SCENES[name]
    args = scene.arguments(flags)
    ones = np.ones((LENGTH, LANES))
    planted, unharmed, checks = [], [], []
    for operand in scene.planted.split():
        if operand in FLAGS:
            continue
        for index in np.argwhere(labels(scene, operand, args[operand].shape) < 2):
            if operand == scene.cut and index[0] == scene.at:
                continue
            episode = labels(scene, operand, args[operand].shape)[tuple(index)]
            other = np.where(labels(scene, "rewards", ones.shape) == episode, 0.0, 1.0)
            for plant in PLANTS:
                x = args[operand].copy()
                x[tuple(index)] = plant
                for cotangent in (ones, other):
                    planted.append((args | {operand: x}, cotangent))
                    unharmed.append((args, cotangent))
                    # Non-finite data count for nothing in a derivative by a coefficient. A
                    # coefficient that is not finite does: 0 times NaN is what a loss that does not
                    # read an episode gets from it.
                    data = operand in DATA
                    scalars = data and cotangent is other
                    checks.append({"episode": episode, "scalars": scalars, "cut": data})
    got, want = (run(scene, implementation)(*stacked(x)) for x in (planted, unharmed))
    for i, options in enumerate(checks):
        for key, x in got.items():
            check(scene, key, np.asarray(x[i]), np.asarray(want[key][i]), **options)


@pytest.mark.parametrize(("flags", "implementation"), FLAG_TYPES)
@pytest.mark.parametrize("name", SCENES)
def test_cotangents_do_not_cross(name, flags, implementation):
    """One bad cotangent leaves the gradients of the other episode alone."""
    scene = SCENES[name]
    args = scene.arguments(flags)
    ones = np.ones((LENGTH, LANES))
    cotangents = []
    for row in range(LENGTH):
        cotangents.append(ones.copy())
        cotangents[-1][row, 0] = np.nan
    f = run(scene, implementation)
    got = f(*stacked([(args, cotangent) for cotangent in cotangents]))
    want = f(*stacked([(args, ones)] * LENGTH))
    for row in range(LENGTH):
        for key, x in got.items():
            got_row, want_row = np.asarray(x[row]), np.asarray(want[key][row])
            check(scene, key, got_row, want_row, episode=int(row > END))


# --- masked rows ---

# The arguments of each operation by row, every one of which a masked row may hold anything in.
MASKED = {
    "gae": "rewards values bootstrap_value terminated gamma lambda_",
    "gae, next_values": "rewards values next_values terminated truncated gamma lambda_",
    "vtrace": "rewards values bootstrap_value log_rho terminated gamma lambda_",
    "vtrace, next_values": "rewards values next_values rho terminated truncated gamma lambda_",
    "retrace": "rewards q_values next_values log_rho terminated gamma lambda_",
    "retrace, trace": "rewards q_values next_values trace terminated truncated gamma",
    "lambda_returns": "rewards values bootstrap_value terminated gamma lambda_",
    "lambda_returns, next_values": "rewards next_values terminated truncated gamma lambda_",
    "discounted_returns": "rewards terminated bootstrap_value gamma",
    "eligibility_traces": "x terminated truncated gamma lambda_",
    "episodic_prefix_sum": "x init terminated truncated",
}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", MASKED)
def test_masked_rows_may_hold_anything(name, implementation):
    """Each argument in turn is NaN or infinite wherever the mask is 0: first, inner, last rows."""
    op = name.split(",")[0]
    rng = np.random.default_rng(5)
    mask = np.array([[0, 1, 0, 0, 1, 0], [1, 1, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]]).T != 0
    args = {n: rng.uniform(0.3, 0.9, mask.shape) for n in MASKED[name].split()}
    for n in ("bootstrap_value", "init"):
        args |= {n: args[n][0]} if n in args else {}

    def f(args):
        function = getattr(rl_triton_jax, op)
        return both(lambda x: function(**x, mask=mask, implementation=implementation), args)

    planted = [args]
    for n in args:
        if args[n].ndim == 2:
            planted += [args | {n: np.where(mask, args[n], plant)} for plant in PLANTS]
    got = jax.jit(jax.vmap(f))(stacked(planted))
    for x in jax.tree.leaves(got):
        assert np.isfinite(x).all()
        np.testing.assert_array_equal(x, np.broadcast_to(x[:1], x.shape))
        if x.shape[1:] == mask.shape:
            assert not np.asarray(x)[:, ~mask].any()


# --- inside the episode ---


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("name", SCENES)
def test_the_own_episode_shows_it(name, plant, implementation):
    """A bad reward reaches every row of its episode on the way of the recurrence."""
    scene = SCENES[name]
    leader = scene.planted.split()[0]
    forward = scene.op in ("eligibility_traces", "episodic_prefix_sum") or scene.options == (
        FORWARD,
    )
    for row in range(LENGTH):
        args = scene.arguments(float)
        args[leader][row, 0] = plant
        out = jax.tree.leaves(
            getattr(rl_triton_jax, scene.op)(
                **args, **dict(scene.options), implementation=implementation
            )
        )[-1]
        episode = range(END + 1) if row <= END else range(END + 1, LENGTH)
        reached = [t for t in episode if (t >= row if forward else t <= row)]
        if DROP in scene.options and row == END:
            reached = []  # the dropped row itself
        if name == "vtrace, ρ = 0" and row == END:
            reached = []
        bad = ~np.isfinite(np.asarray(out))
        assert np.flatnonzero(bad[:, 0]).tolist() == reached
        assert not bad[:, 1].any()


# --- derivatives where a coefficient is exactly 0 or 1 ---


@pytest.mark.parametrize("case", CASES)
def test_derivatives_at_the_cut_are_those_of_the_product(case):
    """Float flags that are 0 or 1, γ, λ, a and traces with zeros: as of the plain formula, in first
    and second order."""
    args = arguments(case)
    implementation = IMPLEMENTATIONS[list(CASES).index(case) % 2]  # in turn
    cut = jnp.arange(next(x for x in args.values() if x.ndim == 2).shape[1]) % 3 == 0
    for n, x in args.items():
        if n in FLAGS:
            args[n] = jnp.round(x)
        elif n in ("gamma", "lambda_"):
            args[n] = x * 0
        elif n in ("a", "trace", "rho"):
            args[n] = jnp.where(cut, 0, x)

    @functools.partial(jax.jit, static_argnums=0)
    def derivatives(op, args):
        second = jax.grad(along(lambda x: loss(op)(args | x)))(floats(args))
        return both(op, args), second

    got = derivatives(operation(case, implementation), args)
    want = derivatives(oracle(case), args)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_hessian_at_zero(implementation):
    """A_0 = δ_0 + γλ δ_1 + γ²λ² δ_2, and all its derivatives by λ at 0."""
    error = np.array([1.0, 2.0, 4.0])

    def first(lambda_):
        return rl_triton_jax.gae(
            error,
            0 * error,
            gamma=0.5,
            lambda_=lambda_,
            bootstrap_value=0.0,
            implementation=implementation,
        ).advantages[0]

    derivatives = [first]
    for _ in range(2):
        derivatives.append(jax.jacfwd(derivatives[-1]))
    assert [float(f(0.0)) for f in derivatives] == [1.0, 0.5 * 2.0, 2 * 0.25 * 4.0]
    assert float(jax.grad(jax.grad(first))(0.0)) == 2 * 0.25 * 4.0


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("plant", PLANTS)
def test_derivative_is_zero_where_the_other_factor_is_not_finite(plant, implementation):
    """r + γ (1 - terminated) v', v' not finite: by γ and by the flag, cut and uncut."""

    def f(gamma, terminated):
        return rl_triton_jax.discounted_returns(
            np.ones((1, 1)),
            jnp.reshape(terminated, (1, 1)),
            gamma=gamma,
            bootstrap_value=plant,
            implementation=implementation,
        )[0, 0]

    for terminated in (1.0, 0.0, 0.5):
        value, gradients = jax.value_and_grad(f, (0, 1))(0.9, terminated)
        assert np.isfinite(value) == (terminated == 1)
        assert gradients == (0.0, 0.0)


# --- ratios ---


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("case", ["vtrace", "vtrace-drop-mask", "retrace", "retrace-mask"])
def test_huge_log_ratios_are_clipped_before_they_overflow(case, dtype, implementation):
    """A ratio far beyond the clip is the clip, one that underflows is 0, with derivatives of 0."""
    args = jax.tree.map(lambda x: x if x.dtype == bool else x.astype(dtype), arguments(case))
    f = jax.jit(functools.partial(both, operation(case, implementation)))
    largest = float(jnp.finfo(dtype).max)

    def planted(large, small):
        rows = jnp.arange(len(args["log_rho"]))[:, None]
        log_rho = jnp.where(rows == 1, large, jnp.where(rows == 3, small, args["log_rho"]))
        return f(args | {"log_rho": log_rho.astype(dtype)})

    expected = planted(5.0, -np.inf)
    for large, small in ((largest, -largest), (np.inf, -np.inf), (np.inf, -largest)):
        got = planted(large, small)
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            assert np.isfinite(np.asarray(x, np.float64)).all()
            np.testing.assert_array_equal(x, y)
        assert not np.asarray(got[1]["log_rho"], np.float64)[[1, 3]].any()
