"""What programs the library is lowered to, for a GPU that is not there.

Lowering for CUDA on the CPU takes jax's CUDA plugin (no driver) to pack a kernel; small tiles keep
compilation short.
"""

import importlib.util
import math
import re
import zlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import rl_triton_jax
from rl_triton_jax import reference
from rl_triton_jax.launch import availability
from tests.inputs import OPTIONS, make

PACKAGES = all(map(importlib.util.find_spec, ("triton", "jax_triton")))
PLUGIN = any(map(importlib.util.find_spec, ("jax_cuda12_plugin", "jax_cuda13_plugin")))
needs_cuda_plugin = pytest.mark.skipif(
    not (PACKAGES and PLUGIN), reason="needs triton, jax_triton and jax-cuda13-plugin"
)

T, N, S = 4, 8, 3


def inputs(op="gae", options="bootstrap terminated", shape=(T, N), axis=0):
    """The arrays and numbers of a call, and the operation as a function of them."""
    arguments = make(op, options, shape, axis, rng=np.random.default_rng(0))
    operands = {
        k: np.float32(x) if isinstance(x, float) else x
        for k, x in arguments.items()
        if isinstance(x, np.ndarray | float)
    }
    static = {k: x for k, x in arguments.items() if k not in operands}
    return operands, static


def bind(static, op="gae", implementation=None, library=rl_triton_jax):
    forced = {} if library is reference else {"implementation": implementation}
    function = partial(getattr(library, op), **static, **forced)
    return lambda operands: function(**operands)


def of_sine(function):
    def total(moving, still=None):
        outputs = jax.tree.leaves(function(moving | (still or {})))
        return sum(jnp.sum(jnp.sin(x)) for x in outputs)

    return total


def split(operands, *names):
    """The named operands, and the others."""
    return {k: operands[k] for k in names}, {k: operands[k] for k in operands if k not in names}


# ------------------------------------------------------------------------------------------------
# Lowered for CUDA
# ------------------------------------------------------------------------------------------------


@pytest.fixture
def small_tiles(monkeypatch):
    from rl_triton_jax.launch import configs
    from rl_triton_jax.launch import triton as launch

    def choose(plan):
        if plan.columns:
            return configs.columns(plan, 2, 2, 8, 1, split=False)
        return configs.rows(plan, 4, 8, 1, split=False)

    monkeypatch.setattr(launch, "choose", choose)


for_cuda = pytest.mark.usefixtures("small_tiles")


def lower(function, *args, **options):
    return jax.jit(function, **options).trace(*args).lower(lowering_platforms=("cuda",))


def kernels(lowered):
    return len(re.findall(r"custom_call @triton_kernel_call", lowered.as_text()))


def payloads(lowered):
    """What each launch is given: the serialised kernel, its PTX included."""
    found = []

    def visit(op):
        if "triton_kernel_call" in str(op.attributes.get("call_target_name", "")):
            attributes = op.attributes["mhlo.backend_config"]
            found.append(zlib.decompress(attributes["opaque"].value_bytes))
        return ir.WalkResult.ADVANCE

    from jax.extend.mlir import ir

    lowered.compiler_ir().operation.walk(visit)
    return found


@needs_cuda_plugin
@for_cuda
def test_a_launch_carries_ptx_and_no_ir():
    """The host hashes all of it, every time."""
    operands, static = inputs()
    (payload,) = payloads(lower(bind(static), operands))
    assert b".version" in payload
    assert b"tt.func" not in payload


def test_ir_is_cut_out_of_a_message():
    """By what it is, not by its number; all else stays, byte for byte."""
    slim = pytest.importorskip("rl_triton_jax.launch.slim")

    def field(number, value):
        size = len(value)
        digits = [size] if size < 0x80 else [size & 0x7F | 0x80, size >> 7]
        return bytes([8 * number + 2, *digits]) + value

    numbers = bytes([8 * 2, 0xAC, 0x02, 8 * 3 + 5, *range(4), 8 * 4 + 1, *range(8)])
    ptx, ir = field(6, b".version 8.0" * 30), field(7, b"module { tt.func }" * 30)

    def message(*kernel):
        launch = field(1, b"".join(kernel)) + bytes([8 * 2, 5]) + field(3, b"tt.func")
        return field(1, launch) + field(2, b"name")

    assert slim.without_ir(message(numbers, ptx, ir), slim.KERNEL) == message(numbers, ptx)


def scan(function, operands):
    def body(values, _):
        return jnp.tanh(jax.tree.leaves(function(operands | {"values": values}))[0]), None

    return jax.lax.scan(body, operands["values"], None, length=3)[0]


DATA = ("rewards", "values", "bootstrap_value")
TRANSFORMED = {
    "jit": (1, lambda f, x: f(x)),
    "vmap": (
        1,
        lambda f, x: jax.vmap(lambda r: f(x | {"rewards": r}))(jnp.stack([x["rewards"]] * 2)),
    ),
    "vmap over gamma": (1, lambda f, x: jax.vmap(lambda g: f(x | {"gamma": g}))(jnp.ones(3))),
    "jvp": (
        2,
        lambda f, x: jax.jvp(lambda d: f(x | d), (split(x, *DATA)[0],), (split(x, *DATA)[0],)),
    ),
    "grad": (2, lambda f, x: jax.grad(of_sine(f))(*split(x, *DATA))),
    "value and grad": (2, lambda f, x: jax.value_and_grad(of_sine(f))(*split(x, *DATA))),
    "vmap of grad": (
        2,
        lambda f, x: jax.vmap(
            lambda r: jax.grad(of_sine(f))({"rewards": r}, split(x, "rewards")[1])
        )(jnp.stack([x["rewards"]] * 2)),
    ),
    "scan": (1, scan),
    "grad of scan": (
        2,
        lambda f, x: jax.grad(lambda v: jnp.sum(scan(f, x | {"values": v})))(x["values"]),
    ),
    "grad of checkpoint in scan": (
        2,
        lambda f, x: jax.grad(lambda v: jnp.sum(scan(jax.checkpoint(f), x | {"values": v})))(
            x["values"]
        ),
    ),
}


@needs_cuda_plugin
@for_cuda
@pytest.mark.parametrize("name", TRANSFORMED)
def test_number_of_kernels(name):
    count, transform = TRANSFORMED[name]
    operands, static = inputs()
    function = bind(static)
    assert kernels(lower(lambda x: transform(function, x), operands)) == count


@needs_cuda_plugin
@for_cuda
@pytest.mark.parametrize("op", OPTIONS)
def test_every_operation_and_its_derivative_is_a_kernel(op):
    operands, static = inputs(op, OPTIONS[op][1])
    assert kernels(lower(bind(static, op), operands)) == 1
    first = {"linear_recurrence": "b"}.get(op, "x" if "x" in operands else "rewards")
    lowered = lower(jax.grad(of_sine(bind(static, op))), *split(operands, first))
    assert kernels(lowered) == 2


@needs_cuda_plugin
@for_cuda
@pytest.mark.parametrize("result", ["advantages", "targets"])
@pytest.mark.parametrize("op", ["gae", "vtrace"])
def test_what_is_not_read_is_not_written(op, result):
    operands, static = inputs(op, OPTIONS[op][1])
    lowered = lower(lambda x: getattr(bind(static, op)(x), result), operands)
    (line,) = re.findall(r"custom_call @triton_kernel_call.*", lowered.as_text())
    assert line.endswith(f"-> tensor<{T}x{N}xf32>")


MOVES = re.compile(
    r"stablehlo\.(?:transpose|pad|broadcast_in_dim|concatenate|slice|reverse|gather)\b"
    r".*?tensor<([\dx]*)x?\w+>.*tensor<([\dx]+)x\w+>$",
    re.MULTILINE,
)


def moved(lowered, size):
    """Operations that copy data to a result of at least so many elements."""

    def elements(shape):
        return math.prod(int(n) for n in shape.split("x") if n)

    # A broadcast to as many elements is a new name for an axis.
    return [
        x[0]
        for x in MOVES.finditer(lowered.as_text())
        if elements(x[2]) >= size
        if elements(x[1]) != elements(x[2]) or "broadcast_in_dim" not in x[0]
    ]


@needs_cuda_plugin
@for_cuda
@pytest.mark.parametrize(
    ("shape", "axis", "options"),
    [
        ((T, N), 0, "next terminated truncated"),
        ((N, T), 1, "next terminated truncated"),
        ((T, N), 0, "longer_values soft_terminated gamma_lane"),
        ((N, T), 1, "next terminated gamma_time lambda_row"),
        ((T, N), 0, "bootstrap terminated last"),
    ],
)
def test_operands_are_not_copied(shape, axis, options):
    operands, static = inputs("gae", options, shape, axis)
    assert moved(lower(bind(static), operands), T * N) == []
    assert (
        moved(
            lower(jax.vmap(bind(static)), jax.tree.map(lambda x: np.stack([x] * S), operands)),
            T * N,
        )
        == []
    )
    shared, batched = split(operands, *(k for k in operands if k not in DATA))
    batched = jax.tree.map(lambda x: np.stack([x] * S), batched)
    seeds = lower(lambda x, y: jax.vmap(lambda x: bind(static)(x | y))(x), batched, shared)
    assert moved(seeds, T * N) == []
    assert kernels(seeds) == 1


@needs_cuda_plugin
@for_cuda
@pytest.mark.parametrize(
    ("length", "lanes", "dtype", "asked", "count"),
    [
        (4096, 8, "float32", None, 1),
        (4096, 8, "float64", None, 0),
        (4096, 8, "float64", "triton", 1),
        (2048, 8, "float64", None, 1),
        (4096, 512, "float64", None, 1),
    ],
)
def test_no_kernel_where_it_would_be_slow(length, lanes, dtype, asked, count):
    """Few lanes of a long window that cannot be split over programs."""
    x = jax.ShapeDtypeStruct((lanes, length), dtype)
    function = partial(rl_triton_jax.episodic_prefix_sum, axis=1, implementation=asked)
    with jax.enable_x64(True):
        assert kernels(lower(function, x)) == count


@needs_cuda_plugin
@for_cuda
def test_gamma_is_an_operand():
    """Not a constant of the kernel: another value reuses it."""
    operands, static = inputs()
    gamma = {0.9, 0.99}
    constants = [lower(lambda x, g=g: bind(static)(x | {"gamma": g}), operands) for g in gamma]
    assert payloads(constants[0]) == payloads(constants[1])
    function = jax.jit(bind(static, implementation="scan"))
    for g in gamma:
        function(operands | {"gamma": np.float32(g)})
    assert function._cache_size() == 1


@needs_cuda_plugin
@for_cuda
@pytest.mark.parametrize(
    ("capability", "version"), [(80, "8.0"), (90, "8.0"), (100, "8.6"), (120, "8.7")]
)
def test_ptx_version(capability, version, monkeypatch):
    """The lowest that the architecture takes: an older CUDA toolchain rejects Triton's own."""
    monkeypatch.setattr(availability, "compute_capability", lambda: capability)
    operands, static = inputs()
    (payload,) = payloads(lower(bind(static), operands))
    assert re.findall(rb"\.version (\d+\.\d+)", payload) == [version.encode()]
    assert re.search(rb"\.target sm_(\d+)", payload)[1] == str(capability).encode()


@needs_cuda_plugin
@for_cuda
def test_lanes_over_devices():
    mesh = jax.make_mesh((8,), ("lanes",), (AxisType.Auto,))
    operands, static = inputs()
    shardings = jax.tree.map(
        lambda x: NamedSharding(mesh, P(*(None, "lanes")[2 - x.ndim :])), operands
    )
    text = lower(bind(static), operands, in_shardings=(shardings,)).as_text()
    assert "CustomSPMDPartitioning" in text
    assert "sdy.sharding_rule" in text


@needs_cuda_plugin
@for_cuda
def test_shard_map_launches_on_its_own_lanes():
    mesh = jax.make_mesh((8,), ("lanes",), (AxisType.Auto,))
    operands, static = inputs()
    specs = jax.tree.map(lambda x: P(*(None, "lanes")[2 - x.ndim :]), operands)
    mapped = jax.shard_map(bind(static), mesh=mesh, in_specs=(specs,), out_specs=P(None, "lanes"))
    (line,) = re.findall(r"custom_call @triton_kernel_call.*", lower(mapped, operands).as_text())
    assert f"tensor<{T}x1xf32>" in line and f"tensor<{T}x{N}xf32>" not in line


# ------------------------------------------------------------------------------------------------
# Where there is no kernel
# ------------------------------------------------------------------------------------------------


def test_no_kernel_on_a_cpu():
    """Asking for one fails when the program is lowered, since only then is the platform known."""
    operands, static = inputs()
    traced = jax.jit(bind(static, implementation="triton")).trace(operands)
    with pytest.raises(
        NotImplementedError, match=r"gae: .*run on GPUs, and this is lowered for cpu"
    ):
        traced.lower()


@pytest.mark.parametrize(
    ("capability", "package", "reason"),
    [
        (75, None, "compute capability, 75, is below 80"),
        (90, "triton is not installed", "triton is not installed"),
    ],
)
def test_no_kernel_on_a_gpu(capability, package, reason, monkeypatch):
    """None falls back."""
    monkeypatch.setattr(availability, "compute_capability", lambda: capability)
    monkeypatch.setattr(availability, "missing_package", lambda: package)
    operands, static = inputs()
    with pytest.raises(NotImplementedError, match=reason):
        lower(bind(static, implementation="triton"), operands)
    assert kernels(lower(bind(static), operands)) == 0


def test_no_kernel_where_it_cannot_be_partitioned(monkeypatch):
    """None falls back."""
    monkeypatch.setattr(availability, "missing_package", lambda: None)
    mesh = jax.make_mesh((2, 4), ("seeds", "lanes"), (AxisType.Auto,) * 2)
    operands, static = inputs()
    seeds = jax.tree.map(lambda x: jnp.stack([x, x]), operands)

    def mapped(implementation):
        function = jax.vmap(bind(static, implementation=implementation))
        specs = dict(in_specs=P("seeds"), out_specs=P("seeds"))
        return jax.shard_map(function, mesh=mesh, axis_names={"seeds"}, **specs)

    with pytest.raises(NotImplementedError, match=r"gae: .*shard_map over some axes"):
        lower(mapped("triton"), seeds)
    lowered = lower(mapped(None), seeds)
    assert kernels(lowered) == 0 and "CustomSPMDPartitioning" not in lowered.as_text()


def test_rocm_has_kernels_on_demand_only():
    """They are untried there."""
    operands, static = inputs()
    lowered = jax.jit(bind(static)).trace(operands).lower(lowering_platforms=("rocm",))
    assert kernels(lowered) == 0
    if availability.missing_package() is None:
        assert availability.why_not("rocm", asked=True) is None


@pytest.mark.parametrize("capability", [None, 90])
def test_programs_wait_on_cuda_only(capability, monkeypatch):
    """For each other, and for all that they read: they do it in PTX."""
    launch = pytest.importorskip("rl_triton_jax.launch.triton")
    words, holds = [], []

    def triton_call(operands, *, out_type, zeroed_outputs, plan, **params):
        words.extend(zeroed_outputs)
        holds.append(plan.holds)
        return [jnp.zeros(x.shape, x.dtype) for x in out_type]

    monkeypatch.setattr(launch.jax_triton, "triton_call", triton_call)
    x = jnp.zeros((20_000, 4))
    launch.call(
        "linear_recurrence",
        dict(a=x, b=x),
        {"h": jax.typeof(x)},
        axis=0,
        dtype=x.dtype,
        compute_capability=capability,
        has_actions=False,
        reverse=False,
    )
    assert len(words) == (capability is not None)
    assert holds == [capability is not None]
