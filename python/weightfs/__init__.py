"""Model weights as files and as NumPy arrays, without loading or converting the model.

`weightfs` is a program that mounts model weights (safetensors, GGUF, a model on the Hugging Face Hub) as a read-only
file system. This package contains the program, and functions that run it.

`mount` gives the mount as a path:

>>> import weightfs
>>> with weightfs.mount("model.safetensors") as path:
...     sorted(file.name for file in (path / "tensors").iterdir())
['layers.0.bias', 'layers.0.weight']

`open` gives the tensors as NumPy arrays. Nothing is read until an array is used, and then only the pages that are used:

>>> weights = weightfs.open("model.safetensors")
>>> weights["layers.0.weight"][:2]
memmap([[0., 1., 2.],
        [3., 4., 5.]], dtype=float32)
>>> weights.close()

`dask` gives them as Dask arrays, for programs that use many machines. `zarr` gives the stored tensors as a group of
zarr-python, which reads the unmodified files without weightfs.

A source is what the command accepts: a file, the index or the directory of a sharded model, or a URL such as
`hf://org/model`. A mount needs `/dev/fuse`, and for users other than root the program `fusermount3` (Debian: package
`fuse3`). Where these are missing, as in most containers, `open` reads without a mount. `python -m weightfs` runs the
program.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ._dask import DaskArrays, dask
from ._mount import Mount, mount
from ._program import Error, program
from ._weights import TensorInfo, Weights, open
from ._zarr import zarr

__all__ = ["DaskArrays", "Error", "Mount", "TensorInfo", "Weights", "dask", "mount", "open", "program", "zarr"]

try:
    __version__ = version("weightfs")
except PackageNotFoundError:  # Imported from a directory without installing it.
    __version__ = "unknown"

# Messages and pickles name the public module.
for _public in (DaskArrays, Error, Mount, TensorInfo, Weights, dask, mount, open, zarr):
    _public.__module__ = __name__
