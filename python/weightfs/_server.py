"""Reads the files of a mount without mounting, through a program `weightfs serve` that serves this process alone.

The two share a socket. For each connection, this process makes a pair of connected sockets, and sends one of them to
the server. So nobody else can connect, nothing is created in the file system, and the server ends when the last
process that has the shared socket ends, even if it is killed.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import select
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from typing import IO, Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple, TypeVar
from urllib.parse import quote

from ._place import DIRECT_MIN, Place
from ._program import Error, Source, log_warnings, messages, program, shown

_Received = TypeVar("_Received")

_RECEIVED = (200, 206, 416)
"""A whole file, a part, and a part that begins at the end of the file or after it."""

_ERRNOS = {303: errno.EISDIR, 404: errno.ENOENT}
"""Responses for a directory without the slash at its end, and for what does not exist."""

_REASONS = {410: "the source has changed", 503: "there is too little memory"}
"""Reasons for responses that the server does not explain in its messages."""

_END = 15
"""Time limit for the end of the server, and for tries to connect, in seconds. At its end, the server lets running
transfers end for 10 seconds."""

_RETRY = 0.1
"""Time between two tries to connect, in seconds."""

_CONNECTIONS = 64
"""Maximum number of connections of a process. The server has at most 256, and forked processes share it."""


class Server:
    """Serves the files of one source to this process. Made with a source and options of `weightfs serve`.

    Paths are those in a mount, such as `npy/NAME.npy`. Raises `Error` with the message of the command if the source
    cannot be opened. All methods raise FileNotFoundError for a path that does not exist, IsADirectoryError for a
    directory that is read as a file, and `Error` with the message of the server for what cannot be read.

    Threads and forked processes can use it at the same time. It ends with the process that has made it.
    """

    def __init__(self, source: Source, *, options: Sequence[str] = ()) -> None:
        ours, theirs = _socket_pair(socket.SOCK_SEQPACKET)
        self._shared = ours
        self._log = _unnamed_file()
        try:
            self._process = subprocess.Popen(
                [program(), "serve", f"--clients={theirs.fileno()}", *options, "--", os.fspath(source)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                # Ctrl-C in a terminal is for this process only.
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            self._log.close()
            raise
        finally:
            theirs.close()
        self._is_open = False
        self._places: Dict[str, Optional[Place]] = {}
        # The connections of each process. It forgets those of others when it uses its own.
        self._connections: Dict[int, _Connections] = {}
        self._maker = os.getpid()
        self._end = weakref.finalize(self, _stop, self._process, ours, self._log, self._connections, self._maker)
        try:
            # The response arrives when the model is open.
            self.entries("")
            self._is_open = True
        except BaseException:
            self.close()
            raise
        log_warnings(messages(self._said(0)))

    def read(self, path: str, start: int = 0, end: Optional[int] = None) -> bytes:
        """Returns the bytes of a file from `start` up to `end`, or up to its end if that comes first."""
        if end is not None and end <= start:
            return b""
        last = "" if end is None else end - 1
        return self._get(path, "", {} if last == "" and start == 0 else {"Range": f"bytes={start}-{last}"}, _body)

    def read_into(self, path: str, start: int, buffer: memoryview) -> None:
        """Fills `buffer`, whose elements are bytes, with the bytes of a file from `start` on. Many of them are read from
        the file of this machine that has them, if there is one: that is faster, and they are of the same version."""
        place = self._place(path) if len(buffer) >= DIRECT_MIN else None
        if place is not None and place.read_into(start, buffer):
            # Raises an error if the file is no longer the version of the server.
            self.read(path, start, start + 1)
            return

        def receive(response: http.client.HTTPResponse) -> None:
            filled = 0
            while filled < len(buffer):
                count = response.readinto(buffer[filled:]) if response.status == 206 else 0
                if count == 0:
                    raise http.client.IncompleteRead(b"", len(buffer) - filled)
                filled += count
            # The end of the body, after which the connection can be used again.
            response.read()

        if len(buffer) > 0:
            self._get(path, "", {"Range": f"bytes={start}-{start + len(buffer) - 1}"}, receive)

    def _place(self, path: str) -> Optional[Place]:
        if path not in self._places:
            place: Optional[Dict[str, Any]] = json.loads(self._get(path, "?place=json", {}, _body))
            self._places[path] = None if place is None else Place(place)
        return self._places[path]

    def entries(self, path: str) -> List[Dict[str, Any]]:
        """Returns the entries of a directory, in the order of a mount. Each has `name` and `type` (`file`, `directory`
        or `link`). A file has `size`, in bytes, unless it cannot be opened now."""
        found: List[Dict[str, Any]] = json.loads(self._get(f"{path}/" if path else "", "?entries=json", {}, _body))
        return found

    def size(self, path: str) -> int:
        """Returns the size of a file in bytes."""

        def receive(response: http.client.HTTPResponse) -> int:
            response.read()
            # `bytes 0-0/SIZE`, or `bytes */0` for an empty file.
            return int((response.getheader("Content-Range") or "/").rpartition("/")[2])

        return self._get(path, "", {"Range": "bytes=0-0"}, receive)

    def version(self) -> Optional[str]:
        """Returns what identifies the version of the source; None if a change could go unnoticed."""

        def receive(response: http.client.HTTPResponse) -> Optional[str]:
            response.read()
            return response.getheader("ETag")

        return self._get("", "?entries=json", {}, receive)

    def close(self) -> None:
        """Ends the server. The second call has no effect."""
        self._end()

    def _get(
        self,
        path: str,
        query: str,
        headers: Dict[str, str],
        receive: Callable[[http.client.HTTPResponse], _Received],
    ) -> _Received:
        """Sends a request, again if the server has closed the connection without an answer, and receives the response.
        Waits until a connection is free."""
        if not self._end.alive:
            raise ValueError("the server is closed")
        # All messages until the model is open belong to its error.
        begin = os.fstat(self._log.fileno()).st_size if self._is_open else 0
        url = f"/{quote(os.fsencode(path))}{query}"
        connections = self._own_connections()
        with connections.free:
            deadline: Optional[float] = None
            while True:
                try:
                    connection, is_new = connections.idle.pop(), False
                except IndexError:
                    connection, is_new = _Connection(self._shared), True
                try:
                    connection.request("GET", url, headers=headers)
                    response = connection.getresponse()
                    if response.status in _RECEIVED:
                        received = receive(response)
                    else:
                        response.read()
                except ConnectionError:
                    connection.close()
                    if is_new:
                        deadline = deadline or time.monotonic() + _END
                        self._fail_without_answer(path, begin, deadline)
                except http.client.HTTPException:
                    # The server has found an error in the middle of the file.
                    connection.close()
                    self._fail(path, begin, 0)
                except BaseException:
                    connection.close()
                    raise
                else:
                    connections.idle.append(connection)
                    break
        if response.status in _ERRNOS:
            number = _ERRNOS[response.status]
            raise OSError(number, os.strerror(number), path.rstrip("/"))
        if response.status not in _RECEIVED:
            self._fail(path, begin, response.status)
        return received

    def _own_connections(self) -> _Connections:
        """The connections of this process. A forked process does not share those of its parent."""
        own = os.getpid()
        connections = self._connections.get(own)
        if connections is None:
            # Other threads may do the same at the same time.
            connections = self._connections.setdefault(own, _Connections())
            for user in list(self._connections):
                others = self._connections.pop(user, None) if user != own else None
                if others is not None:
                    others.close_idle()
        return connections

    def _said(self, begin: int) -> bytes:
        """What the server has logged from a position on."""
        log = self._log.fileno()
        return os.pread(log, max(os.fstat(log).st_size - begin, 0), begin)

    def _fail(self, path: str, begin: int, status: int) -> NoReturn:
        """Raises the error that the server has logged for a file since `begin`."""
        lines = self._said_of(path, begin)
        raise Error(lines[-1] if lines else f"{path}: {_REASONS.get(status, 'cannot be read')}", 1) from None

    def _said_of(self, path: str, begin: int) -> List[str]:
        """What the server has logged for a file since `begin`."""
        return [line for line in messages(self._said(begin)) if line.startswith(f"{path}: ")]

    def _fail_without_answer(self, path: str, begin: int, deadline: float) -> None:
        """Raises an error if the server has ended, or has logged one for the file since `begin`. Otherwise waits for
        the next try, or raises an error after the deadline."""
        if self.has_ended():
            # Only its parent can wait for the process.
            try:
                status = self._process.wait(_END) if os.getpid() == self._maker else None
            except subprocess.TimeoutExpired:
                raise Error("the server does not answer", 1) from None
            said = "\n".join(messages(self._said(begin)))
            reason = "" if status is None else f": exit status {status}"
            raise Error(said or f"the server has ended{reason}", 1 if status is None else status) from None
        if self._said_of(path, begin):
            self._fail(path, begin, 0)
        if time.monotonic() > deadline:
            said = "\n".join(messages(self._said(begin)))
            raise Error(said or "the server does not answer", 1) from None
        time.sleep(_RETRY)

    def has_ended(self) -> bool:
        """Whether the server has closed the shared socket."""
        poll = select.poll()
        poll.register(self._shared, 0)
        return len(poll.poll(0)) > 0


def open_version(source: Source, options: Sequence[str], version: Optional[str]) -> Server:
    """Opens a source. Raises OSError (ESTALE) if it is not the version that is asked for; None asks for any."""
    server = Server(source, options=options)
    if version is not None and server.version() != version:
        server.close()
        raise OSError(errno.ESTALE, "the source is not the version that was opened first", shown(source))
    return server


def no_version(source: Source) -> OSError:
    """The error for what would let other processes open a source without a version."""
    reason = "no version of the source is known, so another process could read other bytes"
    return OSError(errno.ENOTSUP, reason, shown(source))


class _Connections:
    """The connections of one process."""

    def __init__(self) -> None:
        self.free = threading.Semaphore(_CONNECTIONS)
        """Counts the connections that can be used now or made."""
        self.idle: List[_Connection] = []
        """Connections that wait for the next request."""

    def close_idle(self) -> None:
        while self.idle:
            self.idle.pop().close()


class _Connection(http.client.HTTPConnection):
    """A connection to the server at the other end of `shared`."""

    def __init__(self, shared: socket.socket) -> None:
        super().__init__("localhost")
        self._shared = shared

    def connect(self) -> None:
        self.sock, other = _socket_pair(socket.SOCK_STREAM)
        with other:
            socket.send_fds(self._shared, [b"."], [other.fileno()])


def _socket_pair(kind: socket.SocketKind) -> Tuple[socket.socket, socket.socket]:
    """Two connected sockets without time limits: `socket.setdefaulttimeout` is for other sockets."""
    pair = socket.socketpair(socket.AF_UNIX, kind)
    for one in pair:
        one.settimeout(None)
    return pair


def _unnamed_file() -> IO[bytes]:
    """A file for the messages of the server, in memory where Python can: a container may have no writable directory."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("weightfs-messages"), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def _body(response: http.client.HTTPResponse) -> bytes:
    body = response.read()
    return b"" if response.status == 416 else body


def _stop(
    process: subprocess.Popen[bytes],
    shared: socket.socket,
    log: IO[bytes],
    connections: Dict[int, _Connections],
    maker: int,
) -> None:
    """Ends the server, or in a forked process, only closes its descriptors."""
    for one in list(connections.values()):
        one.close_idle()
    shared.close()
    if os.getpid() == maker:
        process.terminate()
        try:
            process.wait(_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    else:
        # Not a child of this process, so nobody waits for it here.
        process.returncode = 0
    log.close()
