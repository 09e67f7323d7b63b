"""Creates a dataset as safetensors-spark writes it in batch mode, or compares a mount of it with NumPy's concatenation.

    dataset.py make DIRECTORY
    dataset.py make-mixed DIRECTORY    some shards are NumPy archives in big-endian or in Fortran order
    dataset.py compare DIRECTORY MOUNT
    dataset.py compare-mixed DIRECTORY MOUNT
"""

import io
import json
import struct
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

DTYPES = {
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "u8": np.uint8,
    "i64": np.int64,
}
TRAILING = {"f32": (3, 5), "bf16": (129,), "f16": (), "u8": (7, 2, 2), "i64": (1,)}
# The manifest lists the shards in another order than that of their names, and one shard has no rows.
ROWS = [4, 1, 0, 33, 2, 8]
SHARDS = [f"part-{at:05d}-0000-0e8b1f5c-1d6e-4f0a-9f5e-0123456789ab.safetensors" for at in (3, 0, 5, 1, 4, 2)]


def shard(at):
    for name, dtype in DTYPES.items():
        rng = np.random.default_rng([at, len(name), ord(name[0])])
        shape = (ROWS[at], *TRAILING[name])
        yield name, rng.integers(0, 200, shape).astype(dtype) - rng.integers(0, 9, shape).astype(dtype)


def without_padding(file):
    """Removes the padding of the header, as Spark writes none. The data is then not aligned."""
    (length,) = struct.unpack("<Q", file[:8])
    header = file[8 : 8 + length].rstrip(b" ")
    return struct.pack("<Q", len(header)) + header + file[8 + length :]


def archive(arrays, at):
    file = io.BytesIO()
    if at % 3 == 1:
        np.savez(file, **{name: np.asfortranarray(array) for name, array in arrays.items()})
    else:
        np.savez(file, **{name: array.astype(array.dtype.newbyteorder(">")) for name, array in arrays.items()})
    return file.getvalue()


def make(directory, mixed=False):
    if mixed:
        del DTYPES["bf16"]  # NumPy files have no such dtype.
    shards = []
    for at, name in enumerate(SHARDS):
        arrays = {name: array for name, array in shard(at) if name in DTYPES}
        file = archive(arrays, at) if mixed and at % 3 else without_padding(save(arrays))
        (directory / name).write_bytes(file)
        shards.append({"shard_path": name, "samples_count": ROWS[at], "bytes": len(file)})
    manifest = {
        "format_version": "1.0",
        "safetensors_version": "1.0",
        "total_samples": sum(ROWS),
        "total_bytes": sum(shard["bytes"] for shard in shards),
        "shards": shards,
    }
    (directory / "dataset_manifest.json").write_text(json.dumps(manifest, indent=2))
    (directory / "_tensor_index.parquet").mkdir()
    (directory / "_SUCCESS").touch()


def compare(directory, mount, mixed=False):
    if mixed:
        del DTYPES["bf16"]
    assert (mount / "dataset_manifest.json").read_bytes() == (directory / "dataset_manifest.json").read_bytes()
    parts = [dict(shard(at)) for at in range(len(SHARDS))]
    lines = {line["name"]: line for line in json.loads((mount / "index.json").read_bytes())["tensors"]}
    assert set(lines) == set(DTYPES), lines
    whole = safe_open(mount / "export" / f"{directory.name}-whole.safetensors", framework="numpy")
    assert set(whole.keys()) == set(DTYPES)
    gathered = set()
    for name, dtype in DTYPES.items():
        expected = np.concatenate([part[name] for part in parts])
        assert (mount / "tensors" / name).read_bytes() == expected.tobytes(), name
        array = np.load(mount / "npy" / f"{name}.npy", mmap_mode="r")
        assert array.shape == expected.shape == tuple(lines[name]["shape"]), name
        assert array.dtype == (np.float32 if name == "bf16" else dtype), name
        assert (array == expected.astype(array.dtype)).all(), name
        floats = np.fromfile(mount / "f32" / f"{name}.f32" if name != "f32" else mount / "tensors/f32", np.float32)
        assert (floats.reshape(expected.shape) == expected.astype(np.float32)).all(), name
        one = safe_open(mount / "safetensors" / f"{name}.safetensors", framework="numpy")
        assert list(one.keys()) == [name]
        if name != "bf16":
            assert (one.get_tensor(name) == expected).all(), name
            assert (whole.get_tensor(name) == expected).all(), name
        assert mixed or lines[name]["extents"], name
        if mixed and not lines[name]["extents"]:
            gathered.add(name)
            extents = expected.tobytes()
        else:
            extents = b""
        for extent in lines[name]["extents"]:
            with open(directory / extent["shard"], "rb") as file:
                file.seek(extent["offset"])
                extents += file.read(extent["nbytes"])
        assert extents == expected.tobytes(), name
        for at, part in enumerate(parts):
            alone = mount / "shards" / SHARDS[at]
            assert (alone / "tensors" / name).read_bytes() == part[name].tobytes(), (name, at)
            array = np.load(alone / "npy" / f"{name}.npy")
            assert array.shape == part[name].shape and (array == part[name].astype(array.dtype)).all(), (name, at)
    assert mixed == ("f32" in gathered), gathered


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    {"make": make, "compare": compare}[command.removesuffix("-mixed")](*map(Path, paths), command.endswith("-mixed"))
