"""Finds the program that was installed with this package."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Iterator

_NAME = "weightfs"


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
