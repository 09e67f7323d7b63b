"""The stored tensors of a model as arrays of zarr-python. Requires zarr-python and fsspec, at the first call only."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any, Dict, Mapping, Sequence, Union

from ._program import Error, Source, log_warnings, messages, program
from ._weights import _require

if TYPE_CHECKING:
    import zarr as _zarr


def zarr(
    source: Source,
    *,
    chunks: Union[str, int] = "64MiB",
    flat: bool = False,
    options: Sequence[str] = (),
    remote_options: Mapping[str, Any] = {},
) -> _zarr.Group:
    """Opens a model as a read-only group of zarr-python, whose chunks are byte ranges of the unmodified files.

    >>> root = weightfs.zarr("model.safetensors")
    >>> root["layers/0/weight"]
    <Array <FsspecStore(ReferenceFileSystem, )>/layers/0/weight shape=(4, 3) dtype=float32>

    The arrays have the shapes of the stored tensors: quantized weights are not dequantized. Their dtypes are those of
    the tensors too, except that BF16 and 8-bit floats, which Zarr does not have, are unsigned integers with the same
    bits and the attribute `weightfs_dtype`. Tensors that are not ranges of bytes are left out, and listed in the
    attribute `skipped` of the group. The program weightfs has ended when this returns: what is read later is read by
    fsspec, in any process that has the group or its pickle. It does not find out whether a file has changed.

    source: a file, the index or the directory of one model, or a URL, as for the command `weightfs`.
    chunks: the most bytes of a chunk, as a text such as "64MiB" or as a number.
    flat: puts all arrays in one group, under the names of the tensors, instead of a group for each module.
    options: more options of `weightfs references`, such as `["--only", "layers.*"]`.
    remote_options: options of the file system of fsspec that reads the files, such as credentials.

    Raises ImportError if zarr-python or fsspec is missing; `Error`, which is an OSError, with the message of the
    command if the model cannot be opened, or `chunks` is not a size; TypeError if `options` is a text. Reading an array raises
    the errors of fsspec.
    """
    advice = "weightfs.zarr needs zarr-python and fsspec: pip install weightfs[zarr]"
    _require("fsspec", advice)
    library = _require("zarr", advice)
    if isinstance(options, str):
        raise TypeError("options are a list of words")
    absolute = os.path.abspath(source) if os.path.exists(source) else os.fspath(source)
    flags = ["--flat"] if flat else []
    command = [program(), "references", f"--chunk={chunks}", *flags, *options, "--", absolute]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said = messages(done.stderr)
    if done.returncode != 0:
        raise Error("\n".join(said), done.returncode)
    log_warnings(said)
    references: Dict[str, Any] = json.loads(done.stdout)
    # zarr-python reads files on servers in its own event loop.
    remote = {"asynchronous": True, **remote_options} if "://" in absolute else dict(remote_options)
    storage = {"fo": references, "remote_options": remote}
    group: _zarr.Group = library.open_group("reference://", mode="r", storage_options=storage)
    return group
