"""The dtypes of safetensors as NumPy and ml_dtypes have them: what every script beside this one takes for the truth."""

import ml_dtypes
import numpy as np

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
    """The tensor as NumPy has it: in its own dtype where there is one, else as float32."""
    if dtype in NATIVE:
        return np.frombuffer(raw, NATIVE[dtype]).reshape(shape)
    if dtype in SMALL:
        return np.frombuffer(raw, SMALL[dtype]).astype("<f4").reshape(shape)
    width, kind = PACKED[dtype]
    # The low bits of the first byte come first.
    bits = np.unpackbits(np.frombuffer(raw, "u1"), bitorder="little").reshape(-1, width)
    codes = (bits << np.arange(width, dtype="u1")).sum(axis=1, dtype="u1")
    return codes.view(kind).astype("<f4").reshape(shape)
