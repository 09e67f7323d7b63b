"""Prints how far each tensor has moved between two versions of a model: python dask_drift.py OLD NEW [SCHEDULER]

The drift is the norm of the difference divided by the norm of the old tensor: `nan` where a tensor has NaN or infinite
elements. Without the address of a scheduler, the threads of this process compute.
"""

import math
import sys

import dask
import weightfs


def squares(old, new):
    """Lazy sums of the squares of the differences, and of the old elements."""
    old, new = old.astype("float64"), new.astype("float64")
    return ((new - old) ** 2).sum(), (old**2).sum()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        from dask.distributed import Client

        client = Client(sys.argv[3])
    old, new = weightfs.dask(sys.argv[1]), weightfs.dask(sys.argv[2])
    pairs = {name: (array, new[name]) for name, array in old.items() if name in new}
    sums = {name: squares(a, b) for name, (a, b) in pairs.items() if a.shape == b.shape}
    drifts = []
    for name, (moved, before) in dask.compute(sums)[0].items():
        ratio = moved / before if before != 0 else math.inf if moved > 0 else 0.0
        drifts.append((-math.inf if math.isnan(ratio) else -ratio, f"{math.sqrt(ratio):.6f}  {name}"))
    print(*(line for _, line in sorted(drifts)), sep="\n")
    for name in sorted({*old, *new}.difference(sums)):
        print(f"only in one, or of another shape: {name}")
