"""The program that was installed with this package, and what it says."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Iterator, List, Union

Source = Union[str, "os.PathLike[str]"]

_NAME = "weightfs"

_log = logging.getLogger(_NAME)


class Error(OSError):
    """The program failed. The text is its message; `status` is its exit status, or 1 while it runs."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def program() -> str:
    """Returns the path of the program: the one that was installed with this package, otherwise the one in `PATH`.

    Raises FileNotFoundError if there is none.
    """
    for directory in _directories():
        path = os.path.join(directory, _NAME)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    path = shutil.which(_NAME) or ""
    if not path:
        raise FileNotFoundError("the program weightfs is missing; reinstall this package, or add it to PATH")
    return path


def _directories() -> Iterator[str]:
    """The directories where pip may have installed the program."""
    yield sysconfig.get_path("scripts")
    if sys.version_info >= (3, 10):
        user = sysconfig.get_preferred_scheme("user")
    else:
        user = "posix_user"
    yield sysconfig.get_path("scripts", scheme=user)
    packages = Path(__file__).resolve().parent.parent
    # pip install --target DIR: DIR/weightfs and DIR/bin.
    yield str(packages / "bin")
    # pip install --prefix DIR: DIR/lib/pythonX.Y/site-packages/weightfs and DIR/bin.
    yield str(packages.parent.parent.parent / "bin")


def shown(source: Source) -> str:
    """A source for messages: a URL without its user and its query, which may be secret."""
    text = os.fspath(source)
    if "://" not in text:
        return text
    scheme, _, rest = text.partition("://")
    server, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{server.rpartition('@')[2]}{slash}{path}"


def messages(said: bytes) -> List[str]:
    """The messages that the program has written to standard error."""
    prefix = f"{_NAME}: "
    lines = os.fsdecode(said).splitlines()
    return [line[len(prefix) :] if line.startswith(prefix) else line for line in lines]


def log_warnings(lines: List[str]) -> None:
    for line in lines:
        _log.warning("%s", line)
