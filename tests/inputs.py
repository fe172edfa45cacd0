"""Random arguments for every public operation: the one table that tests and benchmarks loop over.

An option set is a string of words, `OPTIONS[op]` lists the sets of an operation, and each word
adds the arguments that `WORDS` gives for it. `make` returns the keyword arguments of a call, `call`
makes it.
"""

from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

import rl_triton_jax

ACTIONS = 3

DATA = {
    *("rewards", "values", "next_values", "bootstrap_value", "q_values", "next_q_values"),
    *("x", "init", "b"),
}
"""What an operation is linear in."""

# name -> the shape and the time axis of a window of T rows
LAYOUTS = {
    "T": lambda T: ((T,), 0),
    "TN": lambda T: ((T, 3), 0),
    "NT": lambda T: ((3, T), 1),
    "TNA": lambda T: ((T, 2, 3), 0),
    "STN": lambda T: ((2, T, 3), 1),
}


@dataclass(frozen=True)
class Draw:
    """Random arrays for a window of the given shape, with time on the given axis."""

    shape: tuple[int, ...]
    axis: int
    rng: np.random.Generator
    dtype: np.dtype
    end_rate: float

    def normal(self, *shape, scale=1.0):
        return np.asarray(scale * self.rng.standard_normal(shape), self.dtype)

    def rows(self, longer=0, scale=1.0):
        shape = list(self.shape)
        shape[self.axis] += longer
        return self.normal(*shape, scale=scale)

    def table(self, kind):
        """One row of positive weights or of logits for every step, actions last."""
        logits = self.normal(*self.shape, ACTIONS)
        if kind == "logits":
            return logits
        weights = np.exp(logits.astype(np.float64))
        return np.asarray(weights / weights.sum(-1, keepdims=True), self.dtype)

    @property
    def lane_shape(self):
        return tuple(np.delete(self.shape, self.axis))

    def lanes(self):
        return self.normal(*self.lane_shape)

    def flags(self, kind=bool, shape=None):
        flags = np.asarray(self.rng.random(self.shape if shape is None else shape) < self.end_rate)
        if kind == "soft":
            share = self.rng.uniform(0.2, 0.8, flags.shape)
            return np.asarray(np.where(flags, 1.0, share * (share < 0.5)), self.dtype)
        return flags.astype(kind)

    def mask(self):
        return np.asarray(self.rng.random(self.shape) < 0.7)

    def coefficient(self, spread):
        """Numbers in (0, 1) and a few exact zeros: per lane, or with full and 1-sized axes."""
        time = self.axis % len(self.shape)
        shape = {
            "lane": self.lane_shape,
            "time": tuple(n if axis == time else 1 for axis, n in enumerate(self.shape)),
            "row": tuple(1 if axis == time else n for axis, n in enumerate(self.shape)),
            "full": self.shape,
        }[spread]
        numbers = self.rng.uniform(0.3, 1.0, shape)
        return np.asarray(numbers * (self.rng.random(shape) > 0.1), self.dtype)


# The arguments that every call of an operation has.
BASE = {
    "gae": lambda d: dict(rewards=d.rows(), values=d.rows(), gamma=0.97, lambda_=0.9),
    "vtrace": lambda d: dict(rewards=d.rows(), values=d.rows(), gamma=0.97),
    "retrace": lambda d: dict(
        rewards=d.rows(), q_values=d.rows(), next_values=d.rows(), gamma=0.97
    ),
    "retrace_from_policy": lambda d: dict(
        rewards=d.rows(),
        q_values=d.table("logits"),
        next_q_values=d.table("logits"),
        actions=d.rng.integers(ACTIONS, size=d.shape),
        behaviour_log_prob=-abs(d.rows()),
        gamma=0.97,
    ),
    "lambda_returns": lambda d: dict(rewards=d.rows(), gamma=0.97, lambda_=0.9),
    "discounted_returns": lambda d: dict(rewards=d.rows(), gamma=0.97),
    "eligibility_traces": lambda d: dict(x=d.rows(), gamma=0.97, lambda_=0.9),
    "episodic_prefix_sum": lambda d: dict(x=d.rows()),
    "linear_recurrence": lambda d: dict(b=d.rows()),
}

# word of an option set -> the arguments that it adds
WORDS = {
    "values": lambda d: dict(values=d.rows()),
    "longer_values": lambda d: dict(values=d.rows(longer=1)),
    "bootstrap": lambda d: dict(bootstrap_value=d.lanes()),
    "scalar_bootstrap": lambda d: dict(bootstrap_value=0.5),
    "next": lambda d: dict(next_values=d.rows()),
    "terminated": lambda d: dict(terminated=d.flags()),
    "int_terminated": lambda d: dict(terminated=3 * d.flags(np.int32)),
    "float_terminated": lambda d: dict(terminated=d.flags(np.float32)),
    "soft_terminated": lambda d: dict(terminated=d.flags("soft")),
    "last": lambda d: dict(last_terminated=d.flags(shape=d.lane_shape)),
    "soft_last": lambda d: dict(last_terminated=d.flags("soft", d.lane_shape)),
    "truncated": lambda d: dict(truncated=d.flags()),
    "int_truncated": lambda d: dict(truncated=d.flags(np.uint8)),
    "soft_truncated": lambda d: dict(truncated=d.flags("soft")),
    "drop": lambda d: dict(on_truncation="drop"),
    "mask": lambda d: dict(mask=d.mask()),
    "int_mask": lambda d: dict(mask=2 * d.mask().astype(np.int8)),
    "float_mask": lambda d: dict(mask=0.5 * d.mask().astype(np.float32)),
    "lambda": lambda d: dict(lambda_=0.9),
    "log_rho": lambda d: dict(log_rho=d.rows(scale=0.7)),
    "rho": lambda d: dict(rho=np.exp(d.rows(scale=0.7))),
    "scalar_rho": lambda d: dict(rho=0.8),
    "trace": lambda d: dict(trace=d.coefficient("full")),
    "clips": lambda d: dict(clip_rho=1.5, clip_c=0.8, clip_pg_rho=1.2),
    "no_clips": lambda d: dict(clip_rho=None, clip_c=None, clip_pg_rho=None),
    "mixed": lambda d: dict(pg_bootstrap="mixed"),
    "probs": lambda d: dict(target_probs=d.table("probs"), next_target_probs=d.table("probs")),
    "logits": lambda d: dict(target_logits=d.table("logits"), next_target_logits=d.table("logits")),
    "init": lambda d: dict(init=d.lanes()),
    "scalar_init": lambda d: dict(init=0.5),
    "starts_at": lambda d: dict(boundary="starts_at"),
    "reverse": lambda d: dict(reverse=True),
    "a_scalar": lambda d: dict(a=0.9),
    **{
        f"{word}_{spread}": lambda d, name=name, spread=spread: {name: d.coefficient(spread)}
        for word, name in (("gamma", "gamma"), ("lambda", "lambda_"), ("a", "a"))
        for spread in ("lane", "time", "row", "full")
    },
}

# operation -> its option sets
OPTIONS = {
    "gae": (
        "bootstrap",
        "scalar_bootstrap terminated gamma_lane lambda_full",
        "longer_values int_terminated gamma_time lambda_lane",
        "next float_terminated gamma_full lambda_row",
        "bootstrap soft_terminated gamma_row lambda_time",
        "bootstrap terminated last",
        "longer_values soft_terminated soft_last",
        "next terminated truncated lambda_lane",
        "next soft_terminated soft_truncated",
        "bootstrap terminated truncated drop",
        "next soft_terminated soft_truncated drop",
        "bootstrap terminated mask gamma_full lambda_full",
        "longer_values soft_terminated float_mask",
        "next terminated int_truncated int_mask",
        "longer_values terminated truncated drop mask",
    ),
    "vtrace": (
        "bootstrap log_rho",
        "scalar_bootstrap scalar_rho terminated lambda",
        "longer_values rho int_terminated gamma_time lambda_lane clips",
        "next log_rho float_terminated gamma_full lambda_row no_clips",
        "bootstrap log_rho soft_terminated gamma_lane lambda_time mixed",
        "bootstrap log_rho terminated last lambda clips mixed",
        "next log_rho terminated truncated lambda_full clips",
        "next rho soft_terminated soft_truncated lambda clips mixed",
        "bootstrap log_rho terminated truncated drop lambda clips",
        "longer_values rho soft_terminated soft_truncated drop lambda mixed",
        "bootstrap log_rho terminated mask gamma_full lambda_full clips mixed",
        "next log_rho terminated truncated mask lambda_lane",
        "bootstrap log_rho terminated truncated drop mask lambda mixed",
    ),
    "retrace": (
        "log_rho",
        "log_rho lambda terminated gamma_lane",
        "trace int_terminated gamma_time",
        "log_rho lambda_lane soft_terminated gamma_full",
        "log_rho lambda_full terminated last",
        "trace terminated truncated",
        "log_rho lambda_time soft_terminated soft_truncated",
        "log_rho lambda_row terminated truncated drop",
        "log_rho lambda_full terminated mask gamma_full",
        "trace terminated truncated mask",
    ),
    "retrace_from_policy": (
        "probs terminated",
        "logits terminated truncated lambda_lane",
        "logits terminated mask lambda",
    ),
    "lambda_returns": (
        "next",
        "values scalar_bootstrap terminated gamma_lane lambda_full",
        "longer_values int_terminated gamma_time lambda_lane",
        "next soft_terminated gamma_full lambda_row",
        "values bootstrap terminated last lambda_time",
        "next terminated truncated lambda_lane",
        "next soft_terminated soft_truncated",
        "values bootstrap terminated truncated drop",
        "values next soft_terminated soft_truncated drop",
        "values bootstrap terminated mask gamma_full lambda_full",
        "next terminated truncated mask",
        "longer_values terminated truncated drop mask",
    ),
    "discounted_returns": (
        "bootstrap",
        "scalar_bootstrap terminated gamma_lane",
        "next int_terminated gamma_time",
        "bootstrap soft_terminated gamma_full",
        "bootstrap terminated last gamma_row",
        "next terminated truncated",
        "next soft_terminated soft_truncated gamma_full",
        "bootstrap terminated mask gamma_full",
        "next terminated truncated mask",
    ),
    "eligibility_traces": (
        "terminated",
        "init terminated gamma_lane lambda_row",
        "scalar_init int_terminated truncated",
        "soft_terminated soft_truncated gamma_full lambda_time",
        "init terminated mask lambda_lane",
        "terminated truncated mask gamma_full lambda_full",
    ),
    "episodic_prefix_sum": (
        "terminated",
        "init int_terminated starts_at",
        "scalar_init terminated truncated",
        "soft_terminated soft_truncated",
        "init soft_terminated truncated starts_at",
        "init terminated mask",
        "init terminated truncated mask starts_at",
    ),
    "linear_recurrence": (
        "a_full",
        "a_full reverse",
        "a_scalar init",
        "a_lane init reverse",
        "a_time scalar_init",
        "a_row init reverse",
    ),
}
CASES = [(op, options) for op, sets in OPTIONS.items() for options in sets]


def make(op, options, shape, axis=0, *, rng, dtype=np.float32, end_rate=0.2):
    """The keyword arguments of one random call, axis included."""
    draw = Draw(tuple(shape), axis, rng, dtype, end_rate)
    arguments = BASE[op](draw)
    for word in options.split():
        arguments |= WORDS[word](draw)
    return arguments | dict(axis=axis)


def precision(dtype):
    """A context in which JAX keeps this type."""
    return jax.enable_x64(np.dtype(dtype).itemsize == 8)


def call(op, *, implementation=None, dtype=np.float64, jit=False, **arguments):
    """The outputs of one call, as NumPy arrays."""
    traced = {name: x for name, x in arguments.items() if isinstance(x, np.ndarray | float)}
    static = {name: x for name, x in arguments.items() if name not in traced}
    function = partial(getattr(rl_triton_jax, op), **static, implementation=implementation)
    with precision(dtype):
        return jax.tree.map(np.asarray, (jax.jit(function) if jit else function)(**traced))


def same(got, expected):
    """Equal up to the rounding of float64, be they one array or several."""
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


def shifted(x, last):
    """Row t holds row t + 1, the last row `last`; time is the first axis."""
    return np.concatenate([x[1:], np.broadcast_to(last, x[:1].shape)])
