"""What a check is, where checks are entered, and which operations they run on."""

import contextlib
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass

import jax

from tests.transforms.cases import BY_LANE, CASES, OPERATIONS
from tests.transforms.pieces import both


@dataclass(frozen=True)
class Check:
    """function(op, args), run under jit unless `eager`; `cases` are those that it can depend on."""

    function: Callable
    expect: str
    cases: tuple = OPERATIONS
    eager: bool = False
    context: Callable = contextlib.nullcontext

    def __call__(self, op, args):
        function = functools.partial(self.function, op)
        if not self.eager:
            function = jax.jit(function)
        with self.context():
            return function(args)


CHECKS: dict[str, Check] = {}
PLAIN = "value and gradient"
EVERY_CASE = tuple(CASES)
FLAGGED = tuple(case for case in OPERATIONS if case != "linear_recurrence")
EDGED = tuple(case for case in OPERATIONS if set(BY_LANE) & set(CASES[case].arguments.split()))
DECAYED = tuple(case for case in OPERATIONS if case != "episodic_prefix_sum")
# For checks in which JAX handles the operation as a black box, or chains rules that other checks
# put every operation through; the whole table takes a quarter of an hour on one core.
WHOLE_TABLE = "RL_TRITON_JAX_WHOLE_TABLE" in os.environ
EITHER = OPERATIONS if WHOLE_TABLE else ("gae", "linear_recurrence")


def check(name, *, expect=None, **options):
    """Adds a check; without `expect` the oracle goes through the same function."""

    def register(function):
        CHECKS[name] = Check(function, expect or name, **options)
        return function

    return register


def around(name, *, expect=PLAIN, **options):
    """Adds a check of `wrap(op, args)`, which must have the operation's value and gradient."""

    def register(wrap):
        check(name, expect=expect, **options)(lambda op, args: both(wrap(op, args), args))
        return wrap

    return register
