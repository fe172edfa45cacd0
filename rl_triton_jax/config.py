"""Which implementation runs: an argument, a context manager or an environment variable."""

import contextlib
import os
from collections.abc import Generator
from contextvars import ContextVar

IMPLEMENTATIONS = ("triton", "associative_scan", "scan")
"""The fused GPU kernels, the parallel scan over time, the loop over time."""

ENVIRONMENT_VARIABLE = "RL_TRITON_JAX_IMPLEMENTATION"

_default: ContextVar[str | None] = ContextVar("rl_triton_jax_default_implementation", default=None)
_unfused: ContextVar[bool] = ContextVar("rl_triton_jax_unfused", default=False)


def check(implementation: str | None, where: str) -> str | None:
    """Returns the name if it is one, or None."""
    if implementation is None or implementation in IMPLEMENTATIONS:
        return implementation
    names = ", ".join(map(repr, IMPLEMENTATIONS))
    raise ValueError(
        f"{where}: implementation: got {implementation!r}, expected None or one of {names}"
    )


@contextlib.contextmanager
def default_implementation(implementation: str | None) -> Generator[None]:
    """Sets what `implementation=None` means while a function is traced.

    It is read when a call is traced: a function that `jax.jit` has compiled keeps what it was
    traced with. The environment variable `RL_TRITON_JAX_IMPLEMENTATION` sets the same for a whole
    process; the context manager goes first, and an explicit argument before both.

    Args:
      implementation: "triton", "associative_scan", "scan", or None for the library's own choice.

    Raises:
      ValueError: for any other name.

    Example:
      >>> import jax.numpy as jnp
      >>> import rl_triton_jax
      >>> with rl_triton_jax.default_implementation("associative_scan"):
      ...     rl_triton_jax.discounted_returns(jnp.ones(3), gamma=0.5, bootstrap_value=0.0)
      Array([1.75, 1.5 , 1.  ], dtype=float32)
    """
    token = _default.set(check(implementation, "default_implementation"))
    try:
        yield
    finally:
        _default.reset(token)


def requested(implementation: str | None, op: str) -> str | None:
    """The implementation that a call asks for, by argument, context or environment; or None."""
    if implementation is not None:
        return check(implementation, op)
    if is_unfused():
        return "associative_scan"
    if _default.get() is not None:
        return _default.get()
    return check(os.environ.get(ENVIRONMENT_VARIABLE) or None, ENVIRONMENT_VARIABLE)


def resolve(
    implementation: str | None, platform: str | None, op: str, why_no_kernel: str | None
) -> str:
    """The implementation that a call is lowered to.

    Args:
      implementation: what was asked for.
      platform: "cpu", "cuda", "rocm", or None for any other.
      op: for messages.
      why_no_kernel: the reason why this call cannot run as a kernel or had better not, if any.
    """
    if implementation == "triton" and why_no_kernel is not None:
        raise NotImplementedError(
            f"{op}: implementation: got 'triton', but {why_no_kernel}; "
            "expected 'associative_scan', 'scan' or None"
        )
    if implementation is not None:
        return implementation
    # Inside a computation a kernel takes the least time of all forms at every shape measured
    # (benchmarks/results/ingraph.json), save those that `launch.availability` names.
    if why_no_kernel is None:
        return "triton"
    # On a CPU the loop beats the parallel scan 1.6 to 5 times at every shape tried, and elsewhere a
    # loop is one kernel launch a row.
    return "scan" if platform == "cpu" else "associative_scan"


@contextlib.contextmanager
def unfused() -> Generator[None]:
    """Within it, the operations are plain JAX ones: no primitive, JAX's own derivatives."""
    token = _unfused.set(True)
    try:
        yield
    finally:
        _unfused.reset(token)


def is_unfused() -> bool:
    """Whether `unfused` is in force."""
    return _unfused.get()
