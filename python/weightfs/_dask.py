"""The tensors of a model as Dask arrays. Requires Dask, which brings NumPy, at the first call only."""

from __future__ import annotations

import fnmatch
import operator
import os
import threading
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from ._files import ServedFiles
from ._program import Error, Source, shown
from ._server import Server, no_version, open_version
from ._weights import _Index, _require

if TYPE_CHECKING:
    import numpy

_SERVERS = 32
"""Number of sources that a process keeps open for tasks."""


class DaskArrays(Mapping[str, Any]):
    """The tensors of a model: a mapping from names to Dask arrays. Made by `dask`."""

    def __init__(self, place: _Place, only: Optional[Sequence[str]], chunk: int, dtype: Any) -> None:
        self._place = place
        self._chunk = chunk
        self._dtype = dtype
        self._rows: Dict[str, _Rows] = {}
        index = _Index(ServedFiles(place.server()), place.source, False, place.options)
        self._others = index.others
        self._files = index.arrays
        if only is not None:
            unmatched = [one for one in only if not any(fnmatch.fnmatchcase(name, one) for name in index.arrays)]
            if unmatched:
                raise ValueError(f"{shown(place.source)}: no array has a name like {unmatched[0]!r}")
            self._files = {
                name: file
                for name, file in index.arrays.items()
                if any(fnmatch.fnmatchcase(name, one) for one in only)
            }

    def __getitem__(self, name: str) -> Any:
        import dask.array
        import dask.base
        import numpy

        if name not in self._files:
            raise KeyError(self._others.get(name, name))
        rows = self._rows.get(name)
        if rows is None:
            rows = self._rows[name] = _Rows(self._place, f"npy/{self._files[name]}", self._dtype)
        version = self._place.version or uuid.uuid4().hex
        place = (self._place.source, self._place.options, version)
        token = dask.base.tokenize(*place, name, self._chunk, rows.dtype)
        # Dask gives this function no types.
        from_array: Any = dask.array.from_array
        return from_array(
            rows,
            chunks=_chunk_shape(rows.shape, rows.stored.itemsize, self._chunk),
            name=f"weightfs-{token}",
            asarray=True,
            inline_array=True,
            meta=numpy.empty((0,) * len(rows.shape), rows.dtype),
        )

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    # The result of comparing two arrays has no truth value.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<weightfs.DaskArrays of {len(self)} tensors of {shown(self._place.source)!r}>"


def dask(
    source: Source,
    *,
    only: Union[str, Sequence[str], None] = None,
    chunks: Union[str, int] = "64MiB",
    dtype: Any = None,
    options: Sequence[str] = (),
) -> DaskArrays:
    """Opens a model as a mapping from names of tensors to Dask arrays, for programs that use many machines.

    >>> arrays = weightfs.dask("model.safetensors")
    >>> arrays["layers.0.weight"]
    dask.array<weightfs, shape=(4, 3), dtype=float32, chunksize=(4, 3), chunktype=numpy.ndarray>
    >>> float(arrays["layers.0.weight"].sum())
    66.0

    The names, the shapes and the dtypes are those of `weightfs.open`: quantized weights are dequantized, and BF16
    becomes float32. Nothing is read until Dask computes. A task then reads the rows of its chunk and nothing else,
    through a program that serves its process, and that all tasks of the process share that read this source. Each
    process opens the source by its location, so a file must have the same path on all machines.

    All tasks read the version of the source that this call has opened. Where the source is another version, they
    raise OSError (ESTALE). A source without a version (a server that does not tell whether a file has changed) can be
    used with the threads of this process only: its arrays cannot be pickled.

    source: a file, the index or the directory of one model, or a URL, as for the command `weightfs`.
    only: a pattern of names, or several: `*` matches any characters, dots and slashes too, `?` matches one, and
        `[...]` one of several. None for all.
    chunks: the size of a chunk as a text such as "64MiB" or in bytes, before `dtype` is applied. A chunk has as many
        rows (indices of the first axis) as fit, and at least one; a row that is larger is divided along the next axes.
    dtype: converts the elements of each chunk when they were read; None to keep the dtype.
    options: more options of `weightfs serve`, such as `["--offline", "--stored"]`.

    Raises ImportError if Dask is missing; `Error`, which is an OSError, with the message of the command if the model
    cannot be opened, or if the source is a directory of several models; ValueError for a size that is none, and for a
    pattern that no name matches; TypeError if `options` is a text. `arrays[name]` raises KeyError as `weightfs.open`
    does. Tasks raise `Error` if the bytes cannot be read, or have been changed.
    """
    _require("dask.array", "weightfs.dask needs Dask: pip install weightfs[dask]")
    import numpy

    size = _chunk_bytes(chunks)
    if isinstance(options, str):
        raise TypeError("options are a list of words")
    absolute = os.path.abspath(source) if os.path.exists(source) else os.fspath(source)
    place = _Place(absolute, options, Server(absolute, options=list(options)))
    patterns = [only] if isinstance(only, str) else None if only is None else list(only)
    return DaskArrays(place, patterns, size, None if dtype is None else numpy.dtype(dtype))


class _Place:
    """A version of a source. Pickles have no server: the process that needs one opens that version."""

    def __init__(
        self, source: str, options: Sequence[str], server: Optional[Server], version: Optional[str] = None
    ) -> None:
        self.source = source
        self.options = tuple(options)
        self.version = version if server is None else server.version()
        self._own = server

    def server(self) -> Server:
        """A server that runs, if the version is known. Without it, another server could have other bytes."""
        if self._own is not None and (self.version is None or not self._own.has_ended()):
            return self._own
        return _shared_server(self.source, self.options, self.version)

    def __reduce__(self) -> Tuple[Any, ...]:
        if self.version is None:
            raise no_version(self.source)
        return _Place, (self.source, self.options, None, self.version)


class _SharedServer:
    """The server of all tasks of a process that read a version of a source, once it was opened."""

    def __init__(self) -> None:
        self.opening = threading.Lock()
        """Held while the source is opened, so that the threads of a process do not open it twice."""
        self.server: Optional[Server] = None


class _SharedServers:
    """The servers of a process. Those that were used last are kept."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kept: OrderedDict[Tuple[str, Tuple[str, ...], Optional[str]], _SharedServer] = OrderedDict()


_shared = _SharedServers()


def _forget_servers() -> None:
    """A forked process opens its own servers. Other threads may have held the locks of its parent."""
    global _shared
    _shared = _SharedServers()


os.register_at_fork(after_in_child=_forget_servers)


def _shared_server(source: str, options: Tuple[str, ...], version: Optional[str]) -> Server:
    key = (source, options, version)
    dropped: Optional[_SharedServer] = None
    with _shared.lock:
        found = _shared.kept.setdefault(key, _SharedServer())
        _shared.kept.move_to_end(key)
        if len(_shared.kept) > _SERVERS:
            # It ends when no task uses it, and after the lock was released, because that takes a while.
            _, dropped = _shared.kept.popitem(last=False)
    del dropped
    with found.opening:
        if found.server is None or found.server.has_ended():
            found.server = open_version(source, options, version)
        return found.server


class _Rows:
    """The array of a `.npy` file, from which tasks read rows."""

    def __init__(self, place: _Place, path: str, dtype: Optional[numpy.dtype[Any]]) -> None:
        from ._array import open_npy

        array = open_npy(place.server(), path)
        self._place, self._path, self._begin = place, path, array._begin
        self.shape, self.stored = array.shape, array.dtype
        self.dtype = dtype or array.dtype
        self.ndim = array.ndim

    def __getitem__(self, key: Any) -> Any:
        import numpy

        from ._array import ServedArray

        def read(server: Server) -> Any:
            return ServedArray(server, self._path, self.stored, self.shape, self._begin)[key]

        server = self._place.server()
        try:
            found = read(server)
        except Error:
            # The server may have been killed, as when memory runs out. Another one has the same version.
            if self._place.version is None or not server.has_ended():
                raise
            found = read(self._place.server())
        block = numpy.asarray(found).astype(self.dtype, copy=False)
        # Nobody else has these elements.
        block.flags.writeable = True
        return block


def _chunk_bytes(chunks: Union[str, int]) -> int:
    import dask.utils

    try:
        size = dask.utils.parse_bytes(chunks) if isinstance(chunks, str) else operator.index(chunks)
    except (TypeError, ValueError):
        size = 0
    # An empty text is one byte for Dask.
    if size < 1 or chunks == "" or isinstance(chunks, bool):
        raise ValueError(f"chunks are {chunks!r}, and must be a size such as '64MiB' or a number of bytes")
    return size


def _chunk_shape(shape: Tuple[int, ...], itemsize: int, most: int) -> Tuple[int, ...]:
    """The shape of chunks of at most `most` bytes, each of which is one run of elements in C order."""
    if 0 in shape:
        return tuple(max(length, 1) for length in shape)
    row = itemsize
    for length in shape:
        row *= length
    chunk: List[int] = []
    for at, length in enumerate(shape):
        row //= length
        if row <= most:
            return (*chunk, min(length, most // row), *shape[at + 1 :])
        chunk.append(1)
    return tuple(chunk)
