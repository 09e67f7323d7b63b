"""Compares an export that is converted to BF16, F16 or F32 with its source, as the official packages read both.

usage: converted.py SOURCE FILE F32, where F32 is the directory f32/ of a mount of SOURCE. It is used for block types that
the gguf package does not decode. Then reads parts of FILE and compares them with the whole.
"""

import json
import os
import random
import sys

import ml_dtypes
import numpy as np
from safetensors import safe_open

sys.dont_write_bytecode = True
from dtypes import converted, entries, width

source, file, f32 = sys.argv[1:]
to = os.path.basename(file).removesuffix(".safetensors").rsplit("-")[-1].upper()


def of_safetensors():
    tensors, metadata, _ = entries(source)
    for name, (dtype, shape, raw) in tensors.items():
        yield name, shape, *converted(dtype, shape, raw, to)
    return metadata


def of_gguf():
    from gguf import GGUFReader, quants
    from gguf.constants import GGMLQuantizationType as Type

    own = {Type[name]: name for name in ["F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"]}
    model = GGUFReader(source)
    for tensor in model.tensors:
        shape, raw = tensor.shape.tolist()[::-1], np.asarray(tensor.data).tobytes()
        if dtype := own.get(tensor.tensor_type):
            yield tensor.name, shape, *converted(dtype, shape, raw, to)
            continue
        try:
            with np.errstate(all="ignore"):
                found = quants.dequantize(np.asarray(tensor.data), tensor.tensor_type)
        except NotImplementedError:
            found = np.fromfile(f"{f32}/{tensor.name}.f32", "<f4")
        yield tensor.name, shape, *converted("F32", shape, np.ascontiguousarray(found, "<f4").tobytes(), to)
    texts = {"format": "pt"}
    for key, field in model.fields.items():
        if key.startswith(("GGUF.", "tokenizer.", "split.")):
            continue
        if key in ("general.alignment", "general.file_type", "general.quantization_version"):
            continue
        texts[key] = field.contents()
    return texts


def same(dtype, found, expected):
    kind = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}.get(dtype)
    if kind is None:
        return found == expected
    found, expected = np.frombuffer(found, kind), np.frombuffer(expected, kind)
    if found.size != expected.size:
        return False
    bits = f"u{found.itemsize}"
    nan = np.isnan(found.astype("f4")) & np.isnan(expected.astype("f4"))
    return bool(((found.view(bits) == expected.view(bits)) | nan).all())


def main():
    exported, metadata, start = entries(file)
    assert start % 4096 == 0, start
    expected = of_gguf() if source.endswith(".gguf") else of_safetensors()
    count = 0
    while True:
        try:
            name, shape, dtype, raw = next(expected)
        except StopIteration as end:
            texts = end.value
            break
        assert (dtype, shape) == exported[name][:2], (name, dtype, shape, exported[name][:2])
        assert same(dtype, exported[name][2], raw), (name, dtype)
        count += 1
    assert count == len(exported), (count, len(exported))
    assert set(metadata or {}) == set(texts or {}), (metadata, texts)
    for key, text in (texts or {}).items():
        if isinstance(text, str):
            assert text == metadata[key], key
        else:
            # Numbers and lists of GGUF are JSON, but for NaN.
            found = float("nan") if metadata[key] == "nan" else json.loads(metadata[key])
            assert np.allclose(found, text, equal_nan=True), (key, metadata[key])
    # The official package reads the tensors that NumPy has, and all of them are aligned to their elements.
    with open(file, "rb") as opened:
        whole = opened.read()
    header = json.loads(whole[8:start])
    for name, info in header.items():
        if name != "__metadata__":
            assert info["data_offsets"][0] % max(1, width(info["dtype"]) // 8) == 0, (name, info)
    with safe_open(file, "numpy") as opened:
        for name, (dtype, shape, raw) in exported.items():
            if dtype in ("F32", "I64", "U8", "BOOL", "F64"):
                assert opened.get_tensor(name).shape == tuple(shape), name
    # Parts at any offset. The file may be on a mount without a page cache.
    choice = random.Random(1)
    opened = os.open(file, os.O_RDONLY)
    for _ in range(400):
        offset = choice.choice([choice.randrange(len(whole)), start + choice.randrange(-9, 9), len(whole) - choice.randrange(99)])
        size = choice.choice([1, 2, 3, 7, 100, 4096, 10_001, 200_000])
        assert os.pread(opened, size, offset) == whole[offset : offset + size], (offset, size)
    os.close(opened)
    print(f"{count} {to}")


main()
