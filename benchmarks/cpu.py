"""`gae` against hand-written scans on the CPU: `python -m benchmarks.cpu`.

Each figure is the median over interleaved pairs of (time of gae) / (time of a baseline), both
compiled, on the same arrays; the row "itself" times the same code twice and shows the noise.
"""

import argparse
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from rich.console import Console
from rich.progress import track
from rich.table import Table

import rl_triton_jax

SHAPES = [(128, 8), (128, 1024), (128, 4096), (1024, 64), (16, 8192), (2048, 512)]
GAMMA, LAMBDA = 0.99, 0.95


def hand_written_scan(unroll: int) -> Callable:
    """The loop that PPO scripts carry, as they write it."""

    def gae(rewards, values, dones, last_value):
        def step(carry, row):
            advantage, next_value = carry
            reward, value, done = row
            delta = reward + GAMMA * next_value * (1 - done) - value
            advantage = delta + GAMMA * LAMBDA * (1 - done) * advantage
            return (advantage, value), advantage

        start = (jnp.zeros_like(last_value), last_value)
        _, advantages = lax.scan(step, start, (rewards, values, dones), reverse=True, unroll=unroll)
        return advantages, advantages + values

    return gae


def hand_written_associative_scan(rewards, values, dones, last_value):
    """The same by `lax.associative_scan`."""

    def compose(later, earlier):
        return later[0] * earlier[0], earlier[1] + earlier[0] * later[1]

    next_values = jnp.concatenate([values[1:], last_value[None]])
    deltas = rewards + GAMMA * next_values * (1 - dones) - values
    decays = GAMMA * LAMBDA * (1 - dones)
    _, advantages = lax.associative_scan(compose, (decays, deltas), reverse=True)
    return advantages, advantages + values


def ours(rewards, values, dones, last_value):
    """What users call."""
    return rl_triton_jax.gae(
        rewards, values, dones, gamma=GAMMA, lambda_=LAMBDA, bootstrap_value=last_value
    )


BASELINES = {
    "itself": ours,
    "lax.scan(unroll=1)": hand_written_scan(1),
    "lax.scan(unroll=16)": hand_written_scan(16),
    "associative_scan": hand_written_associative_scan,
}


def rollout(steps: int, envs: int) -> tuple[jax.Array, ...]:
    """Random rewards, values, dones and last values."""
    keys = jax.random.split(jax.random.key(0), 4)
    rewards, values = (jax.random.normal(key, (steps, envs)) for key in keys[:2])
    return rewards, values, jax.random.bernoulli(keys[2], 0.05, (steps, envs)), values[0]


def seconds(function: Callable, arrays: tuple) -> float:
    """One timed call."""
    start = time.perf_counter()
    jax.block_until_ready(function(*arrays))
    return time.perf_counter() - start


def measure(steps: int, envs: int, pairs: int) -> dict[str, float]:
    """Median ratio of gae's time to each baseline's."""
    arrays = rollout(steps, envs)
    gae = jax.jit(ours).lower(*arrays).compile()
    baselines = {name: jax.jit(f).lower(*arrays).compile() for name, f in BASELINES.items()}
    for name, function in baselines.items():
        for got, expected in zip(function(*arrays), gae(*arrays), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4, err_msg=name)
    ratios = {name: [] for name in baselines}
    for pair in range(pairs):
        for name, function in baselines.items():
            first, second = (gae, function) if pair % 2 else (function, gae)
            times = {first: seconds(first, arrays), second: seconds(second, arrays)}
            ratios[name].append(times[gae] / times[function])
    return {name: float(np.median(r)) for name, r in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    pairs = parser.parse_args().pairs
    table = Table(title=f"time of gae / time of the baseline, median of {pairs} pairs")
    table.add_column("T x N")
    for name in BASELINES:
        table.add_column(name, justify="right")
    table.add_column("to the fastest", justify="right")
    for steps, envs in track(SHAPES, "timing"):
        ratios = measure(steps, envs, pairs)
        fastest = max(ratio for name, ratio in ratios.items() if name != "itself")
        cells = [f"{ratio:.2f}" for ratio in (*ratios.values(), fastest)]
        table.add_row(f"{steps}x{envs}", *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
