"""Compares the values that `weightfs show --json` prints with those of NumPy.

shown.py WEIGHTFS MODEL DIR: writes arrays of many dtypes and shapes into DIR/MODEL, and compares slices of each.
"""

import json
import pathlib
import subprocess
import sys

import numpy as np
from safetensors.numpy import save_file

SLICES = {
    1: ["", ":", "3", "-1", "1:9:2", "::-1", "5:2", "...", "-4:"],
    2: ["", "0", "-1,:3", "1:3,::-1", "..., 2", ":, 0:4"],
    3: ["", "1", "...,0", "0:1,:,-1", "1,2,3", ":,::2"],
}

weightfs, directory = sys.argv[1], pathlib.Path(sys.argv[2])
model = directory / "shown.safetensors"
random = np.random.default_rng(0)
arrays = {}
for dtype in ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]:
    for shape in [(11,), (7, 5), (3, 4, 6)]:
        values = random.integers(0, 255, shape) - (100 if dtype[0] in "fi" else 0)
        arrays[f"{dtype}.{len(shape)}"] = (values / (1 if dtype[0] in "iu?" else 8)).astype(dtype)
arrays["large"] = np.arange(50 * 60, dtype="f4").reshape(50, 60)
save_file(arrays, model)


def shown(*arguments):
    command = [weightfs, "show", "--json", "--no-statistics", model, *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


compared = 0
for name, array in arrays.items():
    if name == "large":
        continue
    for text in SLICES[array.ndim]:
        # The syntax is that of Python, so Python selects.
        expected = eval(f"array[{text or '...'}]")
        found = shown(name, text)
        assert found["selected_shape"] == list(expected.shape), (name, text, found)
        assert found["values"] == expected.tolist(), (name, text, found, expected)
        compared += 1
large = shown("large")
assert not large["is_complete"] and large["values"][3] == "..." and large["values"][0][3] == "...", large
assert large["values"][-1][-1] == 50 * 60 - 1 and large["values"][0][:3] == [0, 1, 2], large
print(compared)
