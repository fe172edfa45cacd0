"""Eight CPU devices, set up before JAX starts; no test depends on another or on their order.

Nearly all of the time is compilation, of programs that run once: XLA is told to do it quickly.
"""

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8"
    + " --xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
)

import jax
import pytest

collect_ignore = ["interpreter"]  # runs in a process of its own, under Triton's interpreter


def pytest_collection_modifyitems(items):
    if jax.default_backend() == "gpu":
        return
    skip = pytest.mark.skip(reason="needs a GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
