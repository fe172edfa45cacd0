"""The self-check: one screenful that is right about this machine, and no wrong result passes it."""

import jax
import pytest

import rl_triton_jax
from rl_triton_jax import config, selfcheck
from rl_triton_jax.__main__ import main

SHAPE = (3, 2)


@pytest.fixture
def one_implementation(monkeypatch):
    monkeypatch.setattr(config, "IMPLEMENTATIONS", ("scan",))


def breaks(monkeypatch, op, wrong):
    """Puts `wrong` behind an operation's outputs."""
    right = getattr(rl_triton_jax, op)
    monkeypatch.setattr(rl_triton_jax, op, lambda **arguments: wrong(right(**arguments)))


def shifted(outputs):
    """Adds to the first of an operation's outputs, or to the only one."""
    if isinstance(outputs, tuple):
        return outputs._replace(advantages=outputs.advantages + 1e-2)
    return outputs + 1e-2


def steeper(outputs):
    """The right values, with derivatives that are 1% too large."""
    return jax.tree.map(lambda x: 1.01 * x - jax.lax.stop_gradient(0.01 * x), outputs)


def test_covers_every_operation():
    others = {"GAEOutput", "VTraceOutput", "default_implementation", "reference"}
    assert set(selfcheck.LOOPS) == set(rl_triton_jax.__all__) - others


def test_report(capsys):
    assert main(shape=SHAPE, repeats=1) == 0
    report = capsys.readouterr().out
    if jax.default_backend() == "cpu":
        assert "implementation=None picks scan on cpu" in report
    assert all(f"\n{op} " in report for op in selfcheck.LOOPS)
    lines = report.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("op", selfcheck.LOOPS)
@pytest.mark.usefixtures("one_implementation")
def test_wrong_values_fail(op, monkeypatch, capsys):
    breaks(monkeypatch, op, shifted)
    assert main((op,), SHAPE, repeats=0) == 1
    assert f"WRONG: {op}, scan: values are off by " in capsys.readouterr().out


@pytest.mark.usefixtures("one_implementation")
def test_nan_fails(monkeypatch, capsys):
    breaks(monkeypatch, "retrace", lambda targets: targets.at[0, 0].set(jax.numpy.nan))
    assert main(("retrace",), SHAPE, repeats=0) == 1
    assert "WRONG: retrace, scan: values are off by nan" in capsys.readouterr().out


@pytest.mark.usefixtures("one_implementation")
def test_wrong_gradients_fail(monkeypatch, capsys):
    breaks(monkeypatch, "gae", steeper)
    assert main(("gae",), SHAPE, repeats=0) == 1
    assert "WRONG: gae, scan: gradients are off by " in capsys.readouterr().out


def test_a_default_that_cannot_run_fails(monkeypatch, capsys):
    def refuse(**arguments):
        raise NotImplementedError("no kernel")

    monkeypatch.setattr(rl_triton_jax, "gae", refuse)
    assert main(("gae",), SHAPE, repeats=0) == 1
    report = capsys.readouterr().out
    assert "picked, but it cannot run" in report
    assert "scan runs 0 of 1 operations here: no kernel" in report
