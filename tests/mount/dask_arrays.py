"""Reads models as Dask arrays, in an empty directory: dask_arrays.py TEST

Each test prints `ok`, or raises.
"""

import contextlib
import errno
import hashlib
import json
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import dask
import dask.array
import gguf
import ml_dtypes
import numpy as np
import psutil
import safetensors.numpy
import weightfs
import weightfs._dask
from dask.distributed import Client, LocalCluster
from weightfs._server import Server

RANDOM = np.random.default_rng(7)
EXAMPLES = Path(__file__).parents[2] / "examples" / "clusters"
LOCAL = {"dashboard_address": None, "local_directory": "scratch"}
DEADLINE = 120
"""In seconds."""


def write_models():
    """Returns the values of model.safetensors and of quantized.gguf."""
    tensors = {
        "matrix": RANDOM.standard_normal((1000, 64)).astype(np.float32),
        "half": RANDOM.standard_normal((300, 40)).astype(np.float16),
        "brain": RANDOM.standard_normal((50, 30)).astype(ml_dtypes.bfloat16),
        "stack": RANDOM.integers(0, 1000, (3, 20, 500)).astype(np.int32),
        "scalar": np.array(3.5, np.float32),
        "without.rows": np.zeros((0, 4), np.float32),
        "without.columns": np.zeros((10**12, 0), np.float32),
        "a/b %": np.arange(5, dtype=np.uint8),
    }
    safetensors.numpy.save_file(tensors, "model.safetensors")
    numbers = RANDOM.standard_normal((600, 256)).astype(np.float32)
    packed = gguf.quantize(numbers, gguf.GGMLQuantizationType.Q8_0)
    writer = gguf.GGUFWriter("quantized.gguf", "llama")
    writer.add_tensor("packed", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensors["brain"] = tensors["brain"].astype(np.float32)
    return tensors, {"packed": gguf.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)}


def wait_until(condition):
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "nothing has happened"
        time.sleep(0.01)


def raises(kind, text, work):
    try:
        work()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}: {text}")


def test_arrays():
    """All arrays are those of NumPy, whatever computes them and however they are divided."""
    for file, expected in zip(("model.safetensors", "quantized.gguf"), write_models()):
        for chunks in ("64MiB", "10 kB", 100):
            if chunks == 100:
                expected = {name: array for name, array in expected.items() if array.size < 2000}
            arrays = weightfs.dask(file, chunks=chunks)
            assert set(arrays) >= set(expected) and len(arrays) == len(list(arrays))
            for name, array in expected.items():
                lazy = arrays[name]
                assert (lazy.shape, lazy.dtype) == (array.shape, array.dtype), name
                sizes = [block * lazy.dtype.itemsize for block in map(np.prod, zip_chunks(lazy))]
                assert max(sizes, default=0) <= max(dask.utils.parse_bytes(chunks), lazy.dtype.itemsize), (name, sizes)
                np.testing.assert_array_equal(lazy.compute(scheduler="threads"), array, name)
    arrays = weightfs.dask("model.safetensors", chunks="20 kB", dtype="float64")
    assert arrays["brain"].dtype == np.float64
    both = dask.compute(arrays["matrix"].sum(), arrays["half"][7:9], scheduler="processes", num_workers=2)
    expected = safetensors.numpy.load_file("model.safetensors")
    np.testing.assert_allclose(both[0], expected["matrix"].sum(dtype=np.float64))
    np.testing.assert_array_equal(both[1], expected["half"][7:9])


def zip_chunks(lazy):
    """The shapes of all chunks."""
    return [[lazy.chunks[axis][at] for axis, at in enumerate(place)] for place in np.ndindex(*lazy.numblocks)]


def test_names():
    """Patterns select tensors, errors say what is wrong, and equal arrays have equal names."""
    write_models()
    with_a = {"matrix", "half", "brain", "stack", "scalar", "a/b %"}
    assert set(weightfs.dask("model.safetensors", only="*a*")) == with_a
    arrays = weightfs.dask("model.safetensors", only=["m*", "half"])
    assert list(arrays) == [name for name in weightfs.dask("model.safetensors") if name in ("matrix", "half")]
    assert repr(arrays).startswith("<weightfs.DaskArrays of 2 tensors of ")
    raises(KeyError, "scalar", lambda: arrays["scalar"])
    raises(ValueError, "no array has a name like 'x*'", lambda: weightfs.dask("model.safetensors", only=["m*", "x*"]))
    assert list(weightfs.dask("model.safetensors", only=iter(["h*"]))) == ["half"]
    for chunks in (0, -1, "", "many", None, True, (10, 10), 1.5):
        raises(ValueError, "such as '64MiB'", lambda: weightfs.dask("model.safetensors", chunks=chunks))
    raises(weightfs.Error, "none.safetensors", lambda: weightfs.dask("none.safetensors"))
    raises(weightfs.Error, "not one model", lambda: weightfs.dask("."))
    assert arrays["half"].name == weightfs.dask("model.safetensors")["half"].name != arrays["matrix"].name
    assert arrays["half"].name != weightfs.dask("model.safetensors", chunks=100)["half"].name
    missing = "import sys; sys.modules['dask'] = None; import weightfs; weightfs.dask('model.safetensors')"
    said = subprocess.run([sys.executable, "-c", missing], capture_output=True, text=True, timeout=DEADLINE)
    assert "weightfs.dask needs Dask: pip install weightfs[dask]" in said.stderr, said


def test_rows():
    """A task reads the bytes of its rows, and nothing else."""
    tensors, quantized = write_models()
    read, read_into = [], Server.read_into

    def counted(server, path, start, buffer):
        read.append(len(buffer))
        read_into(server, path, start, buffer)

    for file, name, expected in (
        ("model.safetensors", "matrix", tensors["matrix"]),
        ("quantized.gguf", "packed", quantized["packed"]),
    ):
        lazy = weightfs.dask(file, chunks=100 * expected[0].nbytes)[name]
        read.clear()
        Server.read_into = counted
        try:
            part = lazy[120:180].compute(scheduler="threads")
        finally:
            Server.read_into = read_into
        np.testing.assert_array_equal(part, expected[120:180])
        assert 60 * expected[0].nbytes <= sum(read) <= 100 * expected[0].nbytes, read


def test_ended_servers():
    """A server that was killed is replaced, in this process and in another one. Blocks can be written to."""
    tensors, _ = write_models()
    lazy = weightfs.dask("model.safetensors", chunks="10 kB")["matrix"]
    # Unpickled, it uses the server that all tasks share.
    for array in (lazy, pickle.loads(pickle.dumps(lazy))):
        np.testing.assert_array_equal(array.compute(), tensors["matrix"])
        for child in psutil.Process().children():
            if child.name() == "weightfs":
                child.kill()
                child.wait(DEADLINE)
        twice = array.map_blocks(lambda block: block.__imul__(2))
        np.testing.assert_array_equal(twice.compute(), tensors["matrix"] * 2)
    assert servers() == 1


def test_versions():
    """A process that finds another version raises."""
    write_models()
    lazy = weightfs.dask("model.safetensors")["matrix"]
    copy = pickle.dumps(lazy)
    np.testing.assert_array_equal(pickle.loads(copy).compute(), lazy.compute())
    safetensors.numpy.save_file({"matrix": np.zeros((1000, 64), np.float32)}, "new.safetensors")
    os.replace("new.safetensors", "model.safetensors")
    weightfs._dask._forget_servers()
    raises(OSError, "the source is not the version that was opened first", pickle.loads(copy).compute)


class Store(ThreadingHTTPServer):
    """A server of the files of this directory that counts the bytes it sends, with or without versions."""

    daemon_threads = True

    def __init__(self, has_versions):
        super().__init__(("127.0.0.1", 0), StoreHandler)
        self.has_versions = has_versions
        self.sent = 0


class StoreHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.respond(has_body=False)

    def do_GET(self):
        self.respond(has_body=True)

    def respond(self, has_body):
        file = Path(self.path[1:])
        if not file.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = file.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        begin = int(wanted[1]) if wanted else 0
        end = min(int(wanted[2]) + 1, len(content)) if wanted and wanted[2] else len(content)
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        if self.server.has_versions:
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if has_body:
            self.server.sent += end - begin
            # The program ends transfers that it no longer needs.
            with contextlib.suppress(ConnectionError):
                self.wfile.write(content[begin:end])


@contextlib.contextmanager
def served(has_versions):
    """A server, and the URL of remote.safetensors."""
    with Store(has_versions) as store:
        threading.Thread(target=store.serve_forever, daemon=True).start()
        try:
            yield store, f"http://127.0.0.1:{store.server_port}/remote.safetensors"
        finally:
            store.shutdown()


def fails(number, work):
    try:
        work()
    except OSError as error:
        assert error.errno == number, error
    else:
        raise AssertionError(f"no {errno.errorcode[number]}")


def test_remote():
    """Processes open a remote source by its location, in its version. Arrays are made without fetching elements."""
    os.environ["XDG_CACHE_HOME"] = os.path.abspath("cache")
    # Tensors of 1 MiB, so that the bytes beside the header, which are fetched with it, are those of the first one.
    tensors = {f"{at:02}": np.full((1024, 256), at, np.float32) for at in range(8)}
    safetensors.numpy.save_file(tensors, "remote.safetensors")
    elsewhere = {"scheduler": "processes", "num_workers": 1}
    with served(has_versions=False) as (_, url):
        lazy = weightfs.dask(url)["05"]
        np.testing.assert_array_equal(lazy.compute(scheduler="threads"), tensors["05"])
        fails(errno.ENOTSUP, lambda: lazy.compute(**elsewhere))
    with served(has_versions=True) as (store, url):
        arrays = weightfs.dask(url, chunks="256KiB")
        sent = store.sent
        lazy = dict(arrays)
        assert store.sent == sent, f"{store.sent - sent} bytes were fetched to make arrays"
        np.testing.assert_array_equal(lazy["06"][300:310].compute(**elsewhere), tensors["06"][300:310])
        safetensors.numpy.save_file({**tensors, "06": tensors["06"] + 1}, "new.safetensors")
        os.replace("new.safetensors", "remote.safetensors")
        fails(errno.ESTALE, lambda: lazy["06"][300:310].compute(**elsewhere))


def servers():
    """The number of servers of this process."""
    return sum(child.name() == "weightfs" for child in psutil.Process().children())


def count(block, directory):
    """The number of elements and their sum, after this process may go on."""
    (directory / str(os.getpid())).touch()
    wait_until((directory / "go").exists)
    return np.array([[block.size, block.sum(dtype=np.float64)]])


def test_killed_workers():
    """Two of four workers are killed while they count. Each element counts once."""
    tensors, _ = write_models()
    started = Path("started").absolute()
    started.mkdir()
    with LocalCluster(n_workers=4, threads_per_worker=2, **LOCAL) as cluster, Client(cluster) as client:
        client.wait_for_workers(4, timeout=DEADLINE)
        lazy = weightfs.dask("model.safetensors", chunks=50 * 64 * 4)["matrix"]
        counted = lazy.map_blocks(count, started, chunks=(1, 2), dtype=np.float64, meta=np.empty((0, 0)))
        future = client.compute(counted.sum(axis=0))
        wait_until(lambda: len(list(started.iterdir())) >= 4)
        assert set(client.run(servers).values()) == {1}
        for worker in list(started.iterdir())[:2]:
            os.kill(int(worker.name), signal.SIGKILL)
        (started / "go").touch()
        size, total = future.result(DEADLINE)
        assert size == tensors["matrix"].size
        np.testing.assert_allclose(total, tensors["matrix"].sum(dtype=np.float64), rtol=1e-12)


def run_example(name, *args):
    command = [sys.executable, EXAMPLES / name, *args]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE).stdout


def test_examples():
    """The examples print what NumPy computes, with threads and with the workers of a scheduler."""
    tensors, _ = write_models()
    old = {"zero": np.zeros(3, np.float32), "nan": np.array([np.nan, 1], np.float32), "same": np.ones(2, np.float32)}
    moved = {"zero": np.ones(3, np.float32), "nan": np.ones(2, np.float32), "same": old["same"]}
    moved.update({"matrix": tensors["matrix"] * np.float32(1.5), "added": np.zeros(3, np.float32)})
    safetensors.numpy.save_file({"matrix": tensors["matrix"], **old}, "old.safetensors")
    safetensors.numpy.save_file(moved, "moved.safetensors")
    with LocalCluster(n_workers=2, threads_per_worker=1, **LOCAL) as cluster:
        for scheduler in ([], [cluster.scheduler_address]):
            printed = run_example("dask_stats.py", "model.safetensors", *scheduler)
            lines = [json.loads(line) for line in printed.splitlines()]
            assert {line["name"] for line in lines} == {name for name, array in tensors.items() if array.size}
            for line in lines:
                values = tensors[line["name"]].astype(np.float64)
                found = [line[key] for key in ("min", "max", "mean", "std", "zeros", "not_finite")]
                expected = [values.min(), values.max(), values.mean(), values.std(), (values == 0).sum(), 0]
                np.testing.assert_allclose(found, expected, rtol=1e-9)
            drift = run_example("dask_drift.py", "old.safetensors", "moved.safetensors", *scheduler).splitlines()
            expected = ["inf  zero", "nan  nan", "0.500000  matrix", "0.000000  same"]
            assert drift == [*expected, "only in one, or of another shape: added"], drift


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    globals()[f"test_{sys.argv[1]}"]()
    print("ok")
