"""The training example: it runs, and learns."""

import importlib.util
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gymnax") is None, reason="needs the extra ppo"
)


def test_cart_pole_is_learnt():
    """A pole that falls after 20 steps at first stays up much longer."""
    from benchmarks.ppo.train import Config, make_train

    config = Config(seeds=2, envs=8, steps=64, total_timesteps=20_000)
    seen = []
    train = make_train(config, lambda count, return_sum: seen.append((count, return_sum)))
    count, return_sum = jax.jit(train)(jax.vmap(jax.random.key)(jnp.arange(config.seeds)))
    jax.effects_barrier()
    assert count.shape == return_sum.shape == (config.updates, config.seeds)
    np.testing.assert_allclose(seen, np.stack([count.sum(1), return_sum.sum(1)], 1), rtol=1e-6)
    mean = return_sum.sum(1) / np.maximum(count.sum(1), 1)
    assert mean[:3].mean() < 40 < 80 < mean[-5:].mean()


def test_command_line(tmp_path, capsys):
    from benchmarks.ppo.__main__ import main

    plot = tmp_path / "curve.png"
    sizes = ("--seeds", "1", "--envs", "2", "--steps", "16", "--total-timesteps", "96")
    main([*sizes, "--plot", str(plot)])
    assert plot.stat().st_size > 1000
    assert re.search(r"credit assignment's share.*%", capsys.readouterr().out)


def test_too_few_steps_are_refused(capsys):
    from benchmarks.ppo.__main__ import parse

    with pytest.raises(SystemExit):
        parse(["--total-timesteps", "10"])
    assert "at least one rollout" in capsys.readouterr().err
