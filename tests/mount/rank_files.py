"""A checkpoint as the processes of PyTorch save it with HuggingFaceStorageWriter(save_distributed=True).

    rank_files.py write DIRECTORY    DIRECTORY/saved has the files of the processes, and DIRECTORY/whole the same model
                                     as one file, with the tensors in the order in which they are shown
    rank_files.py sums DIRECTORY     a line with name, dtype, shape and SHA-256 for each tensor of the files in it,
                                     which NumPy joins
"""

import hashlib
import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

RANDOM = np.random.default_rng(11)
RANKS = 12
# The cuts along each dimension; each box between them belongs to one process, or to all if there are no cuts.
TENSORS = {
    "rows": (np.float32, (1000, 70), ([250, 500, 750], [])),
    "columns": (ml_dtypes.bfloat16, (700, 1000), ([], [251, 502, 753])),
    "grid": (np.float16, (300, 500), ([151], [250])),
    "stack": (np.float32, (2, 3, 90, 40), ([1], [], [45], [])),
    "middle": (np.int32, (5, 300, 7), ([], [100, 200], [])),
    "odd": (np.uint8, (211, 1003), ([20, 111], [1, 500, 999])),
    "replicated": (np.float64, (33,), ([],)),
    "scalar": (np.float32, (), ()),
    "without.rows": (np.int64, (0, 4), ([], [])),
}


def boxes(shape, cuts):
    """The parts of an array, as tuples of slices."""
    found = [()]
    for length, at in zip(shape, cuts):
        bounds = [0, *at, length]
        found = [(*before, slice(*ends)) for before in found for ends in zip(bounds, bounds[1:])]
    return found


def write(directory):
    (directory / "saved").mkdir()
    files = {}
    whole = {}
    for number, (name, (dtype, shape, cuts)) in enumerate(TENSORS.items()):
        tensor = np.asarray(RANDOM.integers(0, 120, shape)).astype(dtype)
        whole[name] = tensor
        parts = boxes(shape, cuts)
        for at, part in enumerate(parts):
            # A process saves one box of a tensor at most.
            for rank in range(RANKS) if len(parts) == 1 else [at]:
                tensors, offsets = files.setdefault((rank, number % 2), ({}, {}))
                tensors[name] = np.ascontiguousarray(tensor[part]).reshape(tensor[part].shape)
                offsets[name] = {"saved_offsets": [one.start for one in part]}
        if name == "replicated":
            # A process that has no rows of a tensor saves an empty box.
            tensors, offsets = files.setdefault((RANKS - 1, 0), ({}, {}))
            tensors["rows"] = np.zeros((0, 70), np.float32)
            offsets["rows"] = {"saved_offsets": [1000, 0]}
    for (rank, file), (tensors, offsets) in files.items():
        metadata = {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(offsets)}
        name = f"shard-{rank + 1:05d}-model-{file + 1:05d}-of-00002.safetensors"
        save_file(tensors, directory / "saved" / name, metadata)
    save_file(whole, directory / "whole.safetensors", {"format": "pt"})


def sums(directory):
    """Joins the boxes: each tensor is as large as the end of its last box."""
    parts = {}
    for file in sorted(directory.glob("shard-*.safetensors")):
        with safe_open(file, "numpy") as opened:
            saved = json.loads(opened.metadata()["DCP_SHARDING_INFO"])
            for name in opened.keys():
                parts.setdefault(name, []).append((saved[name]["saved_offsets"], opened.get_tensor(name)))
    for name, boxes in sorted(parts.items()):
        first = boxes[0][1]
        shape = [max(start[dim] + box.shape[dim] for start, box in boxes) for dim in range(first.ndim)]
        whole = np.zeros(shape, first.dtype)
        for start, box in boxes:
            whole[tuple(slice(at, at + size) for at, size in zip(start, box.shape))] = box
        print(name, shape, hashlib.sha256(whole.tobytes()).hexdigest(), sep="\t")


{"write": write, "sums": sums}[sys.argv[1]](Path(sys.argv[2]))
