"""Whether kernels can run here, and whether they are what suits a call; if not, why not."""

import functools
import importlib.util
from collections.abc import Sequence

import jax
from jax.extend import backend
from jaxlib import gpu_triton

LOWEST_COMPUTE_CAPABILITY = 80


@functools.cache
def missing_package() -> str | None:
    """Why no kernel can be built in this environment; None if one can."""
    for package in ("triton", "jax_triton"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    if not hasattr(gpu_triton, "TritonKernel"):  # jaxlib takes it from its plugins
        return "JAX's GPU plugin is not installed"
    return None


@functools.cache
def compute_capability() -> int:
    """Of the first GPU; 90 (Hopper) where there is none, as when lowering for another machine."""
    try:
        major, minor = jax.devices("cuda")[0].compute_capability.split(".")
    except RuntimeError:
        return 90
    return 10 * int(major) + int(minor)


def default_platform() -> str:
    """That of the default device, as lowering rules name it: "cpu", "cuda", "rocm", "tpu"."""
    client = backend.get_backend()
    if client.platform != "gpu":
        return client.platform
    return "rocm" if "rocm" in client.platform_version else "cuda"


def why_not(platform: str | None, *, asked: bool) -> str | None:
    """Why there are no kernels on this platform; None if there are.

    Args:
      platform: "cpu", "cuda", "rocm", or None for any other.
      asked: whether the call asks for a kernel, rather than for what suits the machine.
    """
    if platform not in ("cuda", "rocm"):
        return (
            f"Triton kernels run on GPUs, and this is lowered for {platform or 'another platform'}"
        )
    if missing_package() is not None:
        return missing_package()
    if platform == "rocm":
        return None if asked else "kernels are untried on ROCm"
    if compute_capability() < LOWEST_COMPUTE_CAPABILITY:
        return f"the GPU's compute capability, {compute_capability()}, is below 80"
    return None


def can_split(cuda: bool, dtype: str, operands: Sequence[str]) -> bool:
    """Whether time may be split over programs: a map has to fit a word, and what a mask knows of
    rows does not; they wait for words in PTX."""
    return cuda and dtype == "float32" and "mask" not in operands


LONG, FEW = 2048, 512
"""gae in float64, in-graph µs of the kernel and of the parallel scan: 16 and 28 at 1024x64, 104 and
72 at 8192x64, 737 and 146 at 65536x16, 91 and 242 at 2048x4096 (benchmarks/results/ingraph.json).
"""


def why_slow(length: int, lanes: int, *, split: bool) -> str | None:
    """Why the parallel scan takes less time than the kernel; None if it does not."""
    if split or length <= LONG or lanes >= FEW:
        return None
    return f"with {lanes} lanes, a loop over blocks of {length} rows is slow"
