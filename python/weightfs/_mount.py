"""Mounts and unmounts models by running the program."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import tempfile
import weakref
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Optional, Sequence, Type

from ._program import Error, Source, log_warnings, messages, program

_FUSE = os.makedev(10, 229)
"""The device number of /dev/fuse."""

_CAP_SYS_ADMIN = 21
"""The number of this capability (include/uapi/linux/capability.h)."""


class Mount:
    """A mounted model: a context manager that gives the path, and unmounts at the end. Made by `mount`."""

    path: Path
    """The mount point."""

    def __init__(
        self, source: Source, mountpoint: Optional[Source] = None, *, options: Sequence[str] = ()
    ) -> None:
        if mountpoint is not None and not os.fspath(mountpoint):
            raise ValueError("an empty path as the mount point")
        # The daemon unmounts when the last process has closed `end`, even if this process is killed.
        watched, end = (one.detach() for one in socket.socketpair())
        made = None
        try:
            if mountpoint is None:
                made = tempfile.mkdtemp(prefix="weightfs-")
            self.path = Path(os.path.abspath(made or os.fspath(mountpoint or "")))
            _run(
                "mount",
                f"--while-open={watched}",
                *(["--rmdir"] if made else []),
                *options,
                "--",
                os.fspath(source),
                str(self.path),
                descriptors=[watched],
            )
        except BaseException:
            os.close(end)
            _remove(made)
            raise
        finally:
            os.close(watched)
        device = os.stat(self.path).st_dev
        self._end = weakref.finalize(self, _unmount, str(self.path), device, made, end, os.getpid())

    def close(self) -> None:
        """Unmounts. Files and arrays that are still open stay readable. The second call has no effect."""
        self._end()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a mount cannot be pickled; pass its path, and close the mount when nobody uses it any more")

    def __repr__(self) -> str:
        return f"<weightfs.Mount {str(self.path)!r}{'' if self._end.alive else ', closed'}>"


def mount(source: Source, mountpoint: Optional[Source] = None, *, options: Sequence[str] = ()) -> Mount:
    """Mounts a model, and returns a context manager that gives the path of the mount.

    >>> with weightfs.mount("model.safetensors") as path:
    ...     (path / "stats/layers.0.bias.json").stat().st_size > 0
    True
    >>> path.exists()
    False

    The model is unmounted at the end of the block, also after an exception, and when this process ends, even if it is
    killed. A forked process that still runs keeps the mount of a killed parent. Without `with`, call `close`; a mount
    is also closed when the object is deleted. Files that are open at that time stay readable until they are closed.

    source: a file, an index, a directory or a URL, as for the command `weightfs`.
    mountpoint: an empty directory; by default a new one, which is removed at the end.
    options: more options of `weightfs mount`, such as `["--lenient", "--views=tensors,npy"]`.

    Raises `Error` with the message of the command if the model cannot be mounted:

    >>> weightfs.mount("absent.safetensors")
    Traceback (most recent call last):
        ...
    weightfs.Error: absent.safetensors: No such file or directory

    Warnings of the command go to the logger `weightfs`.
    """
    return Mount(source, mountpoint, options=options)


def can_mount() -> bool:
    """Whether this process can mount: it can open /dev/fuse, and it is root with CAP_SYS_ADMIN, or can get that
    capability by fusermount3, a setuid program."""
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        is_fuse = os.fstat(device).st_rdev == _FUSE
        os.close(device)
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    if not is_fuse:
        return False
    status = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if os.geteuid() == 0 and int(status["CapEff"], 16) >> _CAP_SYS_ADMIN & 1:
        return True
    is_allowed = int(status["CapBnd"], 16) >> _CAP_SYS_ADMIN & 1 and status.get("NoNewPrivs", "0") == "0"
    return bool(is_allowed) and shutil.which("fusermount3") is not None


def _run(*arguments: str, descriptors: Sequence[int] = ()) -> None:
    """Runs the program. Raises `Error` if it fails, and logs its warnings."""
    done = subprocess.run(
        [program(), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=descriptors,
    )
    lines = messages(done.stderr)
    if done.returncode != 0:
        raise Error("\n".join(lines) or f"exit status {done.returncode}", done.returncode)
    log_warnings(lines)


def _unmount(path: str, device: int, made: Optional[str], end: int, process: int) -> None:
    """Unmounts, and then closes `end`. Does nothing in a forked process, because the mount belongs to its parent."""
    if os.getpid() != process:
        return
    try:
        if _is_served(end) and _device(path) in (device, None):
            _run("umount", "--lazy", "--", path)
    except Error:
        # The mount is gone if somebody else has unmounted it.
        if os.path.ismount(path):
            raise
    finally:
        os.close(end)
        _remove(made)


def _is_served(end: int) -> bool:
    """Whether the daemon still runs. After somebody else has unmounted, another mount may have the same device number,
    but not before the daemon has ended."""
    poll = select.poll()
    poll.register(end, 0)
    return not poll.poll(0)


def _device(path: str) -> Optional[int]:
    """The device number of what is at `path`; None if it cannot be read, for instance because the daemon was killed."""
    try:
        return os.stat(path).st_dev
    except OSError:
        return None


def _remove(made: Optional[str]) -> None:
    """Removes a directory, unless the daemon has already removed it."""
    if made:
        try:
            os.rmdir(made)
        except OSError:
            pass
