"""SLM1 files, written from the documented layout, and mounts of them compared with the numbers that were written.

write DIR: writes models to DIR. check DIR MOUNT: compares a mount of DIR with these numbers.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

HIDDEN, FFN, LAYERS, HEADS = 64, 96, 2, 4
TOKENS = {260: b"th", 261: b"the", 262: b"\xff\xfe", 263: b'"\n'}
MERGES = [(116, 104, 260, 0), (260, 101, 261, 1)]


def fnv1a(name):
    value = 0xCBF29CE484222325
    for octet in name.encode():
        value = (value ^ octet) * 0x100000001B3 % 2**64
    return value


def padded(octets):
    return octets + bytes(-len(octets) % 64)


def q8_0(matrix):
    """Signed bytes, and a scale for each row. Returns codes, scales, block size, and the numbers that they mean."""
    scales = (np.abs(matrix).max(-1, keepdims=True) / 127).astype(np.float32)
    codes = np.rint(matrix / scales).astype(np.int8)
    return codes.tobytes(), scales.tobytes(), matrix.shape[-1], codes.astype(np.float32) * scales


def q4_0(matrix, block=32):
    """Codes from -8 to 7, two in a byte with the first one in the low bits, and a scale for each block of a row."""
    blocks = matrix.reshape(*matrix.shape[:-1], -1, block)
    scales = (np.abs(blocks).max(-1, keepdims=True) / 7).astype(np.float32)
    codes = np.rint(blocks / scales).astype(np.int8)
    codes.flat[:8] = range(-8, 0)
    pairs = (codes & 15).astype(np.uint8).reshape(-1, 2)
    packed = (pairs[:, 0] | pairs[:, 1] << 4).tobytes()
    return packed, scales.tobytes(), block, (codes.astype(np.float32) * scales).reshape(matrix.shape)


def model(kind):
    """Name, dtype, codes, scales, block size, and numbers of each tensor."""
    random = np.random.default_rng(20)
    vocabulary = 260 + len(TOKENS) * (kind == "bpe")
    shapes = {"tok_embeddings.weight": (vocabulary, HIDDEN), "norm.weight": (HIDDEN,)}
    if kind != "tied":
        shapes["output.weight"] = (vocabulary, HIDDEN)
    for layer in range(LAYERS):
        for name in ["attn_norm", "ffn_norm", "wq", "wk", "wv", "wo", "w1", "w2", "w3"]:
            shape = {"w1": (FFN, HIDDEN), "w2": (HIDDEN, FFN), "w3": (FFN, HIDDEN)}.get(name, (HIDDEN, HIDDEN))
            shapes[f"layers.{layer}.{name}.weight"] = (HIDDEN,) if name.endswith("norm") else shape
    if kind == "extra":
        shapes |= {"layers.2.wq.weight": (3, 32), "lora.cube": (2, 3, 4, 32)}
    for number, (name, shape) in enumerate(shapes.items()):
        numbers = random.standard_normal(shape).astype(np.float32)
        quantize = None if len(shape) == 1 else [None, q8_0, q4_0][number % 3]
        if quantize is None:
            yield name, 1, shape, numbers.tobytes(), b"", 0, numbers
        else:
            yield name, 2 if quantize == q8_0 else 3, shape, *quantize(numbers)


def tokenizer(kind):
    special = (256, 257, 258, 259)
    if kind != "bpe":
        return b"BTOK" + struct.pack("<6I", 1, 260, *special)
    head = b"BPE1" + struct.pack("<8I", 1, 260 + len(TOKENS), *special, len(TOKENS), len(MERGES))
    records = [struct.pack("<2I", token, len(octets)) + octets for token, octets in TOKENS.items()]
    return head + b"".join(records) + b"".join(struct.pack("<4I", *merge) for merge in MERGES)


def file(kind):
    tensors = list(model(kind))
    section = tokenizer(kind)
    directory_at = len(padded(bytes(108) + section))
    data_at = len(padded(bytes(directory_at + 64 * len(tensors))))
    directory, data = b"", b""
    for name, dtype, shape, codes, scales, block, _ in tensors:
        offset = data_at + len(data)
        data += padded(codes)
        scales_at = data_at + len(data) if scales else 0
        data += padded(scales)
        dims = [*shape, 1, 1, 1][:4]
        directory += struct.pack("<Q6I3QI4x", fnv1a(name), dtype, len(shape), *dims, offset, len(codes), scales_at, block)
    vocabulary = 260 + len(TOKENS) * (kind == "bpe")
    head = b"SLM1" + struct.pack("<13I2f", 1, 108, 1, int(kind == "tied"), vocabulary, 4, HIDDEN, LAYERS, HEADS, HEADS,
                                 HIDDEN // HEADS, FFN, 512, 10000.0, 1e-5)
    head += struct.pack("<3QIQQ", 108, len(section), directory_at, len(tensors), data_at, 0x1234)
    assert len(head) == 108
    return padded(padded(head + section) + directory) + data


KINDS = ["byte", "bpe", "tied", "extra"]


def write(directory):
    for kind in KINDS:
        (directory / f"{kind}.slm").write_bytes(file(kind))


def check(directory, mount):
    for kind in KINDS:
        root = mount / kind
        entries = {entry["name"]: entry for entry in json.loads((root / "index.json").read_text())["tensors"]}
        expected = {}
        for name, dtype, shape, codes, scales, _, numbers in model(kind):
            if name not in entries:
                assert kind == "extra" and name in ["layers.2.wq.weight", "lora.cube"], name
                name = f"tensor-{fnv1a(name):016x}"
            expected[name] = numbers
            assert (root / "tensors" / name).read_bytes() == codes, name
            np.testing.assert_array_equal(np.load(root / "npy" / f"{name}.npy"), numbers, name)
            assert (root / "f32" / f"{name}.f32").read_bytes() == numbers.tobytes(), name
            companion = f"{name}.slm_scale"
            if dtype == 1:
                assert companion not in entries and "quantization" not in entries[name], name
                continue
            found = entries[name]["quantization"]
            summary = {2: "SLM1: INT8, a scale per row", 3: "SLM1: INT4, groups of 32"}[dtype]
            assert (found["summary"], found["shape"], found["companions"]) == (summary, list(shape), [companion]), found
            assert (root / "tensors" / companion).read_bytes() == scales, name
        [export] = (root / "export").glob("*-f32.safetensors")
        found = load_file(export)
        assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
        for name, numbers in expected.items():
            np.testing.assert_array_equal(found[name], numbers, name)
        metadata = json.loads((root / "metadata.json").read_text())
        assert (metadata["slm.hidden_size"], metadata["slm.rope_theta"]) == (HIDDEN, 10000.0), metadata
        assert metadata["slm.checksum"] == "0x0000000000001234 (unverified: its constants are not published)"
        section = (root / "metadata" / ("tokenizer.BPE1" if kind == "bpe" else "tokenizer.BTOK")).read_bytes()
        assert section == tokenizer(kind)
        assert (metadata["tokenizer.bos_token_id"], metadata["tokenizer.unk_token_id"]) == (256, 259)
        if kind == "bpe":
            assert metadata["tokenizer.token_ids"] == list(TOKENS)
            texts = [octets.decode(errors="replace") for octets in TOKENS.values()]
            assert metadata["tokenizer.tokens"] == texts, metadata["tokenizer.tokens"]
            assert metadata["tokenizer.merges"] == [" ".join(map(str, merge)) for merge in MERGES]
        print(kind, len(entries))


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    {"write": write, "check": check}[command](*map(Path, paths))
