"""Compares the errors that `weightfs diff --values` reports with those of NumPy.

schemes WEIGHTFS JOBS: JOBS is a JSON list of objects with the directory of a quantized model as one file and as shards,
the name and the shape of its weight, the number of other tensors, and a file of the float32 values that the library of the scheme computes.
large WEIGHTFS DIR: writes two models to DIR whose tensors are compared in several parts.
"""

import json
import os
import struct
import sys

import ml_dtypes
import numpy as np

sys.dont_write_bytecode = True
from errors import check, diff

DTYPES = {"F32": "<f4", "BF16": ml_dtypes.bfloat16, "F64": "<f8", "F16": "<f2"}


def write(path, tensors):
    """Writes a safetensors file of arrays, each with the name of its dtype."""
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        raw = array.tobytes()
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    header = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + data)


def schemes(weightfs, jobs):
    rng = np.random.default_rng(3)
    differ = 0
    for at, job in enumerate(json.load(open(jobs))):
        values = np.fromfile(job["values"], "<f4").reshape(job["shape"])
        original = f"{job['one']}-original.safetensors"
        # The libraries' own values are the same in every way of storing them.
        write(original, {job["name"]: ("F32", values)})
        for a, b in [(original, job["one"]), (job["sharded"], original), (job["one"], job["sharded"])]:
            code, report = diff(weightfs, a, b)
            found = report["values"]
            # Some models have a bias that is not in the original.
            others = len(found["added"]) + len(found["removed"])
            assert found["equal"] + others == max(report["a"]["tensors"], report["b"]["tensors"]), (a, b, report)
            assert (code, others) == (1, 1) if job["others"] and original in (a, b) else (code, others) == (0, 0), report
        # As an original whose values were rounded by quantizing.
        dtype = list(DTYPES)[at % len(DTYPES)]
        with np.errstate(all="ignore"):
            other = (values * (1 + 0.1 * rng.standard_normal(values.shape))).astype(DTYPES[dtype])
        write(original, {job["name"]: (dtype, other), "gone": ("F32", np.zeros(2, "<f4"))})
        code, report = diff(weightfs, original, job["one" if at % 2 else "sharded"])
        found = report["values"]
        assert code == 1 and [entry["name"] for entry in found["removed"]] == ["gone"], report
        assert len(found["added"]) == job["others"], report
        if values.size == 0:
            assert found["equal"] == 1, report
            continue
        [entry] = found["different"]
        assert (entry["name"], entry["shape"]) == (job["name"], job["shape"]), report
        assert entry["a"] == {"dtype": dtype, "nbytes": other.nbytes} and entry["b"]["quantization"], report
        for errors in entry, found["total"]:
            check(errors, other.astype("<f8"), values, original)
        assert found["total"]["tensors"] == 1, report
        differ += 1
    print(differ, "models differ")


def large(weightfs, directory):
    rng = np.random.default_rng(4)
    # Each has more than two parts, and ends in the middle of a step.
    a = rng.standard_normal((3001, 3003)).astype(ml_dtypes.bfloat16)
    b = (a.astype("<f4") * (1 + 0.01 * rng.standard_normal(a.shape))).astype("<f4")
    b.flat[7_000_000:7_000_003] = np.nan, np.inf, -np.inf
    wide = rng.integers(-(2**62), 2**62, 4_500_001, dtype="<i8")
    paths = [f"{directory}/{name}.safetensors" for name in ("a", "b")]
    write(paths[0], {"w": ("BF16", a), "x.y": ("I64", wide)})
    write(paths[1], {"w": ("F32", b), "x.y": ("F64", wide.astype("<f8"))})
    code, report = diff(weightfs, *paths)
    found = {entry["name"]: entry for entry in report["values"]["different"]}
    assert code == 1 and set(found) == {"w", "x.y"}, report
    check(found["w"], a.astype("<f4"), b, "w")
    # float64 has the nearest number of each integer, and long double has both.
    check(found["x.y"], wide, wide.astype("<f8"), "x.y")
    check(
        report["values"]["total"],
        np.concatenate([a.astype(np.longdouble).ravel(), wide.astype(np.longdouble)]),
        np.concatenate([b.astype(np.longdouble).ravel(), wide.astype("<f8").astype(np.longdouble)]),
        "total",
    )
    cores = os.sched_getaffinity(0)
    on_one = lambda: os.sched_setaffinity(0, {min(cores)})
    assert diff(weightfs, *paths, preexec_fn=on_one) == (code, report)
    print(len(found), "tensors differ")


{"schemes": schemes, "large": large}[sys.argv[1]](*sys.argv[2:])
