"""Writes models of every kind, with tensors of every dtype, and the expected files of a mount of their directory.

    load.py MODELS EXPECTED COUNT       COUNT tensors in one of the models, a few of them large

The expected files come from NumPy, ml_dtypes, hashlib and the format in the documentation, and not from weightfs. They have
the expected extended attributes. stats/ and plots/ are left out.
"""

import hashlib
import io
import json
import os
import struct
import sys
from base64 import b64encode
from pathlib import Path

import numpy as np

from dtypes import NATIVE, PACKED, SMALL, converted, values, width
from official import encode

DTYPES = [*NATIVE, *SMALL, *PACKED]
# A number of elements that takes whole bytes in every dtype.
GROUP = 4
LARGE = {
    "BF16": 1_500_001, "F32": 700_003, "F16": 600_011, "F8_E4M3": 900_007, "F4": 1_000_004, "F6_E3M2": 400_004,
    "U8": 1 << 20, "F64": 100_003,
}


# The dtypes in the order of the official writer.
OFFICIAL = (
    "U64 I64 F64 C64 F32 U32 I32 BF16 F16 U16 I16 F8_E5M2FNUZ F8_E4M3FNUZ F8_E8M0 F8_E4M3 F8_E5M2 I8 U8 "
    "F6_E3M2 F6_E2M3 F4 BOOL"
).split()


def random_bytes(rng, dtype, count):
    """Random elements without NaN, whose bits NumPy and the hardware convert differently."""
    if dtype == "BOOL":
        return rng.integers(0, 2, count, "u1").tobytes()
    raw = rng.bytes(count * width(dtype) // 8)
    if dtype in PACKED or not np.isnan(found := values(dtype, [count], raw)).any():
        return raw
    codes = np.frombuffer(raw, f"u{width(dtype) // 8}").copy()
    codes[np.isnan(found)] = 1
    return codes.tobytes()


class Tensor:
    def __init__(self, name, dtype, shape, raw, location=None):
        self.name, self.dtype, self.shape, self.raw, self.location = name, dtype, list(shape), raw, location

    def facts(self):
        return {"name": self.name, "dtype": self.dtype, "shape": self.shape, "nbytes": len(self.raw)}


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def entry(tensor, at):
    info = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, at + len(tensor.raw)]}
    return f"{compact(tensor.name)}:{compact(info)}"


def header(tensors, metadata):
    """The JSON of a header, in the order of the data."""
    parts, at = [f'"__metadata__":{compact(metadata)}'] if metadata else [], 0
    for tensor in tensors:
        parts.append(entry(tensor, at))
        at += len(tensor.raw)
    return "{" + ",".join(parts) + "}"


def file_of(text, tensors, unit=1):
    """A safetensors file whose data begins at a multiple of `unit`."""
    text = text.encode()
    text += b" " * (-(8 + len(text)) % unit)
    return struct.pack("<Q", len(text)) + text + b"".join(tensor.raw for tensor in tensors)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lay_out_tensors(to, tensors):
    for view in ("tensors", "npy", "f32", "safetensors"):
        (to / view).mkdir(parents=True, exist_ok=True)
    for tensor in tensors:
        file, array = encode(tensor.name), values(tensor.dtype, tensor.shape, tensor.raw)
        raw = write(to / "tensors" / file, tensor.raw)
        attributes = tensor.facts() | {key: tensor.location[key] for key in ("shard", "offset") if key in tensor.location}
        for key, value in attributes.items():
            os.setxattr(raw, f"user.weightfs.{key}", (json.dumps(value) if key == "shape" else str(value)).encode())
        saved = io.BytesIO()
        np.save(saved, array)
        write(to / "npy" / f"{file}.npy", saved.getvalue())
        if tensor.dtype == "F32":
            os.link(raw, to / "f32" / f"{file}.f32")
        elif tensor.dtype != "C64":
            with np.errstate(over="ignore"):
                write(to / "f32" / f"{file}.f32", array.astype("<f4").tobytes())
        write(to / "safetensors" / f"{file}.safetensors", file_of(header([tensor], None), [tensor], 8))


def convert(tensor, to):
    dtype, raw = converted(tensor.dtype, tensor.shape, tensor.raw, to)
    return dtype, tensor.shape, raw


def lay_out_metadata(to, metadata):
    write(to / "metadata.json", json.dumps(metadata, indent=2, ensure_ascii=False) + "\n")
    (to / "metadata").mkdir()
    for key, value in metadata.items():
        write(to / "metadata" / encode(key), value)


def aligned(tensors, is_file):
    """Those of a file in the order of the official writer, others in their order, or if one of them is not aligned to its
    elements then, larger elements first."""
    if is_file:
        return sorted(tensors, key=lambda tensor: (OFFICIAL.index(tensor.dtype), tensor.name.encode()))
    at = 0
    for tensor in tensors:
        if tensor.raw and at % max(width(tensor.dtype) // 8, 1):
            return sorted(tensors, key=lambda tensor: -width(tensor.dtype))
        at += len(tensor.raw)
    return tensors


def lay_out(to, source, tensors, metadata, is_file=False):
    """Writes the expected files that every kind of model has."""
    lay_out_tensors(to, tensors)
    for tensor in tensors:
        beside = any(other.name.startswith(f"{tensor.name}.") for other in tensors)
        path = to / "/".join(["tree", *map(encode, tensor.name.split("."))])
        path = path.with_name(path.name + "%" * beside)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(to / "tensors" / encode(tensor.name), path)
    lay_out_metadata(to, metadata)
    for name, kept in [(f"{to.name}-whole", metadata), (f"{to.name}-clean", None)]:
        ordered = aligned(tensors, is_file)
        write(to / "export" / f"{name}.safetensors", file_of(header(ordered, kept), ordered, 4096))
    for dtype in ("BF16", "F32"):
        floats = [Tensor(t.name, *convert(t, dtype)) for t in tensors]
        # Those with larger elements come first, if a tensor has to be converted.
        if any(a.dtype != b.dtype for a, b in zip(floats, tensors)):
            floats.sort(key=lambda tensor: -width(tensor.dtype))
        else:
            floats = aligned(floats, is_file)
        name = f"{to.name}-{dtype.lower()}.safetensors"
        write(to / "export" / name, file_of(header(floats, metadata), floats, 4096))
    lines = [tensor.facts() | {"file": f"tensors/{encode(tensor.name)}"} | tensor.location for tensor in tensors]
    head = f'{{"source": {json.dumps(str(source))}, "format": "safetensors", "tensors": [\n'
    write(to / "index.json", head + ",\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + '\n], "skipped": []}\n')
    sums = [f"{hashlib.sha256(tensor.raw).hexdigest()}  tensors/{encode(tensor.name)}\n" for tensor in tensors]
    write(to / "SHA256SUMS", "".join(sums))


def write_model(path, tensors, metadata=None):
    """Writes the file, sets the location of each tensor, and returns the header."""
    text = header(tensors, metadata)
    write(path, file_of(text, tensors))
    at = 8 + len(text.encode())
    for tensor in tensors:
        tensor.location = {"shard": path.name, "offset": at}
        at += len(tensor.raw)
    return text


def shape_of(rng, count):
    """A shape of one to three dimensions."""
    for rows in rng.permutation([2, 3, 5, 7]).tolist()[: rng.integers(0, 3)]:
        if count % rows == 0:
            return [rows, 1, count // rows] if rows == 7 else [rows, count // rows]
    return [count]


def make_tensors(rng, names, large):
    for at, name in enumerate(names):
        dtype = DTYPES[at % len(DTYPES)]
        count = int(rng.choice([GROUP, 28, 420, 5_124, 30_240]))
        count += int(rng.integers(0, 97)) if dtype not in PACKED else 0
        yield Tensor(name, dtype, shape_of(rng, count), random_bytes(rng, dtype, count))
    for dtype, count in large.items():
        yield Tensor(f"model.embed.{dtype.lower()}", dtype, shape_of(rng, count), random_bytes(rng, dtype, count))
    yield Tensor("scalar", "BF16", [], struct.pack("<H", 0x3F80))
    yield Tensor("none", "F16", [0, 3], b"")


def single(models, expected, count):
    rng = np.random.default_rng(1)
    names = ["", "..", "slash/and%percent", "layers", "layers.0", "重み 🦀", "x" * 300]
    names += [f"layers.{at // 7}.part{at % 7}.weight" for at in range(count - len(names))]
    tensors = list(make_tensors(rng, names, LARGE))
    rng.shuffle(tensors)
    picture = b"\x89PNG" * 999
    metadata = {
        "a/key": "line\nline", "empty": "", "format": "pt", "long": "text " * 20_000,
        "thumbnail": "data:image/png;base64," + b64encode(picture).decode(),
    }
    path = models / "single.safetensors"
    text = write_model(path, tensors, metadata)
    lay_out(expected / "single", path, tensors, metadata, is_file=True)
    write(expected / "single/header.json", text)
    write(expected / "single/metadata/thumbnail.png", picture)


def sharded(models, expected):
    rng = np.random.default_rng(2)
    whole, weight_map, merged, to = [], {}, {}, expected / "sharded"
    for at in range(5):
        file = f"sharded-{at + 1:05}-of-00005.safetensors"
        names = [f"l.{layer}.s{at}" for layer in range(9)]
        tensors = list(make_tensors(rng, names, {"BF16": 50_001} if at == 3 else {}))
        for tensor in tensors[-2:]:
            tensor.name += f"{at}"
        metadata = {"format": "pt", "part": str(at)}
        text = write_model(models / file, tensors, metadata)
        write(to / "shards" / file / "header.json", text)
        lay_out_metadata(to / "shards" / file, metadata)
        merged = metadata | merged
        whole += tensors
        weight_map |= {tensor.name: file for tensor in tensors}
    path = write(models / "sharded.safetensors.index.json", json.dumps({"metadata": {}, "weight_map": weight_map}))
    lay_out(to, path, whole, dict(sorted(merged.items())))


def dataset(models, expected):
    rng = np.random.default_rng(3)
    to, listed, parts = expected / "dataset", [], {}
    for at, rows in enumerate([33, 0, 5, 80]):
        make = lambda dtype: Tensor(f"column{dtype}", dtype, [rows, 4, 3], random_bytes(rng, dtype, rows * 12))
        tensors = [make(dtype) for dtype in sorted(DTYPES)]
        file = f"part-{at:05}.safetensors"
        text = write_model(models / "dataset" / file, tensors)
        shard = to / "shards" / file
        write(shard / "header.json", text)
        lay_out_metadata(shard, {})
        lay_out_tensors(shard, tensors)
        listed.append({"shard_path": file, "samples_count": rows, "bytes": (models / "dataset" / file).stat().st_size})
        for tensor in tensors:
            parts.setdefault(tensor.name, []).append(tensor)
    manifest = json.dumps({"format_version": "1.0", "shards": listed}, indent=2)
    path = write(models / "dataset/dataset_manifest.json", manifest)
    write(to / "dataset_manifest.json", manifest)
    whole = []
    for name, joined in parts.items():
        extents = [part.location | {"nbytes": len(part.raw)} for part in joined if part.raw]
        shape = [sum(part.shape[0] for part in joined), 4, 3]
        whole.append(Tensor(name, joined[0].dtype, shape, b"".join(part.raw for part in joined), {"extents": extents}))
    lay_out(to, path, whole, {})


if __name__ == "__main__":
    models, expected = map(Path, sys.argv[1:3])
    single(models, expected, int(sys.argv[3]))
    sharded(models, expected)
    dataset(models, expected)
    write(models / "config.json", "{}")
    (expected / "config.json").symlink_to(models / "config.json")
