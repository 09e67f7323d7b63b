"""Where the bytes of a served file lie in a file of this machine, which is faster to read than a server."""

from __future__ import annotations

import os
from typing import Any, Dict, Tuple

DIRECT_MIN = 1 << 20
"""Size of the smallest reads for which a file is opened, in bytes."""


class Place:
    """Made of what the server says about a file (`?place=json`)."""

    def __init__(self, place: Dict[str, Any]) -> None:
        # Python may have another encoding for names of files.
        self._path: bytes = place["path"].encode()
        self._offset: int = place["offset"]
        self._begin: int = place["begin"]
        self._end: int = place["begin"] + place["length"]
        self._version = (place["device"], place["inode"], place["size"], place["mtime"], place["ctime"])

    def read_into(self, start: int, buffer: memoryview) -> bool:
        """Fills `buffer` with the bytes of the served file from `start` on. Returns False if some of them are not there,
        or if the file cannot be read or is not the version of the server: `buffer` then has any bytes. A network file
        system may not tell at once that a file was written to: the caller asks the server, too."""
        if start < self._begin or start + len(buffer) > self._end:
            return False
        try:
            # A FIFO may be there now, which would wait for a writer.
            file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            return False
        try:
            if _version(file) != self._version:
                return False
            filled = 0
            while filled < len(buffer):
                # Linux reads at most 2 GiB at once.
                count = os.preadv(file, [buffer[filled:]], self._offset + start - self._begin + filled)
                if count == 0:
                    return False
                filled += count
            return _version(file) == self._version
        except OSError:
            return False
        finally:
            os.close(file)


def _version(file: int) -> Tuple[int, ...]:
    status = os.fstat(file)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
