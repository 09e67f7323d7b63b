"""Compares a mounted GGUF model with what the gguf package reads from its files.

write DIR: writes models to DIR. check SOURCE MOUNT...: compares.
"""

import os
import sys

import numpy as np
from gguf import GGUFReader, GGUFWriter, quants
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type

# The package has another size for Q8_1 than ggml.
BLOCKS = [t for t, (elements, _) in GGML_QUANT_SIZES.items() if elements > 1 and t != Type.Q8_1]
PLAIN = {
    Type.F32: np.float32, Type.F16: np.float16, Type.F64: np.float64, Type.I8: np.int8,
    Type.I16: np.int16, Type.I32: np.int32, Type.I64: np.int64,
}


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(directory):
    rng = np.random.default_rng(5)
    writer = GGUFWriter(f"{directory}/types.gguf", "llama")
    writer.add_uint32("llama.context_length", 4096)
    writer.add_float32("x.f32", 0.1)
    writer.add_float64("x.f64", -2.25e-300)
    writer.add_float32("x.nan", float("nan"))
    writer.add_bool("x.bool", True)
    writer.add_int8("x.i8", -3)
    writer.add_uint64("x.u64", 2**64 - 1)
    writer.add_array("tokenizer.ggml.tokens", ["<s>", 'a"b', "\n", "é", ""])
    writer.add_array("x.numbers", [1, -2, 3])
    writer.add_array("x.floats", [0.5, 1e-7])
    writer.add_string("tokenizer.chat_template", "{{ x }}\nline\n")
    for type, dtype in PLAIN.items():
        writer.add_tensor(f"plain.{type.name}", rng.integers(-99, 99, (3, 5)).astype(dtype))
    writer.add_tensor("plain.BF16", rng.integers(0, 256, (4, 14), dtype=np.uint8), raw_dtype=Type.BF16)
    # All bytes are random, those of scales too: infinities and NaN occur.
    for type in BLOCKS:
        _, bytes = GGML_QUANT_SIZES[type]
        data = rng.integers(0, 256, (2, 17, 3 * bytes), dtype=np.uint8)
        writer.add_tensor(f"blocks.{type.name}", data, raw_dtype=type)
    finish(writer)

    # A large alignment, and a name that is no file name.
    writer = GGUFWriter(f"{directory}/aligned.gguf", "llama")
    writer.add_custom_alignment(4096)
    for name in ["a/b", "scalar", "empty", "vector"]:
        shape = {"scalar": (1,), "empty": (0,), "vector": (7,)}.get(name, (2, 3))
        writer.add_tensor(name, np.full(shape, 1.5, np.float32))
    finish(writer)


def raw(tensor):
    return np.asarray(tensor.data).tobytes()


def equal(found, expected):
    found, expected = (np.ascontiguousarray(a, np.float32).ravel() for a in (found, expected))
    same = found.view("u4") == expected.view("u4")
    return found.size == expected.size and bool((same | np.isnan(found) & np.isnan(expected)).all())


def same_file(mine, theirs, keys=lambda key: True):
    fields = [
        [(k, [t.name for t in f.types], repr(f.contents())) for k, f in file.fields.items() if keys(k)]
        for file in (mine, theirs)
    ]
    assert fields[0] == fields[1], fields


def check(source, mount):
    model = GGUFReader(source)
    name = os.path.basename(source).removesuffix(".gguf")
    whole = GGUFReader(f"{mount}/export/{name}-whole.gguf")
    same_file(whole, model)
    assert len(whole.tensors) == len(model.tensors) == len(os.listdir(f"{mount}/tensors"))
    decoded = 0
    for tensor, copy in zip(model.tensors, whole.tensors):
        assert (tensor.name, tensor.tensor_type, list(tensor.shape)) == (copy.name, copy.tensor_type, list(copy.shape))
        assert raw(tensor) == raw(copy), tensor.name
        file = tensor.name.replace("/", "%2F")
        with open(f"{mount}/tensors/{file}", "rb") as stored:
            assert stored.read() == raw(tensor), tensor.name
        single = GGUFReader(f"{mount}/gguf/{file}.gguf")
        [only] = single.tensors
        assert (only.name, list(only.shape), raw(only)) == (tensor.name, list(tensor.shape), raw(tensor))
        same_file(single, model, lambda key: key.startswith("general."))
        array = np.load(f"{mount}/npy/{file}.npy", mmap_mode="r") if tensor.n_elements else np.load(f"{mount}/npy/{file}.npy")
        assert array.shape == tuple(reversed(tensor.shape.tolist())), tensor.name
        if tensor.tensor_type in PLAIN:
            assert array.dtype == PLAIN[tensor.tensor_type] and array.tobytes() == raw(tensor)
            continue
        try:
            with np.errstate(all="ignore"):
                expected = quants.dequantize(np.asarray(tensor.data), tensor.tensor_type)
        except NotImplementedError:
            continue
        assert array.dtype == np.float32 and equal(array, expected), tensor.name
        flat = np.fromfile(f"{mount}/f32/{file}.f32", "<f4")
        assert equal(flat, expected), tensor.name
        # A read that begins and ends inside blocks.
        with open(f"{mount}/f32/{file}.f32", "rb") as part:
            part.seek(4 * 331 + 1)
            assert part.read(1001) == flat.tobytes()[4 * 331 + 1 : 4 * 331 + 1002], tensor.name
        decoded += 1
    return decoded


if sys.argv[1] == "write":
    write(sys.argv[2])
else:
    print(check(sys.argv[2], sys.argv[3]))
