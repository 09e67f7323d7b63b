"""Reads every view of a mounted model with NumPy, ml_dtypes and the official package, and compares each tensor.

usage: views.py SOURCE MOUNT [npy]; ml_dtypes must support all dtypes of SOURCE. With `npy`, only that view is read.
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

source, mount, *only = sys.argv[1:]
name_of_stem = os.path.basename(source).removesuffix(".safetensors")


def same(found, expected, label):
    assert found.shape == expected.shape, f"{label}: shape {found.shape}, not {expected.shape}"
    assert found.dtype == expected.dtype, f"{label}: dtype {found.dtype}, not {expected.dtype}"
    if found.dtype.kind in "fc":
        assert np.array_equal(found, expected, equal_nan=True), label
        # The signs of zeros must be equal too. NaN may differ in its bits.
        real, other = found.view(f"<f{found.dtype.itemsize // (2 if found.dtype.kind == 'c' else 1)}"), None
        other = expected.view(real.dtype)
        assert np.array_equal(np.signbit(real)[~np.isnan(real)], np.signbit(other)[~np.isnan(other)]), label
    else:
        assert np.array_equal(found, expected), label


model, metadata, _ = entries(source)
index = json.load(open(f"{mount}/index.json"))
assert len(index["tensors"]) == len(model)
npy, f32 = set(os.listdir(f"{mount}/npy")), set(os.listdir(f"{mount}/f32"))
for entry in index["tensors"]:
    name = entry["name"]
    file = entry["file"].removeprefix("tensors/")
    dtype, shape, raw = model[name]
    expected = values(dtype, shape, raw)
    same(np.load(f"{mount}/npy/{file}.npy"), expected, f"npy {name!r}")
    same(np.asarray(np.load(f"{mount}/npy/{file}.npy", mmap_mode="r")), expected, f"npy mapped {name!r}")
    with open(f"{mount}/npy/{file}.npy", "rb") as array:
        np.lib.format.read_magic(array)
        np.lib.format.read_array_header_1_0(array)
        assert array.tell() % 64 == 0, name
    npy.remove(f"{file}.npy")
    if only:
        continue
    if dtype != "C64":
        with np.errstate(over="ignore"):
            floats = expected.astype("<f4")
        same(np.fromfile(f"{mount}/f32/{file}.f32", "<f4").reshape(shape), floats, f"f32 {name!r}")
        f32.remove(f"{file}.f32")
        if dtype == "F32":
            assert os.path.samefile(f"{mount}/f32/{file}.f32", f"{mount}/tensors/{file}"), name
    single, single_metadata, _ = entries(f"{mount}/safetensors/{file}.safetensors")
    assert single == {name: (dtype, shape, raw)} and not single_metadata, name
assert not npy, npy
if only:
    print(len(model), "tensors")
    sys.exit()
assert not f32, f32

for stem, expected in [(f"{name_of_stem}-whole", metadata), (f"{name_of_stem}-clean", None)]:
    export, found, data_start = entries(f"{mount}/export/{urllib.parse.quote(stem, safe=' -_.')}.safetensors")
    assert export == model, stem
    assert (found or None) == (expected or None), stem
    assert data_start % 4096 == 0, stem


def figures(values):
    """The expected counts in stats/ for an array, and its finite values."""
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


def check_stats(label, path, expected):
    assert os.stat(path).st_size == len(text := open(path, "rb").read()), label
    assert all(0 < len(line.strip()) <= len(line) <= 80 for line in text.decode().splitlines()), label
    found = json.loads(text)
    counts, finite = figures(expected)
    assert {key: found[key] for key in counts} == counts, (label, found, counts)
    for key, share in found["fractions"].items():
        assert share == (counts[key] / counts["count"] if counts["count"] else share), (label, key)
    histogram = found["histogram"]
    assert len(histogram["counts"]) == 64 and sum(histogram["counts"]) == finite.size, label
    if not finite.size:
        assert found["min"] is found["max"] is found["mean"] is found["std"] is found["abs_max"] is None, (label, found)
        return
    assert (found["min"], found["max"], found["abs_max"]) == (finite.min(), finite.max(), abs(finite).max()), (label, found)
    if abs(finite).max() < 1e150:
        # math.fsum is exact, while np.mean loses digits.
        mean = math.fsum(finite) / finite.size
        std = math.sqrt(math.fsum((finite - mean) ** 2) / finite.size)
        assert close(found["mean"], mean, found["abs_max"]), (label, found, mean)
        assert close(found["std"], std, found["abs_max"]), (label, found, std)
        low, high = histogram["low"], histogram["high"]
        assert low <= finite.min() and finite.max() <= high, label
        assert histogram["counts"] == np.histogram(finite, 64, (low, high))[0].tolist(), label


def check_picture(label, path):
    """Checks a PNG: the CRC of every chunk, and the number of pixels."""
    assert os.stat(path).st_size == len(png := open(path, "rb").read()), label
    assert png.startswith(b"\x89PNG\r\n\x1a\n"), label
    at, chunks = 8, []
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        data, (check,) = png[at + 8 : at + 8 + length], struct.unpack(">I", png[at + 8 + length : at + 12 + length])
        assert zlib.crc32(kind + data) == check, (label, kind)
        chunks.append((kind, data))
        at += 12 + length
    width, height, depth, colour = struct.unpack(">IIBB", chunks[0][1][:10])
    pixels = zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT"))
    assert chunks[0][0] == b"IHDR" and chunks[-1][0] == b"IEND" and colour == 3 and depth == 8, label
    assert len(pixels) == height * (width + 1), label


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
