"""Trains PPO on a gymnax environment, times it and draws the learning curve."""

import argparse
import statistics
import time
from functools import partial
from pathlib import Path

import gymnax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.ppo import report
from benchmarks.ppo.train import Config, assign_credit, make_train


def credit_seconds(config: Config, calls: int = 100) -> float:
    """Seconds of a standalone call of `assign_credit` over all seeds, the median of five means."""
    shape = (config.seeds, config.steps, config.envs)
    floats = jax.random.normal(jax.random.key(0), (3, *shape))
    flags = jax.random.bernoulli(jax.random.key(1), 0.01, (2, *shape))
    assign = jax.jit(jax.vmap(partial(assign_credit, config)))
    jax.block_until_ready(assign(*floats, *flags))
    means = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls - 1):
            assign(*floats, *flags)
        jax.block_until_ready(assign(*floats, *flags))
        means.append((time.perf_counter() - start) / calls)
    return statistics.median(means)


def parse(argv: list[str] | None) -> tuple[Config, Path]:
    """Reads the command line: what to train and where the plot goes."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = parser.add_argument
    option(
        "--env",
        choices=gymnax.registered_envs,
        metavar="ENV",
        default=Config.env,
        help="a gymnax environment",
    )
    option("--seeds", type=int, default=Config.seeds, help="how many, trained side by side")
    option("--envs", type=int, default=Config.envs, help="environments of a seed")
    option("--steps", type=int, default=Config.steps, help="rollout length")
    option(
        "--total-timesteps",
        type=int,
        default=Config.total_timesteps,
        help="environment steps of a seed, all its environments together",
    )
    option(
        "--implementation",
        choices=("scan", "associative_scan", "triton"),
        help="passed on to gae; None is the library's own choice",
    )
    option("--plot", type=Path, help="the learning curve's PNG; None is ppo_<env>.png")
    arguments = vars(parser.parse_args(argv))
    plot = arguments.pop("plot") or Path(f"ppo_{arguments['env']}.png")
    try:
        return Config(**arguments), plot
    except ValueError as error:
        parser.error(str(error))


def main(argv: list[str] | None = None) -> None:
    """Trains, then prints the table and writes the learning curve."""
    config, plot = parse(argv)
    keys = jax.vmap(jax.random.key)(jnp.arange(config.seeds))
    with report.progress(config.updates) as on_update:
        start = time.perf_counter()
        train = jax.jit(make_train(config, on_update)).lower(keys).compile()
        compiled = time.perf_counter()
        episodes = jax.block_until_ready(train(keys))
        ended = time.perf_counter()
        jax.effects_barrier()  # the last callbacks, before the bar closes

    timesteps = config.updates * config.steps * config.envs
    run_seconds = ended - compiled
    call_seconds = credit_seconds(config)
    count, return_sum = map(np.asarray, episodes)
    title = f"PPO on {config.env}"
    report.print_table(
        f"{title}, {config.seeds} seeds of {timesteps:,} steps, {jax.devices()[0].device_kind}",
        report.mean_returns(count, return_sum, bins=10)[-1],
        {
            "compile time": f"{compiled - start:.1f} s",
            "run time": f"{run_seconds:.1f} s",
            "steps/s, all seeds": f"{config.seeds * timesteps / run_seconds:,.0f}",
            "one call of gae": f"{call_seconds * 1e3:.3f} ms",
            "credit assignment's share": f"{call_seconds * config.updates / run_seconds:.2%}",
        },
    )
    curve = report.mean_returns(count, return_sum, bins=100)
    report.plot_curve(plot, title, curve, timesteps)
    print(f"learning curve: {plot}")


if __name__ == "__main__":
    main()
