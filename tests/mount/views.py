"""Reads every view of a mounted model with NumPy, ml_dtypes and the official package, and compares each tensor.

usage: views.py SOURCE MOUNT; the views are those of a model whose dtypes ml_dtypes knows.
"""
import json
import math
import os
import struct
import sys
import urllib.parse
import zlib

import numpy as np

sys.dont_write_bytecode = True
from dtypes import entries, values

source, mount = sys.argv[1:]
name_of_stem = os.path.basename(source).removesuffix(".safetensors")


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


def figures(values):
    """What stats/ should say of an array, and its finite values."""
    values = values.astype("<f8").ravel()
    finite = values[np.isfinite(values)]
    counts = {
        "count": values.size,
        "zeros": int((values == 0).sum()),
        "nan": int(np.isnan(values).sum()),
        "pos_inf": int(np.isposinf(values).sum()),
        "neg_inf": int(np.isneginf(values).sum()),
    }
    return counts, finite


def close(found, expected, scale):
    return abs(found - expected) <= 1e-12 * max(abs(scale), 1e-300)


def check_stats(what, path, expected):
    assert os.stat(path).st_size == len(text := open(path, "rb").read()), what
    said = json.loads(text)
    counts, finite = figures(expected)
    assert {key: said[key] for key in counts} == counts, (what, said, counts)
    for key, share in said["fractions"].items():
        assert share == (counts[key] / counts["count"] if counts["count"] else share), (what, key)
    histogram = said["histogram"]
    assert len(histogram["counts"]) == 64 and sum(histogram["counts"]) == finite.size, what
    if not finite.size:
        assert said["min"] is said["max"] is said["mean"] is said["std"] is said["abs_max"] is None, (what, said)
        return
    assert (said["min"], said["max"], said["abs_max"]) == (finite.min(), finite.max(), abs(finite).max()), (what, said)
    if abs(finite).max() < 1e150:
        # math.fsum is exact, where np.mean loses digits.
        mean = math.fsum(finite) / finite.size
        std = math.sqrt(math.fsum((finite - mean) ** 2) / finite.size)
        assert close(said["mean"], mean, said["abs_max"]) and close(said["std"], std, said["abs_max"]), (what, said, mean, std)
        low, high = histogram["low"], histogram["high"]
        assert low <= finite.min() and finite.max() <= high, what
        assert histogram["counts"] == np.histogram(finite, 64, (low, high))[0].tolist(), what


def check_picture(what, path):
    """A PNG that keeps to the letter: every chunk with its sum, and as many pixels as it says."""
    assert os.stat(path).st_size == len(png := open(path, "rb").read()), what
    assert png.startswith(b"\x89PNG\r\n\x1a\n"), what
    at, chunks = 8, []
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        data, (check,) = png[at + 8 : at + 8 + length], struct.unpack(">I", png[at + 8 + length : at + 12 + length])
        assert zlib.crc32(kind + data) == check, (what, kind)
        chunks.append((kind, data))
        at += 12 + length
    width, height, depth, colour = struct.unpack(">IIBB", chunks[0][1][:10])
    pixels = zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT"))
    assert chunks[0][0] == b"IHDR" and chunks[-1][0] == b"IEND" and colour == 3 and depth == 8, what
    assert len(pixels) == height * (width + 1), what


stats, plots = set(os.listdir(f"{mount}/stats")), set(os.listdir(f"{mount}/plots"))
for entry in index["tensors"]:
    name, file = entry["name"], entry["file"].removeprefix("tensors/")
    dtype, shape, raw = model[name]
    if dtype != "C64":
        check_stats(name, f"{mount}/stats/{file}.json", values(dtype, shape, raw))
        check_picture(name, f"{mount}/plots/{file}.png")
        stats.remove(f"{file}.json")
        plots.remove(f"{file}.png")
assert not stats and not plots, (stats, plots)
print(len(model), "tensors")
