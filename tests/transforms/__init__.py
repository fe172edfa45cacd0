"""The table of transformations that every operation must pass, and the plain loops it must equal.

A case is one call of an operation: a dict of arrays, all differentiable but the mask, and static
options. A check takes an operation, as a function of that dict, and the dict, and returns arrays.
It runs on the library's operation and on the oracle, a `lax.scan` over the rows that JAX
differentiates, and both must give the same. `expect` names the check whose oracle result is
compared instead: a donated or sharded gradient must equal the plain one.

`CHECKS` is the table. One function in `calls`, `derivatives`, `batches`, `operands`, `control_flow`
or `devices` adds a check, one line of `cases.CASES` a call. Some checks run over two operations
only, or over all that they apply to if the environment variable RL_TRITON_JAX_WHOLE_TABLE is set.
"""

from tests.transforms import batches, calls, control_flow, derivatives, devices, operands
from tests.transforms.cases import CASES, OPERATIONS, arguments, operation, oracle
from tests.transforms.checks import CHECKS, PLAIN
from tests.transforms.pieces import along, both, copies, floats, gradient, hard, loss

__all__ = [  # the modules whose checks are in the table, and what tests use
    "CASES",
    "CHECKS",
    "OPERATIONS",
    "PLAIN",
    "WITHOUT_KERNELS",
    "along",
    "arguments",
    "batches",
    "both",
    "calls",
    "control_flow",
    "copies",
    "derivatives",
    "devices",
    "floats",
    "gradient",
    "hard",
    "loss",
    "operands",
    "operation",
    "oracle",
]

WITHOUT_KERNELS = {"shard_map over some axes"} | {
    name for name, check in CHECKS.items() if check.expect == "eval_shape"
}
"""Checks in which no kernel runs."""
