"""The cases of `data/cases.json` as calls of the public operations.

`calls(case)` yields every way in which the public API can say what a case says (the next value as
`next_values`, as `bootstrap_value` or in `values` of length T+1; each listed dtype; each layout),
and `check` compares what such a call returned with what the case expects.
"""

import json
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

IMPLEMENTATIONS = ("scan", "associative_scan")

CANNOT_RUN = {  # id: (implementations, why)
    "normalise-one-sample": (IMPLEMENTATIONS, "normalisation has no public op"),
    "normalise-kept-only": (IMPLEMENTATIONS, "normalisation has no public op"),
    "normalise-nothing-kept": (IMPLEMENTATIONS, "normalisation has no public op"),
    "huge-2-31": (IMPLEMENTATIONS, "more than 2^31 elements, 9 GB an array: for a GPU only"),
    "sum-of-tenths": (("scan",), "a one-by-one float32 sum is off by 1.4e-4"),
    "recurrence-overflowing-groups": (
        ("associative_scan",),
        "a tree multiplies the last two factors first, 1e60 overflows float32",
    ),
}

FLAGS = {"terminated", "truncated", "mask", "dones", "flags"}
DATA = {"rewards", "values", "q_values", "next_values", "bootstrap_value", "x", "init", "a", "b"}

type Parts = tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]
"""op, operands, options, expected: what an adapter makes of a case."""


class Call(NamedTuple):
    op: str
    operands: dict[str, Any]  # arrays and numbers: traced under jit
    options: dict[str, Any]  # static
    expected: dict[str, Any]  # by output, or "d_" + operand for a gradient
    tolerance: dict[str, float]
    mask: Any  # the entries to compare
    dtype: Any  # of every output

    def __str__(self) -> str:
        operands = [
            f"{name}={x.dtype}{list(x.shape)}" if hasattr(x, "shape") else f"{name}={x!r}"
            for name, x in self.operands.items()
        ]
        return f"{self.op}({', '.join(operands)}, {self.options})"


def why_not(case_id: str, implementation: str) -> str | None:
    """Why a case cannot run on an implementation; None if it can."""
    implementations, why = CANNOT_RUN.get(case_id, ((), None))
    return why if implementation in implementations else None


def calls(case: dict) -> Iterator[Call]:
    """Every way in which the public API can say what the case says."""
    dtypes = case.get("dtypes", {})
    for turn in zip(*dtypes.values(), strict=True) if dtypes else [()]:
        x = _inputs(case, dict(zip(dtypes, turn, strict=True)))
        # A case about dtypes or sizes is not about the ways to say it: the first will do.
        ways = 1 if dtypes or isinstance(case["inputs"].get("rewards"), dict) else None
        for op, operands, options, expected in islice(ADAPTERS[case["op"]](case, x), ways):
            call = Call(
                op,
                operands,
                options,
                {name: _expected(value) for name, value in expected.items()},
                case["tolerance"],
                np.asarray(case.get("compare_mask", True)),
                _result_dtype(operands),
            )
            yield call
            if "both-layouts" in case["tags"]:
                yield call._replace(
                    operands={name: np.transpose(x) for name, x in operands.items()},
                    options=options | {"axis": 1},
                    expected={name: value.T for name, value in call.expected.items()},
                )


def check(call: Call, outputs: dict[str, Any]) -> None:
    """Asserts that the outputs are the expected ones, within the case's own tolerance."""
    close = partial(np.testing.assert_allclose, **call.tolerance)
    for name, expected in call.expected.items():
        actual, message = np.asarray(outputs[name]), f"{name} of {call}"
        assert actual.dtype == call.dtype, f"{message}: {actual.dtype}, not {call.dtype}"
        actual = actual.astype(float)
        if isinstance(expected, dict):
            *index, values = zip(*expected["$at"], strict=True)
            close(actual[tuple(index)], values, err_msg=message)
            if "$sum" in expected:
                close(actual.sum(), expected["$sum"], err_msg=f"sum of {message}")
                close(np.abs(actual).sum(), expected["$abs_sum"], err_msg=f"|sum| of {message}")
        else:
            assert actual.shape == expected.shape, f"{message}: {actual.shape}"
            keep = np.broadcast_to(call.mask, expected.shape)
            close(actual[keep], expected[keep], err_msg=message)


def _load() -> dict[str, dict]:
    cases = json.loads((Path(__file__).parent / "data" / "cases.json").read_text())
    for case in cases:
        if (
            case["inputs"].get("rewards") == []
        ):  # JSON cannot write the shape [0, N]: a note says it
            empty = np.empty(json.loads(case["notes"].removeprefix("shape ")))
            for part in ("inputs", "expected"):
                case[part] = {k: empty if v == [] else v for k, v in case[part].items()}
    return {case["id"]: case for case in cases}


def _inputs(case: dict, dtypes: dict[str, str]) -> dict[str, np.ndarray]:
    """The inputs as arrays: bool flags, int32 actions, float32 for the rest; `dtypes` overrides."""
    default = dict.fromkeys(FLAGS, "bool") | {"actions": "int32"}
    return {
        name: _array(value).astype(jnp.dtype((default | dtypes).get(name, "float32")))
        for name, value in case["inputs"].items()
    }


def _array(value: Any) -> np.ndarray:
    if isinstance(value, dict):
        t, n = np.indices(value["shape"], sparse=True)
        formula = eval(value["$expr"], {"__builtins__": {}}, {"t": t, "n": n})
        value = np.broadcast_to(formula, value["shape"])
    return np.asarray(value, float)  # this reads "nan" and "inf" too


def _expected(value: Any) -> Any:
    return value if isinstance(value, dict) else np.asarray(value, float)


def _result_dtype(operands: dict[str, Any]) -> Any:
    """The common float dtype of the data, or the integer dtype where there is no float."""
    dtypes = {x.dtype for name, x in operands.items() if name in DATA and hasattr(x, "dtype")}
    return np.result_type(*({d for d in dtypes if jnp.issubdtype(d, jnp.floating)} or dtypes))


def _pick(x: dict, /, *names: str, **renamed: str) -> dict[str, Any]:
    """The operands under these names (new=old to rename) that the case has."""
    wanted = dict(zip(names, names, strict=True)) | renamed
    return {new: x[old] for new, old in wanted.items() if old in x}


def _decay(case: dict, x: dict) -> dict[str, Any]:
    """gamma and lambda_: Python numbers, unless the case has an array or asks for NumPy's."""
    decay = _pick(case["params"] | x, gamma="gamma", lambda_="lam") | _pick(x, gamma="discounts")
    return {
        name: np.float32(value)
        if isinstance(value, list) or "numpy-float32-gamma" in case["tags"]
        else value
        for name, value in decay.items()
    }


def _successors(case: dict, x: dict, *, drop: bool = False) -> Iterator[dict[str, Any]]:
    """The ways to give values and next values, each with the `truncated` that it needs."""
    truncated = _pick(x, "truncated")
    yield _pick(x, "values", "next_values") | truncated
    if not drop:  # a dropped row never reads its next value, another truncated row its own
        if not case["inputs"].get("next_values_is_shifted_values") or x["truncated"].any():
            return
        truncated = {}
    yield _pick(x, "values", "bootstrap_value") | truncated
    yield {"values": np.concatenate([x["values"], x["bootstrap_value"][None]])} | truncated


def _gae(case: dict, x: dict) -> Iterator[Parts]:
    given = _pick(x, "rewards", "terminated") | _decay(case, x)
    for successors in _successors(case, x):
        if "values-have-trailing-1" in case["tags"]:
            trailing = {"values", "next_values"} & successors.keys()
            successors |= {name: successors[name][..., None] for name in trailing}
        yield "gae", given | successors, {}, case["expected"]


def _gae_tokens(case: dict, x: dict) -> Iterator[Parts]:
    given = _pick(x, "rewards", "values", "mask") | _decay(case, x)
    bootstrap = _pick(case["params"], bootstrap_value="last_value")
    yield "gae", given | bootstrap, {"axis": 1}, case["expected"]


def _gae_masked_truncation(case: dict, x: dict) -> Iterator[Parts]:
    """Brax: its targets are GAE's, its advantages V-trace's policy gradient form on policy."""
    given = _pick(x, "rewards", "terminated") | _decay(case, x)
    options = {"on_truncation": "drop"}
    for successors in _successors(case, x, drop=True):
        yield "vtrace", given | successors | {"rho": 1.0}, options, case["expected"]
        yield "gae", given | successors, options, _pick(case["expected"], "targets")


def _gae_grad(case: dict, x: dict) -> Iterator[Parts]:
    """With implicit next values, a row of values also receives what its predecessor's v' would."""
    given = _pick(x, "rewards", "terminated") | _decay(case, x)
    explicit = case["expected"]
    d_values = np.pad(explicit["d_values"], [(0, 1), (0, 0)])
    d_values += np.pad(explicit["d_next_values"], [(1, 0), (0, 0)])
    d_rewards = _pick(explicit, "d_rewards")
    expected = [
        explicit,
        d_rewards | {"d_values": d_values[:-1], "d_bootstrap_value": d_values[-1]},
        d_rewards | {"d_values": d_values},
    ]
    for successors, gradients in zip(_successors(case, x), expected, strict=False):
        yield "gae", given | successors, {}, gradients


def _vtrace(case: dict, x: dict) -> Iterator[Parts]:
    given = _pick(x, "rewards", "terminated") | _decay(case, x)
    given |= _pick(case["params"], clip_rho="rho_bar", clip_c="c_bar", clip_pg_rho="pg_rho_bar")
    given["log_rho"] = x["log_prob_target"] - x["log_prob_behaviour"]
    for successors in _successors(case, x):
        for form, advantages in [("targets", "pg_advantages"), ("mixed", "pg_advantages_mixed")]:
            expected = _pick(case["expected"], targets="vs", advantages=advantages)
            yield "vtrace", given | successors, {"pg_bootstrap": form}, expected


def _retrace(case: dict, x: dict) -> Iterator[Parts]:
    given = _pick(x, "rewards", "terminated", "truncated") | _decay(case, x)
    whole = _pick(x, "actions", "q_values", "target_probs", "next_q_values", "next_target_probs")
    if whole:
        taken = partial(np.take_along_axis, indices=x["actions"][..., None], axis=-1)
        x = x | {
            "q_taken": taken(x["q_values"])[..., 0],
            "next_expected_q": np.sum(x["next_target_probs"] * x["next_q_values"], axis=-1),
            "log_rho": np.log(taken(x["target_probs"])[..., 0] / x["behaviour_prob_of_action"]),
        }
    parts = _pick(x, "log_rho", q_values="q_taken", next_values="next_expected_q")
    yield "retrace", given | parts, {}, case["expected"]
    if whole:
        whole["behaviour_log_prob"] = np.log(x["behaviour_prob_of_action"])
        yield "retrace_from_policy", given | whole, {}, case["expected"]


def _lambda_returns(case: dict, x: dict) -> Iterator[Parts]:
    given = _pick(x, "rewards", "next_values", "terminated", "truncated") | _decay(case, x)
    yield "lambda_returns", given, {}, case["expected"]


def _discounted_returns(case: dict, x: dict) -> Iterator[Parts]:
    given = _pick(x, "rewards", "terminated") | _decay(case, x)
    successors = _pick(x, "next_values", "truncated")
    yield "discounted_returns", given | successors, {}, case["expected"]
    if not x["truncated"].any():  # then only the last next value is read
        bootstrap = {"bootstrap_value": x["next_values"][-1]}
        yield "discounted_returns", given | bootstrap, {}, case["expected"]


def _eligibility_traces(case: dict, x: dict) -> Iterator[Parts]:
    given = _pick(x, x="inputs", terminated="dones") | _decay(case, x)
    yield "eligibility_traces", given, {}, case["expected"]


def _segmented_sum(case: dict, x: dict) -> Iterator[Parts]:
    given = _pick(x, x="inputs", terminated="flags", init="seed")
    options = _pick(case["params"], boundary="flag_meaning")
    yield "episodic_prefix_sum", given, options, case["expected"]


def _linear_recurrence(case: dict, x: dict) -> Iterator[Parts]:
    options = _pick(case["params"], "reverse")
    yield "linear_recurrence", _pick(x, "a", b="u"), options, case["expected"]


ADAPTERS = {
    "gae": _gae,
    "gae_tokens": _gae_tokens,
    "gae_masked_truncation": _gae_masked_truncation,
    "gae_grad": _gae_grad,
    "vtrace": _vtrace,
    "retrace": _retrace,
    "lambda_returns": _lambda_returns,
    "discounted_returns": _discounted_returns,
    "eligibility_traces": _eligibility_traces,
    "segmented_sum": _segmented_sum,
    "linear_recurrence": _linear_recurrence,
}
CASES = _load()
