"""Reads models as Dask arrays, in an empty directory: dask_arrays.py TEST

Each test prints `ok`, or raises.
"""

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
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
    raises(ValueError, "no tensor has a name like 'x*'", lambda: weightfs.dask("model.safetensors", only=["m*", "x*"]))
    raises(ValueError, "chunks are 0", lambda: weightfs.dask("model.safetensors", chunks=0))
    raises(ValueError, "", lambda: weightfs.dask("model.safetensors", chunks="many"))
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


def test_versions():
    """A process that finds another version raises."""
    write_models()
    lazy = weightfs.dask("model.safetensors")["matrix"]
    copy = pickle.dumps(lazy)
    np.testing.assert_array_equal(pickle.loads(copy).compute(), lazy.compute())
    safetensors.numpy.save_file({"matrix": np.zeros((1000, 64), np.float32)}, "new.safetensors")
    os.replace("new.safetensors", "model.safetensors")
    weightfs._dask._open_once.cache_clear()
    raises(OSError, "the source is not the version that was opened first", pickle.loads(copy).compute)


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
    moved = {**tensors, "matrix": tensors["matrix"] * np.float32(1.5), "added": np.zeros(3, np.float32)}
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
            drift = run_example("dask_drift.py", "model.safetensors", "moved.safetensors", *scheduler).splitlines()
            assert drift[0] == "0.500000  matrix" and drift[1].startswith("0.000000  ")
            assert drift[-1] == "only in one, or of another shape: added"


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    globals()[f"test_{sys.argv[1]}"]()
    print("ok")
