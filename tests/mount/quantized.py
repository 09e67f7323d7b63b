"""Compares the files of quantized weights in mounts with each other, as NumPy and the official package read them.

usage: quantized.py JOBS, a JSON list of objects: the directory of a model in a mount, the name of its weight, and the
shape. f32/ is the reference: its values are compared with those of the libraries elsewhere.
"""

import json
import sys

import ml_dtypes
import numpy as np
from safetensors import safe_open

jobs = json.load(open(sys.argv[1]))
for job in jobs:
    model, name, shape = job["model"], job["name"], job["shape"]
    reference = np.fromfile(f"{model}/f32/{name}.f32", dtype="<f4").reshape(shape)
    array = np.load(f"{model}/npy/{name}.npy", mmap_mode="r") if reference.size else np.load(f"{model}/npy/{name}.npy")
    assert array.dtype == np.dtype("<f4") and array.shape == tuple(shape), (model, array.dtype, array.shape)
    assert array.tobytes() == reference.tobytes(), model
    index = json.load(open(f"{model}/index.json"))
    companions = {other for tensor in index["tensors"] for other in tensor.get("quantization", {}).get("companions", [])}
    logical = {tensor.get("quantization", {}).get("name", tensor["name"]) for tensor in index["tensors"]}
    # ComfyUI says with a tensor of this name that the model is quantized.
    companions |= {other for other in logical if other.split(".")[-1] == "scaled_fp8"}
    for kind, dtype in [("f32", np.float32), ("bf16", ml_dtypes.bfloat16)]:
        with safe_open(f"{model}/export/model-{kind}.safetensors", "numpy") as file:
            assert set(file.keys()) == logical - companions, (model, kind, list(file.keys()))
            found = file.get_tensor(name)
        assert found.dtype == dtype and found.shape == tuple(shape), (model, found.dtype, found.shape)
        with np.errstate(all="ignore"):
            expected = reference.astype(dtype)
        same = (found == expected) | (np.isnan(found) & np.isnan(expected))
        assert same.all(), (model, kind)
        # Of zeros, the sign too.
        assert (np.signbit(found) == np.signbit(expected))[~np.isnan(expected)].all(), (model, kind)
    stats = json.load(open(f"{model}/stats/{name}.json"))
    finite = reference[np.isfinite(reference)].astype(np.float64)
    assert stats["count"] == reference.size and stats["nan"] == int(np.isnan(reference).sum()), (model, stats)
    if finite.size:
        assert (stats["min"], stats["max"]) == (finite.min(), finite.max()), (model, stats)
print(len(jobs), "models")
