"""Prints how far each tensor has moved between two versions of a model: python dask_drift.py OLD NEW [SCHEDULER]

The drift is the norm of the difference divided by the norm of the old tensor. Without the address of a scheduler, the
threads of this process compute. OLD and NEW must have the same paths on all machines.
"""

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
    common = [name for name in old if name in new and old[name].shape == new[name].shape]
    sums = dask.compute([squares(old[name], new[name]) for name in common])[0]
    drifts = {name: (moved / before) ** 0.5 for name, (moved, before) in zip(common, sums) if before > 0}
    for name, drift in sorted(drifts.items(), key=lambda item: -item[1]):
        print(f"{drift:.6f}  {name}")
    for name in sorted({*old, *new}.difference(common)):
        print(f"only in one, or of another shape: {name}")
