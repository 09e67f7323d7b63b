"""Reads tensors of all safetensors dtypes with NumPy and ml_dtypes, as the reference for other scripts here."""

import json

import ml_dtypes
import numpy as np
from safetensors import safe_open

NATIVE = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "I32": "<i4", "U32": "<u4",
    "F32": "<f4", "I64": "<i8", "U64": "<u8", "F64": "<f8", "C64": "<c8",
}
SMALL = {
    "BF16": ml_dtypes.bfloat16, "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu, "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}
PACKED = {"F4": (4, ml_dtypes.float4_e2m1fn), "F6_E2M3": (6, ml_dtypes.float6_e2m3fn), "F6_E3M2": (6, ml_dtypes.float6_e3m2fn)}


def values(dtype, shape, raw):
    """The tensor as an array, in its own dtype if NumPy has it, else in float32."""
    if dtype in NATIVE:
        return np.frombuffer(raw, NATIVE[dtype]).reshape(shape)
    if dtype in SMALL:
        return np.frombuffer(raw, SMALL[dtype]).astype("<f4").reshape(shape)
    return codes(dtype, raw).view(PACKED[dtype][1]).astype("<f4").reshape(shape)


KEPT = {"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "C64"}


def converted(dtype, shape, raw, to):
    """Dtype and bytes of a tensor in an export that is converted to BF16, F16 or F32."""
    if dtype in KEPT or dtype == to:
        return dtype, raw
    found = values(dtype, shape, raw)
    with np.errstate(all="ignore"):
        floats = found.astype("<f4")
        if to == "F32":
            return to, floats.tobytes()
        if to == "F16":
            return to, (found if dtype == "F64" else floats).astype("<f2").tobytes()
        # ml_dtypes rounds float64 twice: first to float32. An inexact result with an odd last bit is never a tie.
        if dtype == "F64":
            back, bits = floats.astype("<f8"), floats.view("<u4").copy()
            even = (back != found) & ~np.isnan(found) & (bits & 1 == 0)
            bits += np.where(even, np.where(abs(back) > abs(found), -1, 1), 0).astype("<u4")
            floats = bits.view("<f4")
        return to, floats.astype(ml_dtypes.bfloat16).tobytes()


def width(dtype):
    """Bits of an element."""
    return PACKED[dtype][0] if dtype in PACKED else 8 * np.dtype(NATIVE.get(dtype) or SMALL[dtype]).itemsize


def codes(dtype, raw):
    """The raw elements: one row of bytes for each, or one code for each element of a packed dtype."""
    if dtype in PACKED:
        # The low bits of the first byte come first.
        width = PACKED[dtype][0]
        bits = np.unpackbits(np.frombuffer(raw, "u1"), bitorder="little").reshape(-1, width)
        return (bits << np.arange(width, dtype="u1")).sum(axis=1, dtype="u1")
    width = np.dtype(NATIVE.get(dtype) or SMALL[dtype]).itemsize
    return np.frombuffer(raw, "u1").reshape(-1, width)


def entries(path):
    """Tensors by name as (dtype, shape, bytes), metadata and data offset of a file that the official package accepts."""
    with safe_open(path, framework="numpy") as opened:
        names, metadata = sorted(opened.keys()), opened.metadata()
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        assert sorted(header) == names
        found = {}
        for name, info in header.items():
            begin, end = info["data_offsets"]
            file.seek(8 + length + begin)
            found[name] = (info["dtype"], info["shape"], file.read(end - begin))
    return found, metadata, 8 + length
