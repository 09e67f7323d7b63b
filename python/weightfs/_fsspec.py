"""The files of a mount as an fsspec file system, for the protocol `weightfs`.

>>> import fsspec
>>> files = fsspec.filesystem("weightfs", source="model.safetensors")
>>> files.ls("tensors", detail=False)
['tensors/layers.0.bias', 'tensors/layers.0.weight']

Paths are those in a mount, such as `npy/NAME.npy`; docs/views.md describes the files. Nothing is mounted, and of a
remote source, only what is read is fetched.
"""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple, Union

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem  # type: ignore[import-untyped]

from ._program import Error, Source, shown
from ._server import Server, no_version, open_version

_AT_ONCE = 8
"""Maximum number of ranges that `cat_ranges` reads at the same time."""

_LOCAL = ("file", "local")
"""The protocols of files on this machine in a chained URL."""


class WeightFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of a source, read-only, in the version that was opened first.

    source: what the command `weightfs` accepts: a file, an index, a directory, or a URL such as `hf://org/model`.
    options: more options of `weightfs serve`, such as `["--offline", "--views=tensors,npy"]`.
    version: opens only this version; others raise OSError (ESTALE). Pickles have the version of the original, so
        another process never reads other bytes. Pickling raises OSError (ENOTSUP) if the source has no version: for
        a directory of several models, and for a server that does not tell whether a file has changed.

    In a chained URL, the source comes last: `weightfs://npy/w.npy::s3://bucket/model`. fsspec then needs its own
    library for that protocol, but the program reads the source, and finds credentials by itself. `source` needs none.

    Raises FileNotFoundError and IsADirectoryError for paths; `weightfs.Error`, a subclass of OSError, with the message
    of the program for what cannot be opened or read; and OSError (EROFS) for what would write.
    """

    protocol = "weightfs"
    root_marker = ""

    def __init__(
        self,
        source: Optional[Source] = None,
        *,
        options: Sequence[str] = (),
        version: Optional[str] = None,
        fo: Optional[str] = None,
        target_protocol: Optional[str] = None,
        target_options: Optional[Dict[str, Any]] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if target_options:
            raise ValueError(f"weightfs does not use the options {target_options} of another file system")
        if source is None:
            if fo is None:
                raise ValueError("source is missing: a file, a directory or a URL with model weights")
            is_url = target_protocol not in (None, *_LOCAL) and "://" not in fo
            source = f"{target_protocol}://{fo}" if is_url else fo
        self._source = os.path.abspath(source) if os.path.exists(source) else os.fspath(source)
        self._options = list(options)
        self._pinned = version
        self._opened: Optional[Server] = None

    @property
    def version(self) -> Optional[str]:
        """What identifies the version of the source; None if a change could go unnoticed."""
        self._server()
        return self._pinned

    def _server(self) -> Server:
        """The server of this process and those that it forks. It is started when it is needed first."""
        if self._opened is None:
            server = open_version(self._source, self._options, self._pinned)
            self._pinned, self._opened = server.version(), server
        return self._opened

    def __reduce__(self) -> Tuple[Any, ...]:
        if self.version is None:
            raise no_version(self._source)
        return _unpickled, (type(self), self._source, self._options, self.version)

    def info(self, path: str, **kwargs: Any) -> Dict[str, Any]:
        """Returns `name`, `type` (`file` or `directory`) and `size` in bytes, which is 0 for a directory."""
        path = self._strip_protocol(path)
        if path:
            try:
                return {"name": path, "size": self._server().size(path), "type": "file"}
            except IsADirectoryError:
                pass
        return {"name": path, "size": 0, "type": "directory"}

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Union[List[Dict[str, Any]], List[str]]:
        """Returns the entries of a directory in the order of a mount, as `info` has them, or only their paths. A file
        has one entry: itself. Links, which only directories of several models have, are left out."""
        path = self._strip_protocol(path)
        try:
            entries = self._server().entries(path)
        except FileNotFoundError:
            found = [self.info(path)]
        else:
            prefix = f"{path}/" if path else ""
            found = [
                {"name": prefix + entry["name"], "size": entry.get("size", 0), "type": entry["type"]}
                for entry in entries
                if entry["type"] != "link"
            ]
        return found if detail else [entry["name"] for entry in found]

    def cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None, **kwargs: Any) -> bytes:
        """Returns the bytes of a file from `start` up to `end`; negative numbers count from its end."""
        path = self._strip_protocol(path)
        if (start is not None and start < 0) or (end is not None and end < 0):
            size = self._server().size(path)
            start, end = (None if at is None else at if at >= 0 else max(size + at, 0) for at in (start, end))
        return self._server().read(path, start or 0, end)

    def cat_ranges(
        self,
        paths: List[str],
        starts: Any,
        ends: Any,
        max_gap: Optional[int] = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> List[Union[bytes, Exception]]:
        """Returns the bytes of each path from its start up to its end, several at the same time."""
        starts, ends = (
            list(at) if isinstance(at, (list, tuple)) else [at] * len(paths) for at in (starts, ends)
        )
        if not len(paths) == len(starts) == len(ends):
            raise ValueError(f"{len(paths)} paths, {len(starts)} starts and {len(ends)} ends")

        def read(path: str, start: Optional[int], end: Optional[int]) -> Union[bytes, Exception]:
            try:
                return self.cat_file(path, start, end)
            except Exception as error:
                if on_error == "return":
                    return error
                raise

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            return list(threads.map(read, paths, starts, ends))

    def ukey(self, path: str) -> str:
        """Returns a text that is the same for the same bytes."""
        return f"{self.version} {self._strip_protocol(path)}"

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **kwargs: Any) -> WeightFile:
        if mode != "rb":
            self._read_only()
        return WeightFile(self, path, mode, block_size or "default", **kwargs)

    def _read_only(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), shown(self._source))

    mkdir = makedirs = rmdir = rm = rm_file = _rm = mv = cp_file = touch = pipe_file = put_file = _read_only


class WeightFile(AbstractBufferedFile):  # type: ignore[misc]
    """An open file. Reads are cached in blocks, as fsspec does."""

    fs: WeightFileSystem

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs.cat_file(self.path, start, end)


def _unpickled(kind: Any, source: str, options: List[str], version: str) -> WeightFileSystem:
    files: WeightFileSystem = kind(source, options=options, version=version)
    return files
