"""PyTorch checkpoints without PyTorch: an oracle that reads them with Python's own pickle and NumPy, and a writer.

    pytorch.py read FILE...            one line per tensor: FILE, name, dtype, shape, SHA-256 of the values in C order
    pytorch.py write DIRECTORY         the files of the tests, and what their tensors hold as .safetensors files

The writer follows torch.save: the pickle is byte-identical to that of torch, because the modules `torch` and
`torch._utils` that it names are replaced by empty ones, and the archive has the layout that PyTorchStreamWriter gives it.
"""

import hashlib
import io
import json
import pickle
import struct
import sys
import types
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import as_strided

# Storage class: NumPy dtype, name in safetensors.
STORAGES = {
    "FloatStorage": ("<f4", "F32"),
    "DoubleStorage": ("<f8", "F64"),
    "HalfStorage": ("<f2", "F16"),
    "BFloat16Storage": ("<u2", "BF16"),
    "LongStorage": ("<i8", "I64"),
    "IntStorage": ("<i4", "I32"),
    "ShortStorage": ("<i2", "I16"),
    "CharStorage": ("i1", "I8"),
    "ByteStorage": ("u1", "U8"),
    "BoolStorage": ("?", "BOOL"),
    "ComplexFloatStorage": ("<c8", "C64"),
    "ComplexDoubleStorage": ("<c16", "C128"),
}


class Opaque:
    """Stands for a class that is not known. Its instances hold what the pickle sets."""

    def __init__(self, *args, **kwargs):
        self.args = args

    def __setstate__(self, state):
        self.state = state

    def append(self, value):
        pass

    def extend(self, values):
        pass

    def __setitem__(self, key, value):
        pass


class Unpickler(pickle.Unpickler):
    def __init__(self, file, storage):
        super().__init__(file, encoding="latin1")
        self.storage = storage

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) in [("builtins", "set"), ("__builtin__", "set")]:
            return set
        if module == "torch._utils" and name.startswith("_rebuild_tensor"):
            return lambda storage, offset, size, stride, *_: Tensor(storage, offset, size, stride)
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *_: tensor
        if name.endswith("Storage") and module == "torch":
            return name
        if (module, name) == ("torch", "Size"):
            return tuple
        return type(name, (Opaque,), {})

    def persistent_load(self, identifier):
        return self.storage(*identifier)


class Tensor:
    def __init__(self, storage, offset, size, stride):
        array, self.dtype = storage
        steps = [step * array.itemsize for step in stride]
        self.values = as_strided(array[offset:], tuple(size), steps) if 0 not in size else np.empty(size, array.dtype)


def tensors(value, path=""):
    """The tensors in a value, by the path to them. Modules have the names of their state dict."""
    join = lambda key: f"{path}.{key}" if path else str(key)
    if isinstance(value, Tensor):
        yield path or "tensor", value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from tensors(inner, join(key))
    elif isinstance(value, (list, tuple)):
        for at, inner in enumerate(value):
            yield from tensors(inner, join(at))
    elif isinstance(value, Opaque):
        state = getattr(value, "state", None)
        if isinstance(state, dict) and "_parameters" in state and "_modules" in state:
            for part in ("_parameters", "_buffers", "_modules"):
                for key, inner in state[part].items():
                    if part != "_buffers" or key not in (state.get("_non_persistent_buffers_set") or ()):
                        yield from tensors(inner, join(key))
        elif isinstance(state, dict):
            yield from tensors(state, path)


def load(path):
    """The tensors of a checkpoint."""
    archive = zipfile.ZipFile(path)

    def stored(name):
        # torch leaves the checksums out of some files, which zipfile refuses.
        info = archive.getinfo(name)
        with open(path, "rb") as file:
            file.seek(info.header_offset + 26)
            file.seek(info.header_offset + 30 + sum(struct.unpack("<HH", file.read(4))))
            return file.read(info.file_size)

    (pickled,) = [name for name in archive.namelist() if name == "data.pkl" or name.endswith("/data.pkl")]
    prefix = pickled[: -len("data.pkl")]
    big = f"{prefix}byteorder" in archive.namelist() and stored(f"{prefix}byteorder") == b"big"

    def storage(_, kind, key, location, numel):
        dtype, name = STORAGES[kind]
        own = np.dtype(dtype).newbyteorder(">") if big else np.dtype(dtype)
        return np.frombuffer(stored(f"{prefix}data/{key}"), own, numel).astype(dtype), name

    root = Unpickler(io.BytesIO(stored(pickled)), storage).load()
    return {shown(root, name): tensor for name, tensor in tensors(root)}


def shown(root, name):
    """The name of a tensor in a mount, after the folder of its set if it is not one of the weights."""
    if not isinstance(root, dict):
        return name
    states = [key for key, value in root.items() if isinstance(value, dict) and set(value) == {"state", "param_groups"}]
    for key in states:
        if name.startswith(f"{key}."):
            return f"optimizer/{name.removeprefix(f'{key}.')}"
    weights = [key for key, value in root.items() if key not in states and any(tensors(value))]
    if weights == ["state_dict"] or states and len(weights) == 1:
        name = name.removeprefix(f"{weights[0]}.")
        inner = root[weights[0]]
        if states and isinstance(inner, dict) and [key for key, value in inner.items() if any(tensors(value))] == ["state_dict"]:
            name = name.removeprefix("state_dict.")
    return name


# Writing.


def fake(module, name, **attributes):
    """A function or class of torch, as far as a pickle names it."""
    made = type(name, (), {"__module__": module, "__qualname__": name, **attributes})
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(module))
    setattr(sys.modules[module], name, made)
    return made


class Storage:
    def __init__(self, kind, array):
        self.kind, self.array = kind, array


class View:
    """A tensor to be written: a view of a storage."""

    def __init__(self, storage, offset, size, stride):
        self.storage, self.offset, self.size, self.stride = storage, offset, size, stride

    def __reduce_ex__(self, _):
        rebuild = sys.modules["torch._utils"]._rebuild_tensor_v2
        return rebuild, (self.storage, self.offset, self.size, self.stride, False, OrderedDict())


def tensor(array, kind="FloatStorage"):
    strides = tuple(step // array.itemsize for step in array.strides)
    return View(Storage(kind, array), 0, array.shape, strides)


def save(path, value, prefix="archive", byteorder=b"little", protocol=2, plain=False, alignment=64):
    """Writes a checkpoint as torch.save does, or as Python's zipfile would."""
    storages = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, found):
            if not isinstance(found, Storage):
                return None
            if found not in storages:
                storages.append(found)
            kind = getattr(sys.modules["torch"], found.kind)
            return "storage", kind, str(storages.index(found)), "cpu", found.array.size

    out = io.BytesIO()
    Pickler(out, protocol).dump(value)
    entries = [("data.pkl", out.getvalue()), (".format_version", b"1"), (".storage_alignment", str(alignment).encode())]
    entries.append(("byteorder", byteorder))
    order = ">" if byteorder == b"big" else "<"
    for at, storage in enumerate(storages):
        entries.append((f"data/{at}", storage.array.astype(storage.array.dtype.newbyteorder(order)).tobytes()))
    entries += [("version", b"3\n"), (".data/serialization_id", b"0" * 40)]
    entries = [(f"{prefix}/{name}", data) for name, data in entries]
    if plain:
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in entries:
                archive.writestr(name, data)
    else:
        Path(path).write_bytes(archive_of(entries, alignment))


def archive_of(entries, alignment):
    """An archive as PyTorchStreamWriter writes it."""
    out, directory = bytearray(), bytearray()
    for name, data in entries:
        start, name = len(out), name.encode()
        padding = -(start + 30 + len(name) + 4) % alignment
        out += struct.pack("<4s5H3I2H", b"PK\3\4", 0, 0x808, 0, 0, 0, 0, 0, 0, len(name), padding + 4)
        out += name + struct.pack("<2sH", b"FB", padding) + b"Z" * padding + data
        crc = zlib.crc32(data)
        if data:
            out += struct.pack("<4s3I", b"PK\7\x08", crc, len(data), len(data))
        directory += struct.pack("<4s6H3I5H2I", b"PK\1\2", 0, 0, 0x808, 0, 0, 0, crc, len(data), len(data),
                                 len(name), 0, 0, 0, 0, 0, start) + name
    start = len(out)
    out += directory
    end = len(out)
    out += struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 0x31E, 45, 0, 0, len(entries), len(entries), len(directory), start)
    out += struct.pack("<4sIQI", b"PK\6\7", 0, end, 1)
    out += struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, len(entries), len(entries), len(directory), start, 0)
    return bytes(out)


def prepare():
    for name in STORAGES:
        fake("torch", name)
    fake("torch._utils", "_rebuild_tensor_v2")


def write(directory):
    """The files of the tests."""
    from safetensors.numpy import save_file

    prepare()
    random = np.random.default_rng(7)
    numbers = lambda *shape: random.standard_normal(shape, dtype=np.float32)
    weight, bias = numbers(6, 10), numbers(10)
    shared = Storage("FloatStorage", numbers(24))
    image = np.ascontiguousarray(numbers(2, 3, 4, 5).transpose(0, 2, 3, 1))
    half = numbers(3, 3).astype(np.float16)
    counts = np.arange(5, dtype=np.int64)
    flags = np.array([True, False, True])
    complex64 = (numbers(4) + 1j * numbers(4)).astype(np.complex64)
    large = numbers(300, 200)
    state = OrderedDict(
        [
            ("weight", tensor(weight)),
            ("bias", tensor(bias)),
            ("tied", None),
            ("transposed", View(Storage("FloatStorage", large), 0, (200, 300), (1, 200))),
            ("first", View(shared, 0, (2, 6), (6, 1))),
            ("second", View(shared, 12, (12,), (1,))),
            ("columns", View(shared, 2, (4, 2), (6, 2))),
            ("repeated", View(shared, 5, (1000, 3), (0, 1))),
            ("channels_last", View(Storage("FloatStorage", image), 0, (2, 3, 4, 5), (60, 1, 15, 3))),
            ("half", tensor(half, "HalfStorage")),
            ("counts", tensor(counts, "LongStorage")),
            ("flags", tensor(flags, "BoolStorage")),
            ("complex", tensor(complex64, "ComplexFloatStorage")),
            ("scalar", View(Storage("FloatStorage", np.float32([2.5])), 0, (), ())),
            ("empty", View(Storage("FloatStorage", np.float32([])), 0, (0, 3), (3, 1))),
        ]
    )
    state["tied"] = state["weight"]
    flat = shared.array
    expected = {
        "weight": weight,
        "bias": bias,
        "tied": weight.copy(),
        "transposed": large.T,
        "first": flat[:12].reshape(2, 6),
        "second": flat[12:],
        "columns": as_strided(flat[2:], (4, 2), (24, 8)),
        "repeated": np.broadcast_to(flat[5:8], (1000, 3)),
        "channels_last": image.transpose(0, 3, 1, 2),
        "half": half,
        "counts": counts,
        "flags": flags,
        "complex": complex64,
        "scalar": np.float32(2.5).reshape(()),
        "empty": np.empty((0, 3), np.float32),
    }
    expected = {name: np.ascontiguousarray(values).reshape(values.shape) for name, values in expected.items()}
    out = Path(directory)
    save_file(expected, out / "views.safetensors")
    save(out / "views.pt", state)
    save(out / "plain.pt", state, plain=True)
    save(out / "aligned.pt", state, alignment=4096)
    save(out / "big.pt", state, byteorder=b"big")
    for protocol in (3, 4, 5):
        save(out / f"protocol{protocol}.pt", state, protocol=protocol)
    training = {
        "epoch": 3,
        "lr": 0.5,
        "name": "run",
        "done": False,
        "none": None,
        "losses": [1.5, 2, 3],
        "tags": ("a", "b"),
        "state_dict": OrderedDict(state),
    }
    save(out / "training.ckpt", training)
    training["optimizer"] = {"state": {0: {"exp_avg": tensor(bias)}}, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}
    save(out / "resumed.ckpt", training)
    # Two shards and their index.
    names = list(state)
    for number, part in ((1, names[:7]), (2, names[7:])):
        save(out / f"pytorch_model-0000{number}-of-00002.bin", OrderedDict((name, state[name]) for name in part))
    weight_map = {name: f"pytorch_model-0000{1 + (at >= 7)}-of-00002.bin" for at, name in enumerate(names)}
    (out / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    # A file of several megabytes.
    wide = numbers(1000, 500)
    save(out / "wide.pt", {"wide": tensor(wide), "turned": View(Storage("FloatStorage", wide * 2), 0, (500, 1000), (1, 500))})
    # A pickle that would run a command.
    run = fake("posix", "system")
    evil = OrderedDict(state)
    evil["evil"] = Call(run, ("touch /tmp/weightfs-was-here",))
    evil["other"] = Call(fake("pytorch_lightning.utilities", "AttributeDict"), ())
    save(out / "evil.pt", evil)


class Call:
    def __init__(self, function, args):
        self.function, self.args = function, args

    def __reduce_ex__(self, _):
        return self.function, self.args


def read(paths):
    for path in paths:
        for name, tensor in load(path).items():
            digest = hashlib.sha256(np.ascontiguousarray(tensor.values).tobytes()).hexdigest()
            shape = list(tensor.values.shape)
            print(json.dumps([path, name, tensor.dtype, shape, digest]))


if __name__ == "__main__":
    {"read": read, "write": lambda paths: write(*paths)}[sys.argv[1]](sys.argv[2:])
