"""Shapes and types of coefficients, flags and edges."""

import functools

import jax
import numpy as np

from tests.transforms.checks import DECAYED, EDGED, EITHER, FLAGGED, check
from tests.transforms.pieces import (
    both,
    copies,
    direction,
    floats,
    gradient,
    hard,
    odd,
    one_for_all_lanes,
    spread,
    vmapped,
)

for shape in ("lane", "time", "full"):

    @check(f"coefficients by {shape}", cases=DECAYED)
    def _(op, args, shape=shape):
        return both(op, spread(args, shape))


@check("vmap of gradient, full coefficients", cases=EITHER)
def _(op, args):
    args = spread(args, "full")
    return vmapped(functools.partial(gradient, op), args, odd(args))(copies(args, 2, odd(args)))


def beside_flags(op, args):
    """Value and cotangents, with flags that have none."""
    out, vjp = jax.vjp(op, args)
    (cotangents,) = vjp(direction(out))
    for n, x in cotangents.items():
        assert (x.dtype == jax.dtypes.float0) == (n not in floats(args))
    return out, floats(cotangents)


@check("bool flags", cases=FLAGGED)
def _(op, args):
    return beside_flags(op, hard(args, bool))


@check("int flags", cases=("gae",))
def _(op, args):
    return beside_flags(op, hard(args, np.int32))


@check("scalar bootstrap and init", cases=EDGED)
def _(op, args):
    return both(op, one_for_all_lanes(args))
