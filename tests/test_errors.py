"""Wrong calls raise an error that names the operation, the argument, what it got and expects.

The messages read "<op>: <argument> ... got ... expected ...". ValueError is for shapes, values and
combinations, TypeError for dtypes and Python types. A row of `MISUSES` is one mistake: operations,
what is changed in a correct call of each, and what the message must say.
"""

import re
from functools import partial

import jax
import numpy as np
import pytest

import rl_triton_jax

T, N, A = 4, 3, 2  # all different, so that no wrong shape fits by chance


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


TN, N_ = ones(T, N), ones(N)
FLAGS, MASK = np.zeros((T, N), bool), np.ones((T, N), bool)
PROBS = ones(T, N, A) / A
TD = {"rewards": TN, "values": TN, "bootstrap_value": N_, "gamma": 0.9}

CORRECT = {
    "gae": TD | {"lambda_": 0.8},
    "vtrace": TD | {"log_rho": TN},
    "retrace": {"rewards": TN, "q_values": TN, "next_values": TN, "log_rho": TN, "gamma": 0.9},
    "retrace_from_policy": {
        "rewards": TN,
        "q_values": ones(T, N, A),
        "actions": np.zeros((T, N), np.int32),
        "target_probs": PROBS,
        "behaviour_log_prob": TN,
        "next_q_values": ones(T, N, A),
        "next_target_probs": PROBS,
        "gamma": 0.9,
    },
    "lambda_returns": TD | {"lambda_": 0.8},
    "discounted_returns": {"rewards": TN, "bootstrap_value": N_, "gamma": 0.9},
    "eligibility_traces": {"x": TN, "gamma": 0.9, "lambda_": 0.8},
    "episodic_prefix_sum": {"x": TN},
    "linear_recurrence": {"b": TN, "a": TN},
}
MISSING = object()  # leaves an argument of the correct call out

EVERY = list(CORRECT)
VALUED = ["gae", "vtrace", "lambda_returns"]
BOOTSTRAPPED = [*VALUED, "discounted_returns"]
BACKWARD = [*BOOTSTRAPPED, "retrace", "retrace_from_policy"]
DECAYED = [*BACKWARD, "eligibility_traces"]
TRACED = ["gae", "vtrace", "retrace", "retrace_from_policy", "lambda_returns", "eligibility_traces"]
FLAGGED = [*DECAYED, "episodic_prefix_sum"]
SEEDED = ["eligibility_traces", "episodic_prefix_sum", "linear_recurrence"]
FIRST = {op: next(iter(arguments)) for op, arguments in CORRECT.items()}  # rewards, x or b


MISUSES = [  # operations, change, error, argument, what it got: a shape or a regex
    # The next value comes in exactly one way.
    (BOOTSTRAPPED, dict(bootstrap_value=MISSING), ValueError, "next_values", "none|neither"),
    (["lambda_returns"], dict(values=MISSING), ValueError, "values", "None"),
    (
        BOOTSTRAPPED,
        dict(next_values=TN),
        ValueError,
        "next_values",
        "bootstrap_value and next_values",
    ),
    (VALUED, dict(values=ones(T + 1, N)), ValueError, "bootstrap_value", "values"),
    (
        VALUED,
        dict(values=ones(T + 1, N), bootstrap_value=MISSING, next_values=TN),
        ValueError,
        "next_values",
        "next_values and values",
    ),
    (["retrace"], dict(next_values=None), TypeError, "next_values", "None"),
    # The row behind a truncated one is no successor of it.
    (BOOTSTRAPPED, dict(truncated=FLAGS), ValueError, "truncated", "bootstrap_value"),
    (BOOTSTRAPPED, dict(truncated=FLAGS, mask=MASK), ValueError, "truncated", "bootstrap_value"),
    (
        VALUED,
        dict(truncated=FLAGS, values=ones(T + 1, N), bootstrap_value=MISSING),
        ValueError,
        "truncated",
        "values",
    ),
    # Under "drop" the value is the target of a dropped row.
    (
        ["lambda_returns"],
        dict(
            values=MISSING,
            bootstrap_value=MISSING,
            next_values=TN,
            truncated=FLAGS,
            on_truncation="drop",
        ),
        ValueError,
        "values",
        "None",
    ),
    # Observation-aligned flags exclude what is aligned with transitions.
    (BACKWARD, dict(last_terminated=N_), ValueError, "last_terminated", "terminated"),
    (
        BACKWARD,
        dict(terminated=FLAGS, last_terminated=N_, mask=MASK),
        ValueError,
        "last_terminated and mask",
        "both",
    ),
    (
        BOOTSTRAPPED,
        dict(
            last_terminated=N_,
            terminated=FLAGS,
            truncated=FLAGS,
            next_values=TN,
            bootstrap_value=MISSING,
        ),
        ValueError,
        "last_terminated and truncated",
        "both",
    ),
    (
        ["retrace", "retrace_from_policy"],
        dict(last_terminated=N_, terminated=FLAGS, truncated=FLAGS),
        ValueError,
        "last_terminated and truncated",
        "both",
    ),
    # Shapes: [T, N, 1] never broadcasts against [T, N].
    (VALUED, dict(values=ones(T, N, 1)), ValueError, "values", (T, N, 1)),
    (
        VALUED,
        dict(values=ones(T, N, 1), next_values=TN, bootstrap_value=MISSING),
        ValueError,
        "values",
        (T, N, 1),
    ),
    (VALUED, dict(values=ones(T - 1, N)), ValueError, "values", (T - 1, N)),
    (VALUED, dict(values=ones(T + 2, N)), ValueError, "values", (T + 2, N)),
    (
        BOOTSTRAPPED,
        dict(next_values=ones(T, N, 1), bootstrap_value=MISSING),
        ValueError,
        "next_values",
        (T, N, 1),
    ),
    (["retrace"], dict(next_values=ones(T, N, 1)), ValueError, "next_values", (T, N, 1)),
    (["retrace"], dict(q_values=ones(T, N, 1)), ValueError, "q_values", (T, N, 1)),
    (["retrace", "vtrace"], dict(log_rho=ones(T, N, 1)), ValueError, "log_rho", (T, N, 1)),
    (["vtrace"], dict(log_rho=MISSING, rho=N_), ValueError, "rho", (N,)),
    (["retrace"], dict(log_rho=MISSING, trace=N_), ValueError, "trace", (N,)),
    (["linear_recurrence"], dict(a=ones(T, N, 1)), ValueError, "a", (T, N, 1)),
    (FLAGGED, dict(terminated=FLAGS[..., None]), ValueError, "terminated", (T, N, 1)),
    (FLAGGED, dict(mask=MASK[..., None]), ValueError, "mask", (T, N, 1)),
    (
        VALUED,
        dict(truncated=FLAGS[..., None], on_truncation="drop"),
        ValueError,
        "truncated",
        (T, N, 1),
    ),
    (BOOTSTRAPPED, dict(bootstrap_value=ones(T)), ValueError, "bootstrap_value", (T,)),
    (BOOTSTRAPPED, dict(bootstrap_value=ones(1, N)), ValueError, "bootstrap_value", (1, N)),
    (
        BACKWARD,
        dict(terminated=FLAGS, last_terminated=FLAGS[:, 0]),
        ValueError,
        "last_terminated",
        (T,),
    ),
    (SEEDED, dict(init=ones(T)), ValueError, "init", (T,)),
    (["retrace_from_policy"], dict(actions=TN), TypeError, "actions", "float32"),
    (["retrace_from_policy"], dict(q_values=TN), ValueError, "q_values", (T, N)),
    *[
        (["retrace_from_policy"], {table: ones(T, N, A + 1)}, ValueError, table, (T, N, A + 1))
        for table in ["target_probs", "next_q_values", "next_target_probs"]
    ],
    *[
        (["retrace_from_policy"], {name: np.zeros((T, N, 1), int)}, ValueError, name, (T, N, 1))
        for name in ["actions", "behaviour_log_prob"]
    ],
    # Decay factors: a scalar, one per lane, or of full rank.
    (DECAYED, dict(gamma=ones(T)), ValueError, "gamma", (T,)),
    (DECAYED, dict(gamma=ones(T, N, 1)), ValueError, "gamma", (T, N, 1)),
    (DECAYED, dict(gamma=ones(T + 1, N)), ValueError, "gamma", (T + 1, N)),
    (TRACED, dict(lambda_=ones(T)), ValueError, "lambda_", (T,)),
    (TRACED, dict(lambda_=ones(T, N + 1)), ValueError, "lambda_", (T, N + 1)),
    (["eligibility_traces"], dict(init=N_, gamma=ones(T, 1)), ValueError, "init|gamma", (T, 1)),
    (["eligibility_traces"], dict(init=N_, lambda_=TN), ValueError, "init|lambda_", (T, N)),
    (DECAYED, dict(gamma=None), TypeError, "gamma", "None"),
    (["gae", "lambda_returns"], dict(lambda_=None), TypeError, "lambda_", "None"),
    # Ratios: exactly one, and scalar clips.
    (["vtrace"], dict(log_rho=MISSING), ValueError, "log_rho", "none|neither"),
    (["vtrace"], dict(rho=1.0), ValueError, "log_rho", "log_rho and rho"),
    (["retrace"], dict(log_rho=MISSING), ValueError, "log_rho", "none|neither"),
    (["retrace"], dict(trace=TN), ValueError, "log_rho", "log_rho and trace"),
    (
        ["retrace"],
        dict(log_rho=MISSING, trace=TN, lambda_=0.8),
        ValueError,
        "lambda_ and trace",
        "both",
    ),
    (["vtrace"], dict(clip_rho=N_), ValueError, "clip_rho", (N,)),
    (["vtrace"], dict(clip_c=TN), ValueError, "clip_c", (T, N)),
    (["vtrace"], dict(clip_pg_rho=ones(1)), ValueError, "clip_pg_rho", (1,)),
    (
        ["retrace_from_policy"],
        dict(target_logits=PROBS),
        ValueError,
        "target_probs",
        "target_probs and target_logits",
    ),
    (
        ["retrace_from_policy"],
        dict(target_probs=MISSING),
        ValueError,
        "target_probs",
        "none|neither",
    ),
    (
        ["retrace_from_policy"],
        dict(next_target_logits=PROBS),
        ValueError,
        "next_target_probs",
        "next_target_probs and next_target_logits",
    ),
    (
        ["retrace_from_policy"],
        dict(next_target_probs=MISSING),
        ValueError,
        "next_target_probs",
        "none|neither",
    ),
    # Choices.
    (VALUED, dict(on_truncation="cut"), ValueError, "on_truncation", "cut"),
    (["vtrace"], dict(pg_bootstrap="full"), ValueError, "pg_bootstrap", "full"),
    (["episodic_prefix_sum"], dict(boundary="ends"), ValueError, "boundary", "ends"),
    (EVERY, dict(implementation="xla"), ValueError, "implementation", "xla"),
    (EVERY, dict(axis=2), ValueError, "axis", "2"),
    (EVERY, dict(axis=-3), ValueError, "axis", "-3"),
    (EVERY, dict(axis=0.0), TypeError, "axis", r"0\.0|float"),
    (EVERY, dict(axis=None), TypeError, "axis", "None"),
    # Types.
    (FLAGGED, dict(terminated=FLAGS + 0j), TypeError, "terminated", "complex"),
    (FLAGGED, dict(mask=FLAGS + 0j), TypeError, "mask", "complex"),
    (DECAYED, dict(gamma=0.9 + 0j), TypeError, "gamma", "complex"),
    (TRACED, dict(lambda_=np.complex64(1)), TypeError, "lambda_", "complex64"),
    (DECAYED, dict(gamma="0.9"), TypeError, "gamma", "str|<U3"),
    (FLAGGED, dict(terminated=np.full((T, N), "no")), TypeError, "terminated", "<U2|str"),
    (BOOTSTRAPPED, dict(bootstrap_value=np.array(None)), TypeError, "bootstrap_value", "object"),
    # Soft flags would not keep integers exact.
    (
        ["episodic_prefix_sum"],
        dict(x=np.ones((T, N), np.int32), terminated=TN),
        TypeError,
        "terminated",
        "float32",
    ),
    # The first argument of every operation.
    *[
        ([op], {first: value}, error, first, got)
        for op, first in FIRST.items()
        for value, error, got in [
            (np.float32(1), ValueError, r"scalar|\(\)"),
            (TN + 0j, TypeError, "complex64"),
            (np.full((T, N), "1"), TypeError, "<U1|str"),
            (np.full((T, N), None), TypeError, "object"),
            (None, TypeError, "None"),
        ]
    ],
]


def params():
    for ops, changed, error, argument, got in MISUSES:
        got = re.escape(str(got)) if isinstance(got, tuple) else f"(?:{got})"
        for op in ops:
            match = rf"(?s)^{op}: .*\b(?:{argument})\b.*\bgot\b.*{got}.*\bexpected\b"
            yield pytest.param(op, changed, error, match, id=f"{op}-{','.join(changed)}")


def call(op, **changed):
    arguments = CORRECT[op] | changed
    arguments = {name: value for name, value in arguments.items() if value is not MISSING}
    return getattr(rl_triton_jax, op)(**arguments)


@pytest.mark.parametrize("op", CORRECT)
def test_the_unchanged_call_is_correct(op):
    """Otherwise the errors below would say little."""
    jax.eval_shape(lambda: call(op))


@pytest.mark.parametrize(("op", "changed", "error", "match"), list(params()))
def test_misuse(op, changed, error, match):
    with pytest.raises(error, match=match):
        call(op, **changed)


@pytest.mark.parametrize("op", DECAYED)
def test_gamma_has_no_default(op):
    with pytest.raises(TypeError, match=r"missing 1 required keyword-only argument: 'gamma'"):
        call(op, gamma=MISSING)


@pytest.mark.parametrize("op", EVERY)
def test_triton_on_the_cpu_raises_when_lowered_not_when_traced(op):
    def forced():
        return call(op, implementation="triton")

    jax.make_jaxpr(forced)()
    jax.eval_shape(forced)

    match = rf"^{op}: implementation\b.*\bgot 'triton'.*\bcpu\b.*\bexpected\b"
    for run in (partial(jax.jit(forced).trace().lower, lowering_platforms=("cpu",)), forced):
        with (
            jax.default_device(jax.devices("cpu")[0]),
            pytest.raises((NotImplementedError, RuntimeError), match=match),
        ):
            run()
