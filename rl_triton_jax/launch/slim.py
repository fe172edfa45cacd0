"""Launches that the host pays less for.

XLA knows a kernel by the text that `triton_call` hands it, and hashes all of it whenever the
computation around it runs. Three quarters of that text, compressed, are Triton's own IR, which
nothing reads any more once there is PTX.
"""

import zlib
from collections.abc import Callable, Sequence

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.interpreters import mlir

CONFIG = "mhlo.backend_config"
"""The attribute of a custom call that has the text."""

KERNEL = (1, 1)
"""Fields of a serialised launch that lead to its kernel, which holds the IR."""

BYTES, FIXED = 2, {1: 8, 5: 4}
"""Of protobuf's wire types: a length and so many bytes; so many bytes."""


def slim(launch: Callable, results: Sequence[jax.ShapeDtypeStruct], *arrays) -> list[jax.Array]:
    """`launch(*arrays)`, whose results have these types, with less text."""
    types = tuple((x.shape, x.dtype) for x in results)
    return p.bind(*arrays, launch=launch, types=types)


p = Primitive("rl_triton_launch")
p.multiple_results = True
p.def_impl(lambda *arrays, launch, types: launch(*arrays))
p.def_abstract_eval(lambda *_, launch, types: [ShapedArray(*x) for x in types])


def _lower(ctx, *args, launch, types):
    values = mlir.lower_fun(launch, multiple_results=True)(ctx, *args)
    call = values[0].owner
    config = call.attributes.get(CONFIG, {})
    if "opaque" in config:
        text = without_ir(zlib.decompress(config["opaque"].value_bytes), KERNEL)
        opaque = ir.StringAttr.get(zlib.compress(text, level=9))
        fields = {x.name: config[x.name] for x in config} | {"opaque": opaque}
        call.attributes[CONFIG] = ir.DictAttr.get(fields)
    return values


mlir.register_lowering(p, _lower)


def without_ir(message: bytes, path: Sequence[int]) -> bytes:
    """A protobuf message whose part at the end of the path loses the fields that hold Triton IR."""
    kept, at = [], 0
    while at < len(message):
        start = at
        key, at = _number(message, at)
        if key % 8 == BYTES:
            size, at = _number(message, at)
            at += size
            value = message[at - size : at]
            if path and key // 8 == path[0]:
                value = without_ir(value, path[1:])
                kept += [_varint(key), _varint(len(value)), value]
                continue
            if not path and b"tt.func" in value:
                continue
        elif key % 8 in FIXED:
            at += FIXED[key % 8]
        else:
            _, at = _number(message, at)
        kept.append(message[start:at])
    return b"".join(kept)


def _number(message: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _varint(value: int) -> bytes:
    digits = []
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])
