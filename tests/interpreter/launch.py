"""The library's launch, sent to the interpreter."""

import threading
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter

from rl_triton_jax.kernels import exchange
from rl_triton_jax.launch import availability, configs
from rl_triton_jax.launch import triton as launch
from rl_triton_jax.primitives import estimators, policy

TRITON_NAMES = {
    "bool": "i1",
    "int8": "i8",
    "uint8": "u8",
    "int32": "i32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
}
ONE_AT_A_TIME = threading.Lock()  # the interpreter patches triton.language at every launch
launched = []  # the names of all kernels so far


@triton.jit
def publish(pointer, word, here):
    tl.store(pointer, word, mask=here)


@triton.jit
def wait_for(word, pointer):
    return word


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


def poisoned(like):
    floating = jnp.issubdtype(like.dtype, jnp.floating)
    return np.full(like.shape, np.nan if floating else jnp.iinfo(like.dtype).min, like.dtype)


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

    def run(*arrays):
        results = [poisoned(x) for x in out_type]
        for i in zeroed_outputs:
            results[i][:] = 0
        tensors = tuple(HostTensor(np.array(x, order="C")) for x in arrays)
        with ONE_AT_A_TIME:
            launched.append(name)
            free = [x for x in kernel.arg_names[1:] if x not in constants]
            given = dict(zip(free, map(HostTensor, results), strict=True))
            kernel[grid](tensors, **given, **constants)
        return results

    return jax.pure_callback(run, out_type, *operands)


def run_eagerly(name, *arrays, operands, data=None, implementation=None, **params):
    """A primitive on arrays, without XLA."""
    return launch.call(
        name, dict(zip(operands, arrays, strict=True)), compute_capability=90, **params
    )


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
    launch.jax_triton.triton_call = triton_call
    availability.why_not = lambda *_, **__: None
    pairs = [getattr(estimators, op) for op in estimators.__all__]
    for p in (policy.p, *(p for pair in pairs for p in (pair.p, pair.vjp_p))):
        p.def_impl(partial(run_eagerly, p.name))


def small(plan, split=False):
    """Ragged tiles, and several blocks of time from a length of 5 on."""
    actions = min(plan.actions, 2)
    if plan.columns:
        lanes = 2 if plan.lanes <= 4 and plan.outer_size == 1 else 4
        return configs.columns(plan, 2, 2, lanes, 1, split=split, actions=actions)
    return configs.rows(plan, 4, 2, 1, split=split, actions=actions)


CONFIGS = {"chosen": configs.choose, "small": small, "split": partial(small, split=True)}
