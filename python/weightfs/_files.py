"""The files of one model, read from a mount or through a server. Arrays require NumPy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, List, Optional, Protocol, Sequence, Tuple, Union

from ._mount import Mount, can_mount
from ._program import Source
from ._server import Server

if TYPE_CHECKING:
    import numpy

    from ._array import ServedArray

    Array = Union["numpy.ndarray[Any, Any]", ServedArray]


class Files(Protocol):
    """The files of a source. Paths are relative to the root of a mount."""

    mount: Optional[Mount]
    """The mount, if there is one."""

    def read(self, path: str) -> bytes:
        """Returns the bytes of a file."""

    def names(self, directory: str) -> List[str]:
        """Returns the names in a directory."""

    def npy(self, path: str) -> Array:
        """Returns the array of a `.npy` file."""

    def raw(self, path: str, dtype: Any, shape: Tuple[int, ...]) -> Array:
        """Returns the array whose elements, in C order, are all bytes of a file."""

    def close(self) -> None:
        """Ends the access. Arrays stay readable. The second call has no effect."""


def open_files(source: Source, *, mounted: Optional[bool], options: Sequence[str]) -> Files:
    """Opens a source by a mount, or without one; if `mounted` is None, by a mount where that is possible."""
    use_mount = can_mount() if mounted is None else mounted
    return MountedFiles(source, options) if use_mount else ServedFiles(Server(source, options=options))


class MountedFiles:
    """Files that this process has mounted. Arrays are memory maps."""

    mount: Optional[Mount]

    def __init__(self, source: Source, options: Sequence[str]) -> None:
        self.mount = self._mount = Mount(source, options=options)

    def read(self, path: str) -> bytes:
        try:
            return (self._mount.path / path).read_bytes()
        except OSError as error:
            # As without a mount.
            error.filename = path
            raise

    def names(self, directory: str) -> List[str]:
        return os.listdir(self._mount.path / directory)

    def npy(self, path: str) -> Array:
        import numpy

        array: Array = numpy.load(self._mount.path / path, mmap_mode="r")
        return array

    def raw(self, path: str, dtype: Any, shape: Tuple[int, ...]) -> Array:
        import numpy

        if 0 in shape:
            # An empty file cannot be mapped.
            return numpy.empty(shape, dtype)
        return numpy.memmap(self._mount.path / path, dtype, "r", shape=shape)

    def close(self) -> None:
        self._mount.close()


class ServedFiles:
    """Files that are read through a server. It ends when nothing uses it any more, such as an array."""

    mount: Optional[Mount] = None

    def __init__(self, server: Server) -> None:
        self._server: Optional[Server] = server

    @property
    def server(self) -> Server:
        if self._server is None:
            raise ValueError("the files are closed")
        return self._server

    def read(self, path: str) -> bytes:
        return self.server.read(path)

    def names(self, directory: str) -> List[str]:
        return [entry["name"] for entry in self.server.entries(directory)]

    def npy(self, path: str) -> Array:
        from ._array import open_npy

        return open_npy(self.server, path)

    def raw(self, path: str, dtype: Any, shape: Tuple[int, ...]) -> Array:
        from ._array import ServedArray

        return ServedArray(self.server, path, dtype, shape)

    def close(self) -> None:
        self._server = None
