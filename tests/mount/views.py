"""Reads every view of a mounted model with NumPy, ml_dtypes and the official package, and compares each tensor.

usage: views.py SOURCE MOUNT; the views are those of a model whose dtypes ml_dtypes knows.
"""
import json
import os
import sys
import urllib.parse

import ml_dtypes
import numpy as np
from safetensors import safe_open

source, mount = sys.argv[1:]
name_of_stem = os.path.basename(source).removesuffix(".safetensors")

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


def same(found, expected, what):
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, not {expected.shape}"
    assert found.dtype == expected.dtype, f"{what}: dtype {found.dtype}, not {expected.dtype}"
    if found.dtype.kind in "fc":
        assert np.array_equal(found, expected, equal_nan=True), what
        # Zeros have signs, and all but NaN are the same to the bit.
        real, other = found.view(f"<f{found.dtype.itemsize // (2 if found.dtype.kind == 'c' else 1)}"), None
        other = expected.view(real.dtype)
        assert np.array_equal(np.signbit(real)[~np.isnan(real)], np.signbit(other)[~np.isnan(other)]), what
    else:
        assert np.array_equal(found, expected), what


def entries(path):
    """Name to [dtype, shape, bytes] by the header, which the official package has accepted."""
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


model, metadata, _ = entries(source)
index = json.load(open(f"{mount}/index.json"))
assert len(index["tensors"]) == len(model)
npy, f32 = set(os.listdir(f"{mount}/npy")), set(os.listdir(f"{mount}/f32"))
for entry in index["tensors"]:
    name = entry["name"]
    file = entry["file"].removeprefix("tensors/")
    dtype, shape, raw = model[name]
    expected = values(dtype, shape, raw)
    # A name may be such that the shell would have trouble; Python has none.
    same(np.load(f"{mount}/npy/{file}.npy"), expected, f"npy {name!r}")
    same(np.asarray(np.load(f"{mount}/npy/{file}.npy", mmap_mode="r")), expected, f"npy mapped {name!r}")
    with open(f"{mount}/npy/{file}.npy", "rb") as array:
        np.lib.format.read_magic(array)
        np.lib.format.read_array_header_1_0(array)
        assert array.tell() % 64 == 0, name
    npy.remove(f"{file}.npy")
    if dtype != "C64":
        with np.errstate(over="ignore"):
            floats = expected.astype("<f4")
        same(np.fromfile(f"{mount}/f32/{file}.f32", "<f4").reshape(shape), floats, f"f32 {name!r}")
        f32.remove(f"{file}.f32")
        if dtype == "F32":
            assert os.path.samefile(f"{mount}/f32/{file}.f32", f"{mount}/tensors/{file}"), name
    single, single_metadata, _ = entries(f"{mount}/safetensors/{file}.safetensors")
    assert single == {name: (dtype, shape, raw)} and not single_metadata, name
assert not npy and not f32, (npy, f32)

for stem, expected in [(name_of_stem, metadata), (f"{name_of_stem}-clean", None)]:
    export, found, data_start = entries(f"{mount}/export/{urllib.parse.quote(stem, safe=' -_.')}.safetensors")
    assert export == model, stem
    assert (found or None) == (expected or None), stem
    assert data_start % 4096 == 0, stem
print(len(model), "tensors")
