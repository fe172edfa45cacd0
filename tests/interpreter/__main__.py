"""Runs one group of checks and names those that fail; without a name it lists the groups."""

import sys
import traceback
from collections.abc import Callable
from functools import partial

import pytest

from rl_triton_jax.primitives import estimators
from tests import transforms
from tests.interpreter.kernels import checks_of, checks_of_policy
from tests.interpreter.launch import install
from tests.interpreter.operands import checks_of_nonfinite, checks_of_shared, checks_of_types
from tests.interpreter.programs import PROGRAMS, checks_of_others, checks_of_table

GROUPS: dict[str, Callable] = {
    **{name: partial(checks_of, name) for name in estimators.__all__},
    "retrace_from_policy": checks_of_policy,
    "types": checks_of_types,
    "nonfinite": checks_of_nonfinite,
    "shared": checks_of_shared,
    "gae in programs": partial(checks_of_table, "gae", PROGRAMS),
    "others in programs": checks_of_others,
}

TABLE = {f"table {case}": partial(checks_of_table, case) for case in transforms.CASES}
"""Groups that take minutes each; not part of the tests."""


def main(group):
    install()
    failed = skipped = count = 0
    for name, check in (GROUPS | TABLE)[group]():
        count += 1
        try:
            check()
        except pytest.skip.Exception as reason:
            skipped += 1
            print(f"skipped {name}: {reason}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc(limit=-4)}", flush=True)
    print(f"{group}: {count} checks, {skipped} skipped, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(main(sys.argv[1]))
    print(*GROUPS, sep="\n")
