"""The same small model in every format, and as safetensors.

    formats.py DIRECTORY

DIRECTORY/models and DIRECTORY/arrays have the models. DIRECTORY/want has what their tensors hold: model.safetensors,
one.safetensors for the array without a name, and for SLM1 codes.safetensors with what is stored and numbers.safetensors
with what it means.
"""

import json
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

sys.dont_write_bytecode = True
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
import pytorch
import slm

RANDOM = np.random.default_rng(3)
ROWS = 5
ARRAYS = {
    "a.weight": RANDOM.standard_normal((ROWS, 4), dtype=np.float32),
    "a.half": RANDOM.standard_normal((ROWS, 3)).astype(np.float16),
    "b.counts": np.arange(-2, ROWS - 2),
    "b.flags": np.arange(ROWS) % 2 == 0,
}
KINDS = {"f4": "FloatStorage", "f2": "HalfStorage", "i8": "LongStorage", "b1": "BoolStorage"}


def strided(array):
    """A tensor whose elements lie along the first dimension, with a gap after each."""
    kind = KINDS[array.dtype.str[1:]]
    if array.ndim == 1:
        return pytorch.View(pytorch.Storage(kind, np.repeat(array, 2)), 1, array.shape, (2,))
    flat = np.repeat(np.ascontiguousarray(array.T).reshape(-1), 2)
    return pytorch.View(pytorch.Storage(kind, flat), 1, array.shape, (2, 2 * array.shape[0]))


def torch(models):
    pytorch.prepare()
    state = OrderedDict((name, strided(array)) for name, array in ARRAYS.items())
    pytorch.save(models / "strided.pt", {"epoch": 3, "state_dict": state})
    sharded = models / "sharded"
    sharded.mkdir()
    names = list(ARRAYS)
    weight_map = {}
    for number, part in ((1, names[:1]), (2, names[1:])):
        file = f"pytorch_model-0000{number}-of-00002.bin"
        pytorch.save(sharded / file, OrderedDict((name, state[name]) for name in part))
        weight_map |= dict.fromkeys(part, file)
    (sharded / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    # A module of TorchScript: objects of its own classes, and compressed code.
    module = type("Module", (), {})
    root = module()
    for name, tensor in state.items():
        owner, name = name.split(".")
        if not hasattr(root, owner):
            setattr(root, owner, module())
        setattr(getattr(root, owner), name, tensor)
    sys.modules["__torch__"] = type(sys)("__torch__")
    sys.modules["__torch__"].Module = module
    module.__module__ = "__torch__"
    pytorch.save(models / "script.pt", root, prefix="script", plain=True)
    with zipfile.ZipFile(models / "script.pt", "a") as archive:
        archive.writestr("script/constants.pkl", b"\x80\x02).")
        archive.writestr("script/code/__torch__.py", "class Module(Module):\n" * 50, zipfile.ZIP_DEFLATED)


def dataset(models):
    directory = models / "dataset"
    directory.mkdir()
    shards = []
    for number, (start, end) in enumerate([(0, 2), (2, ROWS)]):
        name = f"part-0000{number}-0000-0e8b1f5c-1d6e-4f0a-9f5e-0123456789ab.safetensors"
        save_file({key: np.ascontiguousarray(array[start:end]) for key, array in ARRAYS.items()}, directory / name)
        shards.append({"shard_path": name, "samples_count": end - start, "bytes": (directory / name).stat().st_size})
    total = sum(shard["bytes"] for shard in shards)
    manifest = {"format_version": "1.0", "safetensors_version": "1.0", "total_samples": ROWS, "total_bytes": total}
    (directory / "dataset_manifest.json").write_text(json.dumps(manifest | {"shards": shards}))


def write(directory):
    models, own, want = (directory / name for name in ["models", "arrays", "want"])
    for made in (models, own, want):
        made.mkdir()
    save_file(ARRAYS, want / "model.safetensors")
    torch(models)
    dataset(models)
    arrays = {name: np.asfortranarray(array) for name, array in ARRAYS.items()}
    arrays["b.counts"] = arrays["b.counts"].astype(">i8")
    np.savez(own / "arrays.npz", **arrays)
    weight = ARRAYS["a.weight"]
    np.save(own / "one.npy", np.asfortranarray(weight.astype(">f4")))
    save_file({"arr_0": weight}, want / "one.safetensors")
    slm.LAYERS = 1
    (models / "tiny.slm").write_bytes(slm.file("byte"))
    codes, numbers = {}, {}
    for name, dtype, shape, stored, scales, block, values in slm.model("byte"):
        numbers[name] = values
        codes[name] = values
        if dtype != 1:
            width = shape[-1] // (dtype - 1)
            codes[name] = np.frombuffer(stored, [np.int8, np.uint8][dtype - 2]).reshape(*shape[:-1], width)
            codes[f"{name}.slm_scale"] = np.frombuffer(scales, np.float32).reshape(*shape[:-1], -1)
    save_file(codes, want / "codes.safetensors")
    save_file({name: np.ascontiguousarray(values) for name, values in numbers.items()}, want / "numbers.safetensors")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
