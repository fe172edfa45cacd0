"""Other libraries' kernels on the same arrays, where their packages can be imported.

rl-triton (PyTorch and Triton) and PufferLib (PyTorch and CUDA) take batch-major float32, flags
included. PufferLib reads the reward and the flag that arrived with the row's observation, and
leaves the last row out: it gets both a row later, and is compared on the rows that it has.
"""

import importlib.util
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from benchmarks import timing
from benchmarks.registry import GAMMA, LAMBDA, Case

PACKAGES = {"rl-triton": "rl_triton", "PufferLib": "pufferlib"}
RUNS = 20


def available(name: str) -> bool:
    """Whether a peer's package, and PyTorch with a GPU, are here."""
    if not all(map(importlib.util.find_spec, (PACKAGES[name], "torch"))):
        return False
    import torch

    return torch.cuda.is_available()


def _tensor(x: jax.Array):
    import torch

    return torch.from_dlpack(x.astype(jnp.float32))


DISCOUNT = {"gamma": GAMMA}
BOTH = {**DISCOUNT, "lambda_": LAMBDA}

RL_TRITON = {
    "gae": lambda peer, x: peer.compute_gae(
        x["rewards"], x["values"], x["terminated"], last_value=x["bootstrap_value"], **BOTH
    ),
    "vtrace": lambda peer, x: peer.compute_vtrace(
        x["log_rho"],
        x["zeros"],
        x["values"],
        x["rewards"],
        x["terminated"],
        last_value=x["bootstrap_value"],
        **DISCOUNT,
    )[::-1],
    "lambda_returns": lambda peer, x: peer.compute_lambda_returns(
        x["rewards"], x["next_values"], x["terminated"], bootstrap_values=x["next_values"], **BOTH
    ),
    "discounted_returns": lambda peer, x: peer.compute_discounted_returns(
        x["rewards"], x["terminated"], bootstrap_values=x["bootstrap_values"], **DISCOUNT
    ),
    "eligibility_traces": lambda peer, x: peer.compute_eligibility_traces(
        x["x"], x["terminated"], **BOTH
    ),
    "episodic_prefix_sum": lambda peer, x: peer.compute_episodic_prefix_sum(
        x["x"], x["terminated"]
    ),
}
"""Operation -> rl-triton's call, from the package and our arguments; advantages first."""


def _rl_triton(case: Case, given: Mapping[str, jax.Array]) -> Callable[[], tuple]:
    import rl_triton
    import torch

    if case.op not in RL_TRITON:
        raise NotImplementedError(f"rl-triton has no {case.op}")
    x = {name: _tensor(array) for name, array in given.items()}
    x["zeros"] = torch.zeros_like(x["terminated"])
    if "bootstrap_value" in x:  # for some it is the last column of an array
        x["bootstrap_values"] = x["zeros"].clone()
        x["bootstrap_values"][:, -1] = x["bootstrap_value"]

    def run():
        outputs = RL_TRITON[case.op](rl_triton, x)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return run


def _pufferlib(case: Case, given: Mapping[str, jax.Array]) -> Callable[[], tuple]:
    import torch
    from pufferlib import _C  # noqa: F401 (registers the operator)

    if case.op != "gae":
        raise NotImplementedError(f"PufferLib has no {case.op}")
    rewards, flags = (torch.roll(_tensor(given[name]), 1, 1) for name in ("rewards", "terminated"))
    values = _tensor(given["values"])
    ratio, advantages = torch.ones_like(values), torch.zeros_like(values)

    def run():
        torch.ops.pufferlib.compute_puff_advantage(
            values, rewards, flags, ratio, advantages, GAMMA, LAMBDA, 1.0, 1.0
        )
        return (advantages[:, :-1],)

    return run


PEERS = {"rl-triton": _rl_triton, "PufferLib": _pufferlib}


def comparable(name: str, given: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """The arguments with which our operation gives what a peer gives."""
    if name != "PufferLib":
        return dict(given)
    rows = {k: given[k][:, :-1] for k in ("rewards", "values", "terminated")}
    return rows | {"bootstrap_value": given["values"][:, -1]}


def device_samples(run: Callable[[], tuple]) -> timing.Samples:
    """The sum of the kernel times of a run, by the profiler that times JAX's programs."""
    import torch
    from jax.experimental.mosaic.gpu import profiler

    cupti = profiler.mosaic_gpu_lib._mosaic_gpu_ext
    run()
    torch.cuda.synchronize()
    cupti._cupti_init()
    try:
        for _ in range(RUNS):
            run()
        torch.cuda.synchronize()
    finally:
        kernels = cupti._cupti_get_timings(True)
    a_run = len(kernels) // RUNS
    if not a_run or len(kernels) % RUNS:
        raise RuntimeError(f"CUPTI saw {len(kernels)} kernels in {RUNS} runs")
    return timing.from_kernels([kernels[i * a_run : (i + 1) * a_run] for i in range(RUNS)])
