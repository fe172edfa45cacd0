"""Kernel bodies in Triton's interpreter, alone and in programs that JAX compiles: no GPU needed.

Each group of checks of `tests/interpreter` runs in a process of its own, which prints the names
of those that fail.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Named here too, since that module can only be imported under the interpreter.
GROUPS = (
    "vtrace",  # the longest first, for several workers
    "gae",
    "types",
    "gae in programs",
    "others in programs",
    "shared",
    "nonfinite",
    "retrace",
    "retrace_from_policy",
    "lambda_returns",
    "discounted_returns",
    "episodic_prefix_sum",
    "eligibility_traces",
    "linear_recurrence",
)

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("triton", "jax_triton"))),
    reason="needs triton and jax_triton",
)


def run(*arguments):
    environment = os.environ | {"TRITON_INTERPRET": "1", "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [sys.executable, "-m", "tests.interpreter", *arguments],
        cwd=Path(__file__).parents[1],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize("group", GROUPS)
def test_kernels(group):
    worker = run(group)
    assert worker.returncode == 0, worker.stdout


def test_all_groups_run():
    assert sorted(run().stdout.splitlines()) == sorted(GROUPS)
