"""Compares what the official Python package reads in SOURCE with a mount of it, or writes it as ordinary files.

    official.py check SOURCE MOUNT      prints how many tensors and metadata keys were compared
    official.py extract SOURCE DIR      writes header.json, tensors/, tree/ (hard links) and metadata/ into DIR
"""

import hashlib
import json
import mmap
import os
import sys
from os.path import basename, dirname, join, relpath

import numpy
from safetensors import deserialize, safe_open

NUMPY = dict(pair.split(":") for pair in """BOOL:? U8:u1 I8:i1 I16:<i2 U16:<u2 F16:<f2 I32:<i4 U32:<u4 F32:<f4
             C64:<c8 F64:<f8 I64:<i8 U64:<u8""".split())


def encode(name):
    """The file name of `name`, written from the documentation and not from the code under test."""
    if name in ("", ".", ".."):
        return name.replace(".", "%2E") or "%"
    units = [f"%{ord(char):02X}" if char in "/%\x7f" or char < " " else char for char in name]
    if sum(len(unit.encode()) for unit in units) <= 240:
        return "".join(units)
    kept = ""
    for unit in units:
        if len((kept + unit).encode()) > 240 - 18:
            break
        kept += unit
    return f"{kept}%~{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Official:
    """A file as the official package reads it, and the paths that its parts must have in a mount."""

    def __init__(self, source):
        self.path, self.stat, self.bytes = source, os.stat(source), read(source)
        header = self.bytes[8 : 8 + int.from_bytes(self.bytes[:8], "little")]
        self.tensors = dict(deserialize(self.bytes))
        with safe_open(source, "numpy") as file:
            self.metadata = file.metadata() or {}
            self.order = file.offset_keys()
            known = [name for name, info in self.tensors.items() if info["dtype"] in NUMPY]
            self.values = {name: file.get_tensor(name) for name in known}
        self.files = {"header.json": header}
        self.files |= {f"metadata/{encode(key)}": value.encode() for key, value in self.metadata.items()}
        self.paths = {name: (f"tensors/{encode(name)}", self.tree(name)) for name in self.order}

    def tree(self, name):
        beside = any(other.startswith(name + ".") for other in self.tensors)
        return "/".join(["tree", *map(encode, name.split("."))]) + "%" * beside


def check(source, mount):
    official = Official(source)
    listed = {relpath(join(at, file), mount) for at, _, files in os.walk(mount) for file in files}
    paths = [*official.files, *(path for pair in official.paths.values() for path in pair)]
    ours = {path for path in listed if dirname(path).split("/")[0] in ("tensors", "tree", "metadata")} | {"header.json"}
    assert ours == set(paths) and len(ours) == len(paths), ours ^ set(paths)
    for path, expected in official.files.items():
        assert read(join(mount, path)) == expected, path
    assert json.loads(read(join(mount, "metadata.json"))) == official.metadata
    index = json.loads(read(join(mount, "index.json")))
    lines = index.pop("tensors")
    assert index == {"source": source, "format": "safetensors", "skipped": []}, index
    assert [line["name"] for line in lines] == official.order
    for line in lines:
        check_tensor(official, mount, line)
    print(len(lines), len(official.metadata))


def check_tensor(official, mount, line):
    name = line["name"]
    info, (path, tree) = official.tensors[name], official.paths[name]
    expected, shape, offset = bytes(info["data"]), info["shape"], line["offset"]
    facts = {"name": name, "dtype": info["dtype"], "shape": shape, "nbytes": len(expected), "offset": offset}
    facts["shard"] = basename(official.path)
    assert line == facts | {"file": path}, line
    assert official.bytes[offset : offset + len(expected)] == expected, line
    file = join(mount, path)
    attributes = {key: os.getxattr(file, key).decode() for key in os.listxattr(file)}
    facts["shape"] = json.dumps(shape)
    assert attributes == {f"user.weightfs.{key}": str(value) for key, value in facts.items()}, attributes
    stat, theirs = os.stat(file), official.stat
    assert stat.st_size == len(expected) and stat.st_blocks == (len(expected) + 511) // 512, (path, stat)
    assert stat.st_nlink == 2 and os.path.samestat(stat, os.stat(join(mount, tree))), (path, stat)
    expected_stat = (theirs.st_mode & 0o444, theirs.st_uid, theirs.st_gid, theirs.st_mtime_ns)
    assert (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid, stat.st_mtime_ns) == expected_stat, (path, stat)
    # The map is read first, and its second half before the first, so that page faults fetch the bytes.
    if expected:
        half = len(expected) // 2
        with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert mapped[half:] == expected[half:] and mapped[:half] == expected[:half], path
    assert read(file) == expected, path
    if expected and name in official.values:
        array = numpy.memmap(file, NUMPY[info["dtype"]], "r", shape=tuple(shape))
        value = official.values[name]
        assert (array.dtype, array.shape, array.tobytes()) == (value.dtype, value.shape, value.tobytes()), path


def extract(source, target):
    official = Official(source)
    tensors = {path: bytes(official.tensors[name]["data"]) for name, (path, _) in official.paths.items()}
    os.umask(0o022)
    for path, content in (official.files | tensors).items():
        os.makedirs(dirname(join(target, path)), exist_ok=True)
        with open(join(target, path), "wb") as file:
            file.write(content)
    for path, tree in official.paths.values():
        os.makedirs(dirname(join(target, tree)), exist_ok=True)
        os.link(join(target, path), join(target, tree))
    for directory in ("tensors", "tree", "metadata"):
        os.makedirs(join(target, directory), exist_ok=True)
    stat, perm = official.stat, official.stat.st_mode & 0o444
    for at, _, files in os.walk(target, topdown=False):
        for path, mode in [*((join(at, file), perm) for file in files), (at, perm | perm >> 2)]:
            os.chown(path, stat.st_uid, stat.st_gid)
            os.chmod(path, mode)
            os.utime(path, ns=(stat.st_mtime_ns, stat.st_mtime_ns))


if __name__ == "__main__":
    {"check": check, "extract": extract}[sys.argv[1]](*sys.argv[2:])
