"""Models that recipes describe, and the same models as plain files.

    recipes.py DIRECTORY    DIRECTORY/CASE/recipe has a model.recipe and its sources, and DIRECTORY/CASE/plain the same
                            tensors in one file, in the same order. Prints for each case the plain file and a tensor.
"""

import json
import shutil
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import quantize
from safetensors.numpy import save_file

RANDOM = np.random.default_rng(7)
# Exports of arrays have it.
METADATA = {"format": "pt"}


def numbers(shape, dtype):
    return np.asarray(RANDOM.integers(-60, 60, shape)).astype(dtype)


def part(file, tensor, rows=None):
    return {"file": file, "tensor": tensor, "rows": rows}


def write_recipe(directory, tensors):
    """`tensors` maps names to parts, which are joined, or to a tuple of parts, which are stacked."""
    recipe = [{"name": name, "is_stack": isinstance(parts, tuple), "parts": parts} for name, parts in tensors.items()]
    (directory / "model.recipe").write_text(json.dumps({"tensors": recipe}))


def arrays(recipe, plain):
    """Arrays in big-endian order, in the order of Fortran, in both, and in neither, on top of each other."""
    sources = {
        "big.npy": numbers((300, 170), ">f4"),
        "fortran.npy": np.asfortranarray(numbers((220, 170), "<f4")),
        "both.npy": np.asfortranarray(numbers((60, 40, 30), ">i2")),
        "c.npy": numbers((7, 170), "<f4"),
        "halves.npy": np.asfortranarray(numbers((500, 900), "<f2")),
    }
    for name, array in sources.items():
        np.save(recipe / name, array)
    stored = numbers((90, 170), np.float32)
    save_file({"stored": stored, "other": numbers((9,), np.int8)}, recipe / "stored.safetensors")
    big, fortran, both, c, halves = sources.values()
    one = {
        "a.joined": np.concatenate([big[5:120], fortran, c, stored[80:], big[:1]]),
        "b.renamed": big,
        "c.rows": fortran[100:103],
        "d.stacked": np.stack([big[:90], fortran[130:], stored]),
        "e.empty": c[3:3],
    }
    two = {"f.halves": np.concatenate([halves[400:], halves[:400]]), "g.cube": np.concatenate([both[50:], both])}
    write_recipe(
        recipe,
        {
            "a.joined": [
                part("big.npy", "arr_0", (5, 120)), part("fortran.npy", "arr_0"), part("c.npy", "arr_0"),
                part("stored.safetensors", "stored", (80, 90)), part("big.npy", "arr_0", (0, 1)),
            ],
            "b.renamed": [part("big.npy", "arr_0")],
            "c.rows": [part("fortran.npy", "arr_0", (100, 103))],
            "d.stacked": (
                part("big.npy", "arr_0", (0, 90)), part("fortran.npy", "arr_0", (130, 220)),
                part("stored.safetensors", "stored"),
            ),
            "e.empty": [part("c.npy", "arr_0", (3, 3))],
            "f.halves": [part("halves.npy", "arr_0", (400, 500)), part("halves.npy", "arr_0", (0, 400))],
            "g.cube": [part("both.npy", "arr_0", (50, 60)), part("both.npy", "arr_0")],
        },
    )
    little = {name: np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")) for name, array in (one | two).items()}
    save_file(little, plain / "model.safetensors", METADATA)
    return "model.safetensors", "a.joined"


def scaled(recipe, plain):
    """Weights in FP8 with a scale for each: renamed, and some rows."""
    weights = {name: numbers((64, 48), ml_dtypes.float8_e4m3fn) for name in ("one.weight", "two.weight")}
    scales = {f"{name}_scale": np.asarray([RANDOM.random() + 0.5], np.float32) for name in weights}
    save_file(weights | {"norm.weight": numbers((48,), np.float32)}, recipe / "weights.safetensors")
    save_file(scales, recipe / "scales.safetensors")
    norm = numbers((48,), np.float32)
    np.save(recipe / "norm.npy", norm.astype(">f4"))
    write_recipe(
        recipe,
        {
            "model.norm.weight": [part("norm.npy", "arr_0")],
            "model.x.weight_scale": [part("scales.safetensors", "two.weight_scale")],
            "model.y.weight_scale": [part("scales.safetensors", "one.weight_scale")],
            "model.x.weight": [part("weights.safetensors", "two.weight")],
            "model.y.weight": [
                part("weights.safetensors", "one.weight", (10, 20)), part("weights.safetensors", "one.weight", (0, 3)),
            ],
        },
    )
    config = json.dumps({"model_type": "llama", "quantization_config": {"quant_method": "fp8"}})
    (recipe / "config.json").write_text(config)
    (plain / "config.json").write_text(config)
    one, two = weights.values()
    tensors = {
        "model.norm.weight": norm, "model.x.weight": two, "model.y.weight": np.concatenate([one[10:20], one[:3]]),
        "model.x.weight_scale": scales["two.weight_scale"], "model.y.weight_scale": scales["one.weight_scale"],
    }
    save_file(tensors, plain / "model.safetensors", METADATA)
    return "model.safetensors", "model.y.weight"


def blocks(recipe, plain):
    """Block types of GGUF: renamed, some rows, joined and stacked."""
    types = {"q8": Type.Q8_0, "q4": Type.Q4_0, "half": Type.F16, "float": Type.F32}
    values = {name: numbers((24, 256), np.float32) for name in types}
    quantized = {name: quantize(values[name], type) for name, type in types.items()}

    def write(path, tensors):
        writer = GGUFWriter(path, "llama")
        for name, (array, type) in tensors.items():
            writer.add_tensor(name, array, raw_dtype=type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    write(recipe / "source.gguf", {name: (quantized[name], types[name]) for name in types})
    tensors = {
        "a.rows": (quantized["q4"][3:17], types["q4"]),
        "b.joined": (np.concatenate([quantized["q8"][20:], quantized["q8"][:9]]), types["q8"]),
        "c.stacked": (np.stack([quantized["q8"][:4], quantized["q8"][8:12]]), types["q8"]),
        "d.half": (quantized["half"], types["half"]),
        "e.float": (quantized["float"][1:2], types["float"]),
    }
    write(plain / "model.gguf", tensors)
    write_recipe(
        recipe,
        {
            "a.rows": [part("source.gguf", "q4", (3, 17))],
            "b.joined": [part("source.gguf", "q8", (20, 24)), part("source.gguf", "q8", (0, 9))],
            "c.stacked": (part("source.gguf", "q8", (0, 4)), part("source.gguf", "q8", (8, 12))),
            "d.half": [part("source.gguf", "half")],
            "e.float": [part("source.gguf", "float", (1, 2))],
        },
    )
    return "model.gguf", "b.joined"


for case in arrays, scaled, blocks:
    recipe, plain = (Path(sys.argv[1]) / case.__name__ / kind for kind in ("recipe", "plain"))
    recipe.mkdir(parents=True)
    plain.mkdir()
    file, tensor = case(recipe, plain)
    print(f"{case.__name__}/plain/{file} {tensor}")
