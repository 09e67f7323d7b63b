"""Prints for each file in a directory whether ggml's rules allow it and the gguf package reads it: NAME BOOL.

The package is not asked about other files: it loops over counts of 2^60 items that a file does not have.
"""

import math
import struct
import sys
from pathlib import Path

from gguf import GGUFReader
from gguf.constants import GGML_QUANT_SIZES

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def package(path):
    try:
        GGUFReader(path)
        return True
    except Exception:
        return False


class Broken(Exception):
    pass


def rule(holds):
    if not holds:
        raise Broken


def ggml(data):
    """The rules of gguf_init_from_reader in gguf.cpp, without a limit for the file that holds the data."""
    at = 0

    def take(size):
        nonlocal at
        rule(at + size <= len(data))
        at += size
        return data[at - size : at]

    def number(form):
        return struct.unpack("<" + form, take(struct.calcsize(form)))[0]

    def string():
        size = number("Q")
        rule(size <= 2**30)
        return take(size)

    rule(take(4) == b"GGUF")
    version = number("I")
    rule(version in (2, 3))
    tensors, keys = number("q"), number("q")
    rule(tensors >= 0 and keys >= 0)
    seen, alignment = set(), 32
    for _ in range(keys):
        key = string()
        rule(key and key not in seen)
        seen.add(key)
        kind = number("I")
        first = kind
        count = 1
        if kind == 9:
            kind, count = number("I"), number("Q")
            rule(count <= 2**30)
        rule(kind in SIZES or kind == 8)
        if kind == 8:
            for _ in range(count):
                string()
        else:
            value = take(SIZES[kind] * count)
        if key == b"general.alignment":
            rule(first == 4)
            alignment = struct.unpack("<I", value)[0]
            rule(alignment and alignment & (alignment - 1) == 0)
    names, end = set(), 0
    for _ in range(tensors):
        name = string()
        # A name of more than 63 bytes is a warning.
        rule(name not in names)
        names.add(name)
        rank = number("I")
        # So are more than four dimensions. The package has those of NumPy.
        rule(rank <= 64)
        dims = [number("q") for _ in range(rank)]
        rule(all(dim >= 0 for dim in dims))
        product = 1
        for dim in dims:
            rule(dim <= 1 or product <= (2**63 - 1) // dim)
            product *= dim
        kind = number("I")
        sizes = {int(type): size for type, size in GGML_QUANT_SIZES.items()} | {9: (32, 36), 42: (64, 18)}
        rule(kind in sizes)
        block, size = sizes[kind]
        rule((dims[0] if dims else 1) % block == 0)
        nbytes = math.prod(dims) // block * size
        rule(number("Q") == end)
        end += -(-nbytes // alignment) * alignment
        rule(end < 2**64)
    return True


for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        allowed = ggml(path.read_bytes()) and package(path)
    except Broken:
        allowed = False
    print(path.name, allowed)
