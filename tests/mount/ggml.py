"""Compares a mounted GGUF model with what the gguf package reads from its files.

write DIR: writes models to DIR. check SOURCE MOUNT: compares. diff WEIGHTFS DIR: compares a GGUF file with a safetensors
file of its values, some of which are changed, by `weightfs diff --data` and `--values`.
"""

import json
import os
import subprocess
import sys

import numpy as np
from gguf import GGUFReader, GGUFWriter, quants
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type
from gguf.constants import GGUFValueType as ValueType
from safetensors.numpy import save_file

sys.dont_write_bytecode = True
import errors

# More elements than this are not compared in a tensor.
LARGE = 256 << 10

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


def same_metadata(model, mount):
    """Compares metadata.json and the files in metadata/ with each value that the package reads."""
    with open(f"{mount}/metadata.json", encoding="utf-8") as file:
        typed = json.load(file)
    fields = {key: field for key, field in model.fields.items() if not key.startswith("GGUF.")}
    assert sorted(typed) == sorted(fields) == sorted(os.listdir(f"{mount}/metadata"))
    for key, field in fields.items():
        value = field.contents()
        with open(f"{mount}/metadata/{key}", "rb") as file:
            text = file.read()
        kind, is_list = field.types[-1], field.types[0] == ValueType.ARRAY
        narrow = np.float32 if kind == ValueType.FLOAT32 else lambda number: number
        # A NaN has no form in JSON.
        found = [narrow(np.nan) if v is None else narrow(v) for v in (typed[key] if is_list else [typed[key]])]
        expected = value if is_list else [value]
        if kind in (ValueType.FLOAT32, ValueType.FLOAT64):
            assert np.array_equal(found, expected, equal_nan=True), key
        else:
            assert found == expected and [type(v) for v in found] == [type(v) for v in expected], key
        if is_list:
            assert [json.loads(line) for line in text.splitlines()] == typed[key], key
        elif kind == ValueType.STRING:
            assert text == value.encode(), key
        elif kind == ValueType.BOOL:
            assert text == (b"true" if value else b"false"), key
        else:
            number = narrow(float(text)) if kind == ValueType.FLOAT32 else type(value)(text)
            assert number == value or number != number and value != value, (key, text)
    return len(fields)


def is_sample(name):
    """Whether a tensor of a real model stands for others: blocks consist of the same tensors, and each sixth is enough."""
    parts = name.split(".")
    return parts[0] != "blk" or int(parts[1]) % 6 == 0


def check(source, mount):
    model = GGUFReader(source)
    keys = same_metadata(model, mount)
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
        if not is_sample(tensor.name):
            continue
        single = GGUFReader(f"{mount}/gguf/{file}.gguf")
        [only] = single.tensors
        assert (only.name, list(only.shape), raw(only)) == (tensor.name, list(tensor.shape), raw(tensor))
        same_file(single, model, lambda key: key.startswith("general."))
        array = np.load(f"{mount}/npy/{file}.npy", mmap_mode="r") if tensor.n_elements else np.load(f"{mount}/npy/{file}.npy")
        assert array.shape == tuple(reversed(tensor.shape.tolist())), tensor.name
        if tensor.tensor_type in PLAIN:
            assert array.dtype == PLAIN[tensor.tensor_type] and array.tobytes() == raw(tensor)
            continue
        # Of a large tensor, some rows are compared: the first, the last, and others.
        rows = slice(None)
        if tensor.n_elements > LARGE:
            count = tensor.data.shape[0]
            rows = np.unique([0, count - 1, *np.random.default_rng(count).integers(0, count, LARGE // array.shape[-1])])
        try:
            with np.errstate(all="ignore"):
                expected = quants.dequantize(np.asarray(tensor.data)[rows], tensor.tensor_type)
        except NotImplementedError:
            continue
        assert array.dtype == np.float32 and equal(array[rows], expected), tensor.name
        flat = np.memmap(f"{mount}/f32/{file}.f32", "<f4", "r")
        assert equal(flat.reshape(array.shape)[rows], expected), tensor.name
        if flat.size < 1000:
            decoded += 1
            continue
        # A read that begins and ends inside blocks.
        with open(f"{mount}/f32/{file}.f32", "rb") as part:
            part.seek(4 * 331 + 1)
            assert part.read(1001) == flat[:1000].tobytes()[4 * 331 + 1 : 4 * 331 + 1002], tensor.name
        decoded += 1
    return keys, len(model.tensors), decoded


def diff(weightfs, directory):
    rng = np.random.default_rng(7)
    write(directory)
    source = f"{directory}/types.gguf"
    values, expected, olds = {}, {}, {}
    for at, tensor in enumerate(GGUFReader(source).tensors):
        try:
            with np.errstate(all="ignore"):
                whole = quants.dequantize(np.asarray(tensor.data), tensor.tensor_type)
        except NotImplementedError:
            if tensor.tensor_type not in PLAIN:
                continue
            whole = np.asarray(tensor.data)
        # Integers stay integers, and float64 stays float64: they are compared without rounding.
        exact = tensor.tensor_type in PLAIN and tensor.tensor_type not in (Type.F32, Type.F16)
        old = np.array(whole if exact else whole.astype("<f4")).reshape(tuple(reversed(tensor.shape.tolist())))
        new = old.copy().ravel()
        finite = np.flatnonzero(np.isfinite(new))
        # Each tensor has another number of changes, the first one none.
        changed = rng.choice(finite, min(at, finite.size), replace=False)
        with np.errstate(all="ignore"):
            new[changed] = np.where(np.isfinite(new[changed] * 2), new[changed] * 2, 0) + (np.abs(new[changed]) < 1)
        apart = np.abs(new[changed].astype("f8") - old.ravel()[changed].astype("f8"))
        differ = int((new[changed] != old.ravel()[changed]).sum())
        values[tensor.name] = new.reshape(old.shape)
        if differ:
            expected[tensor.name] = (old.size, differ, 0, float(apart.max()))
            olds[tensor.name] = old
    # The innermost dimension first, as in the GGUF file: another shape.
    values["plain.F16"] = np.ascontiguousarray(values["plain.F16"].T)
    del expected["plain.F16"]
    other = f"{directory}/values.safetensors"
    save_file(values, other)
    result = subprocess.run([weightfs, "diff", "--data", "--json", source, other], stdout=subprocess.PIPE)
    assert result.returncode == 1, result
    result = json.loads(result.stdout)
    keys = ("elements", "elements_different", "not_finite", "max_abs")
    found = {entry["name"]: tuple(entry[key] for key in keys) for entry in result["data"]["different"]}
    assert found == expected, [(name, found.get(name), expected.get(name)) for name in {**found, **expected}]
    # The errors of all types, as numbers.
    _, report = errors.diff(weightfs, source, other)
    deviations = {entry["name"]: entry for entry in report["values"]["different"]}
    assert set(deviations) == set(expected), (set(deviations) ^ set(expected))
    for name, deviation in deviations.items():
        errors.check(deviation, olds[name], values[name], name)
    return len(values) - 1 - len(expected), len(expected), result


if sys.argv[1] == "write":
    write(sys.argv[2])
elif sys.argv[1] == "diff":
    equal, different, result = diff(sys.argv[2], sys.argv[3])
    assert result["data"]["equal"] == equal, (equal, result["data"]["equal"])
    print(equal, different, json.dumps(result["data"].get("not_compared")))
else:
    print(*check(sys.argv[2], sys.argv[3]))
