"""NumPy files, and mounts of them compared with numpy.load.

write DIR: writes arrays of all dtypes, orders and versions to DIR. check DIR MOUNT: compares a mount of DIR with what
numpy.load returns.
"""

import json
import sys
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

# NumPy's names of dtypes that safetensors has.
NUMBERS = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8"]
OTHERS = ["c16", "g", "S5", "U3", "V7", "M8[ns]", "m8[25s]", "M8"]
RECORD = np.dtype([("a", "<f4"), ("b", ">i2", (2, 3)), (("title", "c"), [("x", "u1"), ("y", "<c8")])])
PADDED = np.dtype([("a", "u1"), ("b", "<f8")], align=True)


def filled(dtype, shape):
    """An array of random bytes; booleans are 0 or 1, and texts are ASCII."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    octets = np.random.default_rng(size).integers(0, 2 if dtype == bool else 256, size, np.uint8)
    if dtype.kind in "US":
        return np.array(["a", "bc", "def"] * size, dtype)[: size // dtype.itemsize].reshape(shape)
    return octets.view(dtype).reshape(shape) if size else np.zeros(shape, dtype)


class Stream:
    """A file that can only be written from its beginning to its end."""

    def __init__(self, file):
        self.write, self.flush = file.write, file.flush

    def read(self, size):
        raise OSError("not readable")


def write(directory):
    files = {}
    for name in NUMBERS + OTHERS:
        files[f"dtype-{name}"] = filled(name, (3, 4))
    for name, shape in {"scalar": (), "one": (1,), "vector": (5,), "empty": (0, 3), "cube": (2, 3, 4)}.items():
        files[f"shape-{name}"] = filled("f4", shape)
    for name in NUMBERS + OTHERS:
        files[f"fortran-{name}"] = np.asfortranarray(filled(name, (3, 4, 5)))
        files[f"big-{name}"] = filled(np.dtype(name).newbyteorder(">"), (3, 4))
        files[f"both-{name}"] = np.asfortranarray(filled(np.dtype(name).newbyteorder(">"), (7, 5)))
    for name, shape in {"vector": (5,), "row": (1, 5), "column": (5, 1), "empty": (0, 3), "large": (700, 1100)}.items():
        files[f"fortran-{name}"] = np.asfortranarray(filled("f4", shape))
    files["fortran-records"] = np.asfortranarray(filled(RECORD, (4, 3)))
    files["records"] = filled(RECORD, (4,))
    files["padded"] = filled(PADDED, (2, 2))
    files["names"] = filled(np.dtype([("é", "<f4"), ("it's", "<i2")]), (3,))
    files["bfloat16"] = filled(ml_dtypes.bfloat16, (2, 3))
    for name, array in files.items():
        np.save(directory / f"{name}.npy", array)
    np.savez(directory / "all.npz", filled("f4", (3,)), **{f"layer/{name}": array for name, array in files.items()})
    # Their headers are not read together.
    np.savez(directory / "large.npz", *(filled("f4", (1200, 1000 + number)) for number in range(3)))
    with open(directory / "streamed.npz", "wb") as file:
        np.savez(Stream(file), a=filled("f4", (5, 7)), b=np.asfortranarray(filled(">f8", (9, 4))))
    np.savez_compressed(directory / "compressed.npz", a=np.zeros(100))
    np.savez(directory / "mixed.npz", good=filled("i4", (3, 2)), objects=np.array([None, 1], object))
    with zipfile.ZipFile(directory / "mixed.npz", "a") as archive:
        archive.writestr("notes.txt", "text")
        archive.write(directory / "records.npy", "small.npy", zipfile.ZIP_DEFLATED)
    for version in [(1, 0), (2, 0), (3, 0)]:
        with open(directory / f"version-{version[0]}.npy", "wb") as file:
            np.lib.format.write_array(file, filled("f4", (3, 5)), version)
    with open(directory / "two.npy", "wb") as file:
        np.save(file, filled("f4", (2, 2)))
        np.save(file, filled("f8", (3,)))
    np.save(directory / "objects.npy", np.array([None, 1], object), allow_pickle=True)
    # A header of Python 2.
    head = b"{'descr': '<i4', 'fortran_order': False, 'shape': (2L, 3L), }".ljust(117) + b"\n"
    data = np.arange(6, dtype="<i4").tobytes()
    (directory / "python2.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data)


def little(array):
    """The same numbers in C order and little-endian order. Records keep their bytes."""
    if array.dtype.names is None and array.dtype.str.startswith(">"):
        array = array.byteswap().view(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(array.shape)


def same(found, expected, name):
    assert found.shape == expected.shape, (name, found.shape, expected.shape)
    assert found.tobytes() == expected.tobytes(), (name, found, expected)


def compare(array, mount, key, entry):
    """Compares all views of an array."""
    name = key.replace("/", "%2F")
    stored = little(array)
    assert (mount / "tensors" / name).read_bytes() == stored.tobytes(), (mount.name, array.dtype)
    assert (tuple(entry["shape"]), entry["nbytes"]) == (array.shape, array.nbytes), (name, entry)
    view = mount / "npy" / f"{name}.npy"
    # The header that weightfs writes is ASCII.
    if "é" not in str(array.dtype):
        for mode in [None, "r"] if array.size else [None]:
            found = np.load(view, mmap_mode=mode)
            assert found.dtype == stored.dtype, (name, found.dtype, stored.dtype)
            same(found, stored, name)
    else:
        assert not view.exists()
    is_number = array.dtype.names is None and array.dtype.str[1:] in ["b1", *NUMBERS]
    # Any part of a file can be read.
    for start, end in [(array.nbytes // 3 + 1, array.nbytes // 2 + 2)]:
        with open(mount / "tensors" / name, "rb") as file:
            file.seek(start)
            assert file.read(end - start) == stored.tobytes()[start:end], name
    floats = mount / "f32" / f"{name}.f32"
    if is_number and array.dtype.kind != "c":
        with np.errstate(all="ignore"):
            expected = array.astype("<f4")
        found = np.fromfile(floats, "<f4").reshape(array.shape)
        np.testing.assert_array_equal(found, expected, name)
        assert (mount / "stats" / f"{name}.json").read_text().startswith("{"), name
    else:
        assert not floats.exists(), name
    single = mount / "safetensors" / f"{name}.safetensors"
    assert single.exists() == is_number, name
    if is_number:
        [(stored_key, found)] = load_file(single).items()
        assert stored_key == key and found.dtype == stored.dtype, (name, stored_key, found.dtype)
        same(found, stored, name)
    return is_number


def check(directory, mount):
    count = 0
    for file in sorted(directory.glob("*.npy")):
        if file.stem == "objects":
            error = (mount / "objects.error.txt").read_text()
            assert "Python objects, which are stored as a pickle" in error, error
            continue
        model = mount / file.stem
        [entry] = json.loads((model / "index.json").read_text())["tensors"]
        compare(np.load(file), model, "arr_0", entry)
        count += 1
    for file in sorted(directory.glob("*.npz")):
        if file.stem == "compressed":
            error = (mount / "compressed.error.txt").read_text()
            assert "is compressed (method 8); only stored entries can be read in place" in error, error
            continue
        model, arrays = mount / file.stem, np.load(file)
        index = json.loads((model / "index.json").read_text())
        entries = {entry["name"]: entry for entry in index["tensors"]}
        skipped = {entry["name"] for entry in index.get("skipped", [])}
        assert skipped == ({"objects", "notes.txt", "small"} if file.stem == "mixed" else set()), skipped
        assert entries.keys() == set(arrays.files) - skipped, (file, entries.keys())
        for name in entries:
            compare(arrays[name], model, name, entries[name])
            count += 1
        if file.stem == "streamed":
            [export] = (model / "export").glob("*-whole.safetensors")
            found = load_file(export)
            for name in entries:
                same(found[name], little(arrays[name]), name)
    print(count)


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    {"write": write, "check": check}[command](*map(Path, paths))
