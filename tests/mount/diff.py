"""Compares the statistics of `weightfs diff --data` with those of NumPy.

usage: diff.py WEIGHTFS SOURCE CHANGED; writes CHANGED, a copy of SOURCE in which some data bytes differ.
"""
import json
import subprocess
import sys

import numpy as np

sys.dont_write_bytecode = True
from dtypes import PACKED, codes, entries, values

weightfs, source, changed = sys.argv[1:]
model, _, data_start = entries(source)

random = np.random.default_rng(5)
with open(source, "rb") as file:
    whole = np.frombuffer(file.read(), "u1").copy()
flipped = random.random(whole.size) < 0.3
flipped[:data_start] = False
whole[flipped] ^= random.integers(1, 256, flipped.sum(), dtype="u1")
whole.tofile(changed)
other, _, _ = entries(changed)
# Only data was changed, so dtypes and shapes are the same.
assert all(other[name][:2] == model[name][:2] for name in model)


def expected(dtype, shape, a, b):
    bits = int(np.unpackbits(np.frombuffer(a, "u1") ^ np.frombuffer(b, "u1")).sum())
    (codes_a, codes_b) = (codes(dtype, a), codes(dtype, b))
    differ = codes_a != codes_b if dtype in PACKED else (codes_a != codes_b).any(axis=1)
    if dtype == "BOOL":
        x, y = ((np.frombuffer(raw, "u1") != 0).astype("<f8") for raw in (a, b))
    elif dtype in ("I64", "U64"):
        # Python integers are exact; float64 is not.
        x, y = (values(dtype, shape, raw).ravel().astype(object) for raw in (a, b))
    else:
        wide = "<c16" if dtype == "C64" else "<f8"
        x, y = (values(dtype, shape, raw).ravel().astype(wide) for raw in (a, b))
    x, y = x[differ], y[differ]
    finite = np.ones(x.size, bool) if x.dtype == object else np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    with np.errstate(all="ignore"):
        apart, scale = np.abs(x - y), np.maximum(np.abs(x), np.abs(y))
        far = [abs(p / s - q / s) if d == np.inf else d / s if d else 0.0 for p, q, d, s in zip(x, y, apart, scale)]
    return {
        "elements": differ.size,
        "bits_different": bits,
        "elements_different": int(differ.sum()),
        "not_finite": int((~finite).sum()),
        "max_abs": float(max(apart, default=0.0)),
        "max_rel": float(max(far, default=0.0)),
    }


result = subprocess.run([weightfs, "diff", "--data", "--json", source, changed], stdout=subprocess.PIPE)
assert result.returncode == 1, result
result = json.loads(result.stdout)
found = {entry["name"]: entry for entry in result["data"]["different"]}
equal = [name for name in model if model[name] == other[name]]
assert sorted([*found, *equal]) == sorted(model) and result["data"]["equal"] == len(equal)
for name, entry in found.items():
    dtype, shape, raw = model[name]
    want = expected(dtype, shape, raw, other[name][2])
    assert (entry["dtype"], entry["shape"], entry["nbytes"]) == (dtype, shape, len(raw)), entry
    for key in ("elements", "bits_different", "elements_different", "not_finite"):
        assert entry[key] == want[key], (name, key, entry, want)
    for key in ("max_abs", "max_rel"):
        # JSON has no infinity; null stands for it.
        number = np.inf if entry[key] is None else entry[key]
        assert number == want[key] or abs(number - want[key]) <= 1e-12 * want[key], (name, key, entry, want)
print(len(found), "tensors differ")
