"""The library's launch, sent to the interpreter."""

import ctypes
import math
import threading
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter

from rl_triton_jax.kernels import exchange, hold
from rl_triton_jax.launch import availability, configs
from rl_triton_jax.launch import plan as plans
from rl_triton_jax.launch import triton as launch
from rl_triton_jax.primitives import estimators, lowering

TRITON_NAMES = {
    "bool": "i1",
    "int8": "i8",
    "uint8": "u8",
    "int32": "i32",
    "int64": "i64",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
}
ONE_AT_A_TIME = threading.Lock()  # the interpreter patches triton.language at every launch
launched = []  # the names of all kernels so far


@triton.jit
def publish(pointer, word, here):
    # sums, since Triton 3.7 cannot store arrays that NumPy has broadcast
    tl.store(pointer + tl.zeros_like(word), word, mask=here.to(tl.int32) + 0 != 0)


@triton.jit
def wait_for(word, pointer):
    return word


@triton.jit
def zero_behind_loads(pointer):
    return tl.zeros([1, 1], tl.int32)


hold.zero_behind_loads = zero_behind_loads
# Programs run one after another, so that a word is there when it is asked for, or never: as NaN.
exchange.publish, exchange.wait_for = publish, wait_for


class HostTensor:
    """As much of a torch tensor as the interpreter asks for, over a NumPy array."""

    def __init__(self, array):
        assert array.flags.c_contiguous and array.flags.writeable
        self.array, self.dtype = array, TRITON_NAMES[array.dtype.name]

    def data_ptr(self):
        return self.array.ctypes.data

    def untyped_storage(self):
        return HostStorage(self.array)

    def storage_offset(self):
        return 0

    def size(self):
        return self.array.shape

    def stride(self):
        return tuple(n // self.array.itemsize for n in self.array.strides)

    def new_empty(self, *_, **__):
        return HostTensor(self.array)

    def set_(self, storage, *_):
        self.array = storage.array


class HostStorage:
    def __init__(self, array):
        self.array = array

    def data_ptr(self):
        return self.array.ctypes.data

    def cpu(self):
        return self

    def copy_(self, other):
        if other.array is not self.array:
            self.array[...] = other.array


def run_kernel(name, kernel, grid, constants, operands, results, zeroed):
    """On NumPy arrays."""
    for i, x in enumerate(results):
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        poison = np.nan if floating else jnp.iinfo(x.dtype).min
        x[...] = 0 if i in zeroed else poison
    free = [argument for argument in kernel.arg_names[1:] if argument not in constants]
    given = dict(zip(free, map(HostTensor, results), strict=True))
    with ONE_AT_A_TIME:
        launched.append(name)
        kernel[grid](tuple(map(HostTensor, operands)), **given, **constants)


TARGET = "triton_kernel_call_ffi"
"""What jax_triton's custom calls are named."""

in_programs = []  # what a custom call's number stands for


@ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
)
def custom_call(results, operands, number, digits, status):
    """What XLA calls. Of a kernel that fails, results hold NaN."""
    run, operand_types, out_type = in_programs[int(ctypes.string_at(number, digits))]
    if len(out_type) == 1:  # then the result itself, not where several are
        results = [ctypes.cast(results, ctypes.c_void_p).value]
    run(
        [array_at(operands[i], x) for i, x in enumerate(operand_types)],
        [array_at(results[i], x) for i, x in enumerate(out_type)],
    )


def array_at(address, like):
    size = math.prod(like.shape) * np.dtype(like.dtype).itemsize
    buffer = (ctypes.c_byte * size).from_address(address)
    return np.frombuffer(buffer, like.dtype).reshape(like.shape)


def triton_call(
    operands,
    *,
    kernel,
    out_type,
    zeroed_outputs,
    grid,
    name,
    compute_capability,
    backend_options,
    **constants,
):
    """Stands in for `jax_triton.triton_call`, which would compile for a GPU."""
    run = partial(run_kernel, name, kernel, grid, constants, zeroed=zeroed_outputs)
    if not any(isinstance(x, jax.core.Tracer) for x in operands):
        results = [np.empty(x.shape, x.dtype) for x in out_type]
        run([np.array(x, order="C") for x in operands], results)
        return [jnp.asarray(x) for x in results]
    number, out_type = str(len(in_programs)), tuple(out_type)
    operand_types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
    in_programs.append((run, operand_types, out_type))
    options = dict(custom_call_api_version=3, legacy_backend_config=number)
    return list(jax.ffi.ffi_call(TARGET, out_type, **options)(*operands))


def run_eagerly(name, *arrays, implementation, **params):
    """A primitive on arrays, without XLA."""
    return lowering._launch(name, "cuda", *arrays, **params)


def install():
    """Sends every launch of this process to the interpreter, and lets the CPU have kernels."""
    # The interpreter patches triton.language anew in every call of a device function, which takes
    # most of its time, though in this process once for every module is enough.
    patch, patched = interpreter._patch_lang, set()

    def patch_once(function):
        if function.__module__ not in patched:
            patched.add(function.__module__)
            patch(function)
        return SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang = patch_once
    address = ctypes.cast(custom_call, ctypes.c_void_p)
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(address), "cpu", api_version=0)
    launch.jax_triton.triton_call = triton_call
    availability.why_not = lambda *_, **__: None
    availability.compute_capability = lambda: 90
    plans.LARGEST_GROUP = 8
    pairs = [getattr(estimators, op) for op in estimators.__all__]
    for p in (p for pair in pairs for p in (pair.p, pair.vjp_p)):
        p.def_impl(partial(run_eagerly, p.name))


def small(plan, split=False):
    """Ragged tiles, and several blocks of time from a length of 5 on."""
    actions = min(plan.actions, 2)
    if plan.columns:
        lanes = 2 if plan.lanes <= 4 and plan.outer_size == 1 else 4
        return configs.columns(plan, 2, 2, lanes, 1, split=split, actions=actions)
    return configs.rows(plan, 4, 2, 1, split=split, actions=actions)


CONFIGS = {"chosen": configs.choose, "small": small, "split": partial(small, split=True)}
