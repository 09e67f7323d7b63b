"""Measures how a model is divided among processes, and Dask arrays; scripts/bench-clusters installs what this needs.

A server on loopback stands for an object store: it delays each response, limits each connection, and counts the bytes
of the bodies that it sends. Each process stands for a machine with a cache of its own. Processes that work at the same
time share the cores and the disk of this machine, so they are also measured in turn: the time of the slowest is that of
as many machines, if the server is not the limit.
"""

import argparse
import asyncio
import contextlib
import json
import math
import mmap
import multiprocessing
import os
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Tuple

import dask.base
import numpy
import weightfs

WORK = Path("target/bench-clusters")

DEADLINE = 900
"""Seconds that one program may take."""

COUNTS = (1, 2, 4, 8)
"""Numbers of processes."""

TENSORS = 64

COLUMNS = 1024

SLICE = 128 * 1024
"""Bytes that a connection sends at once."""


def make_model(size: int) -> Path:
    """A file with about `size` bytes in tensors of unequal sizes, half of them F32 and half BF16. It is kept."""
    path = WORK / f"{size // 1_000_000}MB.safetensors"
    if path.exists():
        return path
    random = numpy.random.default_rng(1)
    shares = random.lognormal(size=TENSORS)
    header: Dict[str, Any] = {}
    end = 0
    for at, share in enumerate(shares / shares.sum()):
        # F32 first, so that NumPy finds its tensors aligned.
        dtype, width = ("F32", 4) if at < TENSORS // 2 else ("BF16", 2)
        rows = max(1, int(share * size) // (COLUMNS * width))
        begin, end = end, end + rows * COLUMNS * width
        header[f"{dtype}.{at:02}"] = {"dtype": dtype, "shape": [rows, COLUMNS], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    unfinished = path.with_suffix(".unfinished")
    with open(unfinished, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in header.values():
            for begin in range(0, tensor["shape"][0], 4096):
                rows = min(4096, tensor["shape"][0] - begin)
                values = random.random((rows, COLUMNS), numpy.float32)
                # A BF16 is the upper half of an F32.
                file.write((values if tensor["dtype"] == "F32" else values.view(numpy.uint16)[:, 1::2]).tobytes())
    unfinished.rename(path)
    return path


def read_header(path: Path) -> Tuple[Dict[str, Any], int]:
    """The header of a safetensors file, and where its data begins."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header: Dict[str, Any] = json.loads(file.read(length))
    return header, 8 + length


class Store:
    """A server of one file, at any path, in a process of its own."""

    def __init__(self, path: Path, delay: float, rate: float) -> None:
        context = multiprocessing.get_context("spawn")
        self.sent: "Synchronized[int]" = context.Value("Q", 0)
        self.requests: "Synchronized[int]" = context.Value("Q", 0)
        self.cpu: "Synchronized[float]" = context.Value("d", 0)
        port = context.Value("i", 0)
        ready = context.Event()
        counters = (self.sent, self.requests, self.cpu)
        self.process = context.Process(target=serve, args=(path, delay, rate, port, ready, counters), daemon=True)
        self.process.start()
        if not ready.wait(DEADLINE):
            raise TimeoutError("the server does not start")
        self.url = f"http://127.0.0.1:{port.value}/{path.name}"


def serve(path: Path, delay: float, rate: float, port: Any, ready: Any, counters: Tuple[Any, Any, Any]) -> None:
    """Answers requests until this process is ended."""
    with open(path, "rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        # Nothing is read from the disk later.
        while file.read(1 << 24):
            pass
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setblocking(False)
    port.value = listener.getsockname()[1]
    # Starting does not count.
    counters[2].value = time.process_time()
    asyncio.run(accept(listener, ready, lambda: Connection(content, delay, rate, counters)))


async def accept(listener: socket.socket, ready: Any, connection: "Callable[[], Connection]") -> None:
    loop = asyncio.get_running_loop()
    parent = multiprocessing.parent_process()
    if parent is not None:
        # The server ends with the benchmark, however that ends.
        loop.add_reader(parent.sentinel, os._exit, 0)
    tasks = set()
    ready.set()
    while True:
        client, _ = await loop.sock_accept(listener)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = asyncio.create_task(connection().run(client))
        # The loop itself does not keep tasks.
        tasks.add(task)
        task.add_done_callback(tasks.discard)


class Connection:
    """Answers the requests of one connection, one after the other."""

    def __init__(self, content: memoryview, delay: float, rate: float, counters: Tuple[Any, Any, Any]) -> None:
        self.content = content
        self.delay = delay
        self.rate = rate
        self.sent, self.requests, self.cpu = counters
        self.free_at = 0.0
        """When what was sent has gone through a link of this rate."""

    async def run(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        received = b""
        # Clients close a connection in the middle of a body that they no longer need.
        with client, contextlib.suppress(ConnectionError):
            while True:
                while b"\r\n\r\n" not in received:
                    more = await loop.sock_recv(client, 65536)
                    if not more:
                        return
                    received += more
                request, _, received = received.partition(b"\r\n\r\n")
                self.requests.value += 1
                await asyncio.sleep(self.delay)
                head, body = self.response(request.decode("latin-1"))
                await loop.sock_sendall(client, head)
                for at in range(0, len(body), SLICE):
                    await self.send(client, body[at : at + SLICE])
                self.cpu.value = time.process_time()

    async def send(self, client: socket.socket, part: memoryview) -> None:
        loop = asyncio.get_running_loop()
        self.free_at = max(self.free_at, loop.time()) + len(part) / self.rate
        await loop.sock_sendall(client, part)
        self.sent.value += len(part)
        await asyncio.sleep(self.free_at - loop.time())

    def response(self, request: str) -> Tuple[bytes, memoryview]:
        """The head and the body of the response."""
        first, *lines = request.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        tag = f'"{len(self.content)}"'
        size = len(self.content)
        status, begin, end, more = "200 OK", 0, size, ""
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("range", ""))
        if headers.get("if-match", tag) not in (tag, "*"):
            status, end = "412 Precondition Failed", 0
        elif wanted and headers.get("if-range", tag) == tag:
            if wanted[1]:
                begin, end = int(wanted[1]), min(int(wanted[2] or size) + 1, size)
            else:
                begin = max(size - int(wanted[2]), 0)
            status, more = "206 Partial Content", f"Content-Range: bytes {begin}-{end - 1}/{size}\r\n"
            if begin >= end:
                status, begin, end, more = "416 Range Not Satisfiable", 0, 0, f"Content-Range: bytes */{size}\r\n"
        more += f"ETag: {tag}\r\nAccept-Ranges: bytes\r\nContent-Length: {end - begin}\r\n"
        body = self.content[begin : begin if first.startswith("HEAD ") else end]
        return f"HTTP/1.1 {status}\r\n{more}\r\n".encode(), body


class Sample(NamedTuple):
    """One measurement of the processes of a row."""

    seconds: float
    """Of the slowest process."""
    cpu: float
    """Seconds of all cores in these processes."""
    served: float
    """Seconds of one core in the server."""
    requests: float
    sent: float
    """Bytes of bodies that the server has sent, divided by the bytes of the tensors."""


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """A directory that is removed, on the disk of the model."""
    with tempfile.TemporaryDirectory(dir=WORK) as name:
        yield Path(name).absolute()


class Row(NamedTuple):
    command: str
    processes: int
    kind: str = ""
    """Empty for processes that work at the same time with a cache each."""


IN_TURN = "in turn"
ONE_CACHE = "one cache"


def measure(store: Store, size: int, row: Row) -> Tuple[Sample, bytes]:
    """Measures the processes of a row, whose caches are empty. Also returns what `weightfs combine` prints."""
    with directory() as place, contextlib.ExitStack() as stack:
        sent, requests, served = store.sent.value, store.requests.value, store.cpu.value
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        files = [place / f"{part}.part" for part in range(1, row.processes + 1)]

        def start(part: int) -> "subprocess.Popen[bytes]":
            command = ["weightfs", row.command, store.url, "--part", f"{part}/{row.processes}"]
            if row.command == "stats":
                command.append("--json")
            cache = place / ("cache" if row.kind == ONE_CACHE else f"cache{part}")
            output = stack.enter_context(open(files[part - 1], "wb"))
            process = subprocess.Popen(command, stdout=output, env={**os.environ, "XDG_CACHE_HOME": str(cache)})
            stack.callback(process.kill)
            return process

        def work(parts: Iterable[int]) -> None:
            for process in [start(part) for part in parts]:
                if process.wait(DEADLINE) != 0:
                    sys.exit(f"weightfs {row.command} of {store.url} has failed")

        parts = range(1, row.processes + 1)
        if row.kind == IN_TURN:
            seconds = max(timed(lambda: work([part])) for part in parts)
        else:
            seconds = timed(lambda: work(parts))
        since = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = since.ru_utime - used.ru_utime + since.ru_stime - used.ru_stime
        requests = store.requests.value - requests
        sample = Sample(seconds, cpu, store.cpu.value - served, requests, (store.sent.value - sent) / size)
        return sample, subprocess.run(["weightfs", "combine", *files], check=True, stdout=subprocess.PIPE).stdout


def measure_processes(store: Store, size: int, rounds: int) -> None:
    rows: List[Row] = []
    for command in ("stats", "sums"):
        rows.extend(Row(command, count) for count in COUNTS)
        rows.extend(Row(command, count, IN_TURN) for count in COUNTS[1:])
        rows.append(Row(command, 4, ONE_CACHE))
    samples: Dict[Row, List[Sample]] = {row: [] for row in rows}
    printed: Dict[str, bytes] = {}
    for _ in range(rounds):
        for row in rows:
            sample, text = measure(store, size, row)
            samples[row].append(sample)
            if printed.setdefault(row.command, text) != text:
                sys.exit(f"weightfs {row.command} prints something else in {row.processes} parts")
    print(f"\n{'remote, processes':24}  time, s    MB/s  speedup  of linear  CPU, s  server, s  requests  sent/tensors")
    for row, found in samples.items():
        alone = samples[Row(row.command, 1)]
        speedup = statistics.median(one.seconds / sample.seconds for one, sample in zip(alone, found))
        seconds, cpu, served, requests, sent = (statistics.median(values) for values in zip(*found))
        name = f"{row.command}, {row.processes}" + (f", {row.kind}" if row.kind else "")
        print(
            f"{name:24} {seconds:8.2f} {size / 1e6 / seconds:7.0f} {speedup:8.2f} {speedup / row.processes:10.0%}"
            f" {cpu:7.2f} {served:10.2f} {requests:9.0f} {sent:13.3f}"
        )


def timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def compare(name: str, size: int, rounds: int, works: Dict[str, Callable[[], Any]]) -> None:
    """Prints the medians of two ways to read `size` bytes, and of the ratio of their throughputs."""
    seconds: Dict[str, List[float]] = {way: [] for way in works}
    for _ in range(rounds):
        for way, work in works.items():
            seconds[way].append(timed(work))
    print(f"\n{name:24}  time, s    MB/s")
    for way, times in seconds.items():
        print(f"{way:24} {statistics.median(times):8.3f} {size / 1e6 / statistics.median(times):7.0f}")
    first, second = seconds.values()
    print(f"{'ratio of throughputs':24} {statistics.median(b / a for a, b in zip(first, second)):8.3f}")


def measure_local(path: Path, size: int, rounds: int) -> None:
    def run(*options: str) -> Callable[[], Any]:
        command = ["weightfs", "stats", str(path), "--json", *options]
        return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=DEADLINE)

    compare("local, page cache", size, rounds, {"stats --part 1/1": run("--part", "1/1"), "stats": run()})

    header, data = read_header(path)
    floats = {name: tensor for name, tensor in header.items() if tensor["dtype"] == "F32"}
    mapped = {
        name: numpy.memmap(path, numpy.float32, "r", data + tensor["data_offsets"][0], tuple(tensor["shape"]))
        for name, tensor in floats.items()
    }
    arrays = weightfs.dask(path, only="F32.*", chunks="64MiB")
    lazy = {name: array.sum() for name, array in arrays.items()}
    sums: Dict[str, Dict[str, Any]] = {}

    def sum_lazy() -> None:
        sums["dask"] = dask.base.compute(lazy, scheduler="single-threaded")[0]

    def sum_mapped() -> None:
        sums["numpy"] = {name: array.sum() for name, array in mapped.items()}

    bytes_of_floats = sum(array.nbytes for array in mapped.values())
    works = {"weightfs.dask, 1 thread": sum_lazy, "numpy.memmap": sum_mapped}
    compare("local, sum of F32", bytes_of_floats, rounds, works)
    for name in floats:
        if not math.isclose(sums["dask"][name], sums["numpy"][name], rel_tol=1e-4):
            sys.exit(f"the sums of {name} differ: {sums['dask'][name]} and {sums['numpy'][name]}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench-clusters", description="Measures models on many machines.")
    parser.add_argument("--size", type=int, default=2000, help="megabytes of the model [default: 2000]")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each of all measurements [default: 5]")
    parser.add_argument("--delay", type=float, default=30, help="milliseconds before each response [default: 30]")
    parser.add_argument("--rate", type=float, default=50, help="MB/s of each connection [default: 50]")
    given = parser.parse_args()

    # Directories are removed and processes are ended then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    WORK.mkdir(parents=True, exist_ok=True)
    path = make_model(given.size * 1_000_000)
    header, data = read_header(path)
    size = path.stat().st_size - data
    store = Store(path, given.delay / 1000, given.rate * 1e6)
    version = subprocess.run(["weightfs", "--version"], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
    program = os.path.realpath(shutil.which("weightfs") or "")
    print(f"{version} ({program}), {len(os.sched_getaffinity(0))} cores, Linux {os.uname().release}")
    print(f"{len(header)} tensors, {size / 1e6:.0f} MB; medians of {given.rounds} rounds")
    print(f"server: {given.delay:g} ms before each response, {given.rate:g} MB/s for each connection")
    measure_processes(store, size, given.rounds)
    store.process.terminate()
    measure_local(path, size, given.rounds)


if __name__ == "__main__":
    main()
