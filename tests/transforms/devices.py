"""Several devices: shard_map, sharded jit, explicit meshes, pmap."""

import functools
import math

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.transforms.batches import lane_axes, over_seeds
from tests.transforms.cases import DEVICES, LENGTH
from tests.transforms.checks import EDGED, EITHER, EVERY_CASE, FLAGGED, PLAIN, around, check
from tests.transforms.operands import beside_flags
from tests.transforms.pieces import (
    along,
    both,
    by_few,
    copies,
    direction,
    floats,
    hard,
    leader,
    one_for_all_lanes,
    scanned,
)

SEEDS = 2


def needs(devices):
    if jax.device_count() < devices:
        pytest.skip(f"needs {devices} devices")


def new_mesh(kind=AxisType.Auto, **sizes):
    needs(math.prod(sizes.values()))
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * len(sizes))


def mesh(kind=AxisType.Auto):
    return new_mesh(kind, lanes=DEVICES)


def mesh_of_seeds(kind=AxisType.Auto):
    return new_mesh(kind, seeds=SEEDS, lanes=max(DEVICES // SEEDS, 1))


def spec(x, *leading):
    """Lanes are the last axis; scalars are replicated."""
    rank = x.ndim - len(leading)
    return P(*leading, *[None] * (rank - 1), *["lanes"] * (rank > 0))


def specs(args, *leading):
    return {n: spec(x, *leading) for n, x in args.items()}


def put(args, mesh, *leading):
    return {n: jax.device_put(x, NamedSharding(mesh, spec(x, *leading))) for n, x in args.items()}


def by_shard(op, args, **options):
    return jax.shard_map(
        op,
        mesh=mesh(),
        in_specs=(specs(args),),
        out_specs=spec(args[leader(args)]),
        **options,
    )


def without_gathering(f, args):
    """Compiles and runs; the lanes are independent, so nothing may be gathered."""
    program = jax.jit(f).lower(args).compile()
    assert "all-gather" not in program.as_text()
    return program(args)


@around("pmap")
def _(op, args):
    mapped = jax.pmap(op, in_axes=({n: x.ndim - 1 if x.ndim else None for n, x in args.items()},))

    def f(args):
        lanes = {n: x.reshape(*x.shape[:-1], DEVICES, -1) if x.ndim else x for n, x in args.items()}
        return jax.tree.map(lambda y: jnp.moveaxis(y, 0, 1).reshape(LENGTH, -1), mapped(lanes))

    return f


@check("pmap, psum and pmean", expect="named axis, psum and pmean", eager=True, cases=EITHER)
def _(op, args):
    needs(2)
    return jax.pmap(over_seeds(op), axis_name="seed")(copies(args, 2))


around("shard_map")(by_shard)


@check("shard_map, eager", expect="value", eager=True, cases=EITHER)
def _(op, args):
    return by_shard(op, args)(args)


around("shard_map, check_vma=False", cases=EITHER)(functools.partial(by_shard, check_vma=False))


@around("shard_map of checkpoint", cases=EITHER)
def _(op, args):
    return by_shard(jax.checkpoint(op), args)


@around("shard_map of vmap over lanes", cases=EITHER)
def _(op, args):
    return by_shard(jax.vmap(op, (lane_axes(args),), 1), args)


@check("gradient inside shard_map", expect=PLAIN)
def _(op, args):
    """That of a replicated operand comes out summed over the devices."""
    out_specs = (spec(args[leader(args)]), specs(floats(args)))
    inside = functools.partial(both, op)
    return jax.shard_map(inside, mesh=mesh(), in_specs=(specs(args),), out_specs=out_specs)(args)


@check("shard_map, bool flags", expect="bool flags", cases=FLAGGED)
def _(op, args):
    args = hard(args, bool)
    return beside_flags(by_shard(op, args), args)


@check("shard_map, replicated bootstrap and init", expect="scalar bootstrap and init", cases=EDGED)
def _(op, args):
    args = one_for_all_lanes(args)
    return both(by_shard(op, args), args)


@check("third order of shard_map", expect="third order", cases=EITHER)
def _(op, args):
    f, few = by_few(by_shard(op, args), args)
    return jax.jvp(jax.grad(along(f)), (few,), (direction(few),))[1]


@check("scan in shard_map", expect="scan over results", cases=EITHER)
def _(op, args):
    return both(by_shard(scanned(op), args), args)


@check("vmap of shard_map", expect=f"{PLAIN} of vmap, all arguments", cases=EITHER)
def _(op, args):
    return both(jax.vmap(by_shard(op, args)), copies(args, 2))


@check("shard_map over some axes", expect=f"{PLAIN} of vmap, all arguments", cases=EITHER)
def _(op, args):
    """No kernel can be partitioned there: None falls back."""
    f = jax.shard_map(
        jax.vmap(op.with_options(implementation=None)),
        mesh=mesh_of_seeds(),
        in_specs=P("seeds"),
        out_specs=P("seeds"),
        axis_names={"seeds"},
    )
    return both(f, copies(args, SEEDS))


@check("jit over devices", expect=PLAIN, eager=True)
def _(op, args):
    return without_gathering(functools.partial(both, op), put(args, mesh()))


@check("jit over devices, only the rows put there", expect=PLAIN, eager=True, cases=EITHER)
def _(op, args):
    rows = put({n: x for n, x in args.items() if x.ndim == 2}, mesh())
    return without_gathering(functools.partial(both, op), args | rows)


@check("jit over devices, scan", expect="scan over results", eager=True, cases=EITHER)
def _(op, args):
    return without_gathering(functools.partial(both, scanned(op)), put(args, mesh()))


@check(
    "jit over devices, vmap over seeds",
    expect=f"vmap of {PLAIN}, all arguments",
    eager=True,
    cases=EITHER,
)
def _(op, args):
    batch = put(copies(args, SEEDS), mesh_of_seeds(), "seeds")
    return without_gathering(jax.vmap(functools.partial(both, op)), batch)


@check(
    "jit over devices, spmd_axis_name",
    expect=f"vmap of {PLAIN}, all arguments",
    eager=True,
    cases=EITHER,
)
def _(op, args):
    batch = put(copies(args, SEEDS), mesh_of_seeds(), "seeds")
    with jax.set_mesh(mesh_of_seeds()):
        f = jax.vmap(functools.partial(both, op), spmd_axis_name="seeds")
        return without_gathering(f, batch)


@check("jit over devices, time split", expect=PLAIN, eager=True, cases=EITHER)
def _(op, args):
    """The rows have to be gathered then, and the result is right all the same."""
    split = NamedSharding(new_mesh(time=LENGTH), P("time"))
    args = {n: jax.device_put(x, split) if len(x.shape) == 2 else x for n, x in args.items()}
    return jax.jit(functools.partial(both, op))(args)


def explicit(f, args, mesh, *leading):
    """Runs on a mesh of explicit axes, where types hold shardings: results have the rows', and
    gradients their operands'."""
    with jax.set_mesh(mesh):
        args = put(args, mesh, *leading)
        out, gradients = jax.jit(f)(args)
        for y in jax.tree.leaves(out):
            assert jax.typeof(y).sharding.spec == spec(args[leader(args)], *leading)
        for name, y in gradients.items():
            assert jax.typeof(y).sharding.spec == spec(args[name], *leading), name
        return out, gradients


@check("explicit mesh", expect=PLAIN, eager=True, cases=EVERY_CASE)
def _(op, args):
    return explicit(functools.partial(both, op), args, mesh(AxisType.Explicit))


@check("explicit mesh, scan", expect="scan over results", eager=True, cases=EITHER)
def _(op, args):
    return explicit(functools.partial(both, scanned(op)), args, mesh(AxisType.Explicit))


@check(
    "explicit mesh, vmap over seeds",
    expect=f"vmap of {PLAIN}, all arguments",
    eager=True,
    cases=EITHER,
)
def _(op, args):
    f = jax.vmap(functools.partial(both, op), spmd_axis_name="seeds")
    return explicit(f, copies(args, SEEDS), mesh_of_seeds(AxisType.Explicit), "seeds")
