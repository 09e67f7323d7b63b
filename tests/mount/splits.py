"""Splits of GGUF models, written and read by the gguf package.

write DIR: writes a model as splits, once more with a first split without tensors, and as one file. same A B: compares
two files.
"""

import sys

import numpy as np
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGMLQuantizationType as Type

rng = np.random.default_rng(7)
TENSORS = [
    ("token_embd.weight", rng.standard_normal((16, 32)).astype(np.float32), None),
    ("blk.0.attn_q.weight", rng.integers(0, 256, (3, 2 * 18), dtype=np.uint8), Type.Q4_0),
    ("blk.0.ffn.weight", rng.standard_normal((5, 7)).astype(np.float16), None),
    ("blk.1.attn_q.weight", rng.integers(0, 256, (4, 34), dtype=np.uint8), Type.Q8_0),
    ("output_norm.weight", rng.standard_normal(9).astype(np.float32), None),
]


def writer(path, **options):
    writer = GGUFWriter(path, "llama", **options)
    writer.add_name("Split Model")
    writer.add_uint32("general.quantization_version", 2)
    for key in ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count"):
        writer.add_uint32(f"llama.{key}", 32)
    writer.add_string("tokenizer.ggml.model", "llama")
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "</s>", "é"])
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for name, data, type in TENSORS:
        writer.add_tensor(name, data, raw_dtype=type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(directory):
    writer(f"{directory}/tiny.gguf", split_max_tensors=2)
    writer(f"{directory}/bare.gguf", split_max_tensors=2, small_first_shard=True)
    writer(f"{directory}/one.gguf")


def keys(file):
    # The package adds the fields of the header, which are not metadata.
    return [(k, [t.name for t in f.types], repr(f.contents())) for k, f in file.fields.items() if not k.startswith("GGUF.")]


def same(a, b):
    a, b = GGUFReader(a), GGUFReader(b)
    assert keys(a) == keys(b), (keys(a), keys(b))
    assert len(a.tensors) == len(b.tensors) == len(TENSORS)
    for x, y in zip(a.tensors, b.tensors):
        assert (x.name, x.tensor_type, list(x.shape)) == (y.name, y.tensor_type, list(y.shape))
        assert np.asarray(x.data).tobytes() == np.asarray(y.data).tobytes(), x.name


if sys.argv[1] == "write":
    write(sys.argv[2])
else:
    same(sys.argv[2], sys.argv[3])
