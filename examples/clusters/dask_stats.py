"""Prints statistics of all tensors, counted by the workers of Dask: python dask_stats.py SOURCE [SCHEDULER]

Without the address of a scheduler, the threads of this process count. SOURCE must have the same path on all machines.
"""

import json
import sys

import dask
import dask.array
import weightfs


def statistics(array):
    """Lazy statistics of the finite elements, computed in float64."""
    values = array.astype("float64")
    finite = dask.array.where(dask.array.isfinite(values), values, float("nan"))
    return {
        "min": dask.array.nanmin(finite),
        "max": dask.array.nanmax(finite),
        "mean": dask.array.nanmean(finite),
        "std": dask.array.nanstd(finite),
        "zeros": (values == 0).sum(),
        "not_finite": (~dask.array.isfinite(values)).sum(),
    }


if __name__ == "__main__":
    if len(sys.argv) > 2:
        from dask.distributed import Client

        client = Client(sys.argv[2])
    arrays = weightfs.dask(sys.argv[1])
    counted = {name: statistics(array) for name, array in arrays.items() if array.size}
    for name, found in dask.compute(counted)[0].items():
        numbers = {key: None if value != value else value.item() for key, value in found.items()}
        print(json.dumps({"name": name, **numbers}))
