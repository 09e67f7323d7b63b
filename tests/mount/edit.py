"""Changes the metadata of random GGUF files with weightfs, and compares the results with what the gguf package reads.

edit.py WEIGHTFS DIR
"""

import json
import random
import subprocess
import sys

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

NUMBERS = {
    "u8": (GGUFValueType.UINT8, 0, 2**8 - 1),
    "i8": (GGUFValueType.INT8, -(2**7), 2**7 - 1),
    "u16": (GGUFValueType.UINT16, 0, 2**16 - 1),
    "i16": (GGUFValueType.INT16, -(2**15), 2**15 - 1),
    "u32": (GGUFValueType.UINT32, 0, 2**32 - 1),
    "i32": (GGUFValueType.INT32, -(2**31), 2**31 - 1),
    "u64": (GGUFValueType.UINT64, 0, 2**64 - 1),
    "i64": (GGUFValueType.INT64, -(2**63), 2**63 - 1),
}
TYPES = {name: row[0] for name, row in NUMBERS.items()} | {
    "f32": GGUFValueType.FLOAT32, "f64": GGUFValueType.FLOAT64,
    "bool": GGUFValueType.BOOL, "string": GGUFValueType.STRING,
}
TEXTS = ["", "x", "two words", "line\nline\n", 'a"b\\c', "é\u2028", "[1]", " 7 ", "\ufffd", "a=b:u32"]


def value(rng, type):
    """A value as the package reads it."""
    if type in NUMBERS:
        _, low, high = NUMBERS[type]
        return rng.choice([low, high, rng.randint(low, high), 0, 1])
    if type == "bool":
        return rng.random() < 0.5
    if type == "string":
        return rng.choice(TEXTS)
    number = rng.choice([0.0, -0.0, 1.5, 1e-40, -3e38, rng.uniform(-1, 1)])
    return float(np.float32(number)) if type == "f32" else number


def text(value):
    return value if isinstance(value, str) else json.dumps(value)


def same(a, b):
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)


def write(rng, path):
    """Writes a file, and returns its keys in order: key -> (type, is_array, value)."""
    writer = GGUFWriter(path, "llama")
    keys = {"general.architecture": ("string", False, "llama")}
    if rng.random() < 0.3:
        alignment = rng.choice([8, 64, 128])
        writer.add_custom_alignment(alignment)
        keys["general.alignment"] = ("u32", False, alignment)
    for at in range(rng.randrange(8)):
        type, is_array = rng.choice(list(TYPES)), rng.random() < 0.4
        # The package cannot write empty arrays.
        new = [value(rng, type) for _ in range(rng.randint(1, 5))] if is_array else value(rng, type)
        key = rng.choice([f"k.{at}", f"a=b{at}", f"é {at}:x"])
        keys[key] = (type, is_array, new)
        if is_array:
            writer.add_key_value(key, new, GGUFValueType.ARRAY, TYPES[type])
        else:
            writer.add_key_value(key, new, TYPES[type])
    for at in range(rng.randrange(4)):
        writer.add_tensor(f"t.{at}", np.random.default_rng(at).random((rng.randint(1, 5), rng.randint(1, 40))))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return keys


def read(path):
    """The keys of a file with types, values and bytes, and its tensors with their data."""
    reader = GGUFReader(path)
    fields, raw = {}, {}
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            fields[key] = ([type.name for type in field.types], field.contents() if field.data else [])
            raw[key] = b"".join(np.asarray(part).tobytes() for part in field.parts)
    tensors = [(t.name, t.tensor_type, list(t.shape), np.asarray(t.data).tobytes()) for t in reader.tensors]
    return fields, raw, tensors


def change(rng, keys):
    """Changes `keys`. Returns arguments of `weightfs metadata`, standard input, and the keys that changed."""
    free = [key for key in keys if key != "general.alignment"]
    if rng.random() < 0.3:
        gone = rng.sample(free, min(len(free), rng.randint(1, 2)))
        for key in gone:
            del keys[key]
        return ["remove", *gone], None, set()
    words, stdin, changed = [], None, set()
    for _ in range(rng.randint(1, 3)):
        if free and rng.random() < 0.6:
            key = rng.choice(free)
            type, is_array, old = keys[key]
            word = key
        else:
            key = rng.choice(["new.a", "new:b", "k.0"])
            type, is_array, old = rng.choice(list(TYPES)), rng.random() < 0.4, None
            word = f"{key}:{type}{'[]' * is_array}"
        if key in changed:
            continue
        new = [value(rng, type) for _ in range(rng.randint(0, 5))] if is_array else value(rng, type)
        if isinstance(old, list) and rng.random() < 0.5:
            new = old[:2] + new
        if key.endswith(":x") and word == key and rng.random() < 0.5:
            word = f"{key}:{type}{'[]' * is_array}"
        keys[key] = (type, is_array, new)
        changed.add(key)
        lines = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in new) if is_array else text(new)
        if stdin is None and "=" not in word and rng.random() < 0.4:
            words.append(word)
            stdin = lines
        elif "=" not in word:
            words.append(f"{word}={json.dumps(new)}" if is_array and rng.random() < 0.8 else f"{word}={lines}")
        else:
            # A key with = can only be removed.
            keys[key] = (type, is_array, old)
            changed.discard(key)
    return ["set", *words], stdin, changed


def main(weightfs, directory):
    rng = random.Random(7)
    tried = 0
    for round in range(150):
        path = f"{directory}/m{round % 2}.gguf"
        keys = write(rng, path)
        for _ in range(3):
            _, old_raw, old_tensors = read(path)
            arguments, stdin, changed = change(rng, keys)
            if len(arguments) == 1:
                continue
            command = [weightfs, "metadata", arguments[0], path, *arguments[1:]]
            done = subprocess.run(command, input=stdin or "", text=True, capture_output=True)
            assert done.returncode == 0, (command, stdin, done.stderr)
            fields, raw, tensors = read(path)
            assert list(fields) == list(keys), (command, list(fields), list(keys))
            for key, (type, is_array, expected) in keys.items():
                types, found = fields[key]
                # The package does not give the type of the elements of an empty array.
                if is_array and not expected:
                    assert types[0] == "ARRAY" and found == [], (command, key, types, found)
                    continue
                assert types == ["ARRAY"] * is_array + [TYPES[type].name], (command, key, types)
                assert same(found, expected), (command, key, found, expected)
                assert key in changed or raw[key] == old_raw[key], (command, key)
            assert tensors == old_tensors, command
            tried += 1
    return tried


print(main(*sys.argv[1:]))
