"""Tests of the Python package, run by tests/wheel with the Python of a clean virtual environment. Real mounts.

The classes `ServedWeightsTest` and `FallbackTest` also run without /dev/fuse."""

import errno
import gc
import json
import logging
import operator
import os
import pickle
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Any, Callable
from unittest import mock

import fsspec  # type: ignore[import-untyped]
import ml_dtypes
import numpy as np
import pandas  # type: ignore[import-untyped]
import pyarrow.fs  # type: ignore[import-untyped]
import safetensors.numpy
import weightfs
from weightfs._fsspec import WeightFileSystem

USER = """
import sys, time, weightfs
mount = weightfs.mount("model.safetensors")
print(mount.path, flush=True)
sys.stdin.read()
"""


SERVED_USER = """
import sys, weightfs
weights = weightfs.open("model.safetensors", mounted=False)
print(float(weights["layers.0.bias"][3]), flush=True)
sys.stdin.read()
"""


def has_fuse() -> bool:
    return os.path.exists("/dev/fuse")


def mounted() -> list[str]:
    """The mount points of weightfs in this namespace."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split(" ")[4] for line in lines if " fuse.weightfs " in line]


def daemons() -> list[str]:
    """The processes that serve mounts in this namespace."""
    names = [path for path in Path("/proc").glob("[0-9]*/comm")]
    found = []
    for path in names:
        try:
            if path.read_text().strip() == "weightfs" and "Z" not in (path.parent / "stat").read_text().split()[2]:
                found.append(path.parent.name)
        except OSError:
            pass
    return found


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.005)


def raw(path: str, tensors: dict[str, Any], data: bytes) -> None:
    header = json.dumps(tensors).encode()
    Path(path).write_bytes(len(header).to_bytes(8, "little") + header + data)


def stored(array: Any) -> tuple[str, tuple[int, ...], int]:
    """The dtype, the shape and the number of bytes that `Weights.info` gives."""
    return ({"f": "F", "i": "I"}[array.dtype.kind] + str(8 * array.itemsize), array.shape, array.nbytes)


class Case(unittest.TestCase):
    """Runs in a temporary directory with a model, and checks that no mount is left."""

    def setUp(self) -> None:
        self.dir = tempfile.TemporaryDirectory()
        os.chdir(self.dir.name)
        model = {
            "layers.0.weight": np.arange(12, dtype=np.float32).reshape(4, 3),
            "layers.0.bias": np.arange(4, dtype=np.float32),
        }
        safetensors.numpy.save_file(model, "model.safetensors")
        os.mkdir("tmp")
        tempfile.tempdir = os.path.abspath("tmp")

    def tearDown(self) -> None:
        gc.collect()
        os.chdir("/")
        tempfile.tempdir = None
        wait_until(lambda: not mounted() and not daemons())
        self.assertEqual(os.listdir(Path(self.dir.name, "tmp")), [])
        self.dir.cleanup()


class MountTest(Case):
    def test_path_is_a_mount_until_the_end_of_the_block(self) -> None:
        with weightfs.mount("model.safetensors") as path:
            self.assertIsInstance(path, Path)
            self.assertEqual(mounted(), [str(path)])
            self.assertEqual(len((path / "tensors/layers.0.weight").read_bytes()), 48)
        self.assertEqual(mounted(), [])
        self.assertFalse(path.exists())

    def test_exception_unmounts(self) -> None:
        with self.assertRaises(ZeroDivisionError), weightfs.mount(Path("model.safetensors")):
            _ = 1 / 0
        self.assertEqual(mounted(), [])

    def test_mount_point_of_the_caller_is_kept(self) -> None:
        os.mkdir("mnt")
        mount = weightfs.mount("model.safetensors", Path("mnt"), options=["--views=npy"])
        self.assertEqual(mount.path, Path("mnt").resolve())
        self.assertEqual([name for name in os.listdir("mnt") if os.path.isdir(Path("mnt", name))], ["npy"])
        mount.close()
        mount.close()
        self.assertIn("closed", repr(mount))
        self.assertEqual((mounted(), os.listdir("mnt")), ([], []))

    def test_deleted_object_unmounts(self) -> None:
        mount = weightfs.mount("model.safetensors")
        self.assertEqual(len(mounted()), 1)
        del mount
        gc.collect()
        self.assertEqual(mounted(), [])

    def test_open_file_stays_readable(self) -> None:
        with weightfs.mount("model.safetensors") as path:
            file = (path / "tensors/layers.0.bias").open("rb")
        self.assertEqual(mounted(), [])
        self.assertEqual(file.read(), np.arange(4, dtype=np.float32).tobytes())
        file.close()

    def test_unmounting_by_others_is_no_error(self) -> None:
        with weightfs.mount("model.safetensors") as path:
            subprocess.run([weightfs.program(), "umount", str(path)], check=True)

    def test_mount_of_somebody_else_is_kept(self) -> None:
        os.mkdir("mnt")
        first = weightfs.mount("model.safetensors", "mnt")
        subprocess.run([weightfs.program(), "umount", "mnt"], check=True)
        wait_until(lambda: not daemons())
        with weightfs.mount("model.safetensors", "mnt") as path:
            first.close()
            self.assertEqual(mounted(), [str(path)])

    def test_message_and_status_of_a_failure(self) -> None:
        with self.assertRaises(weightfs.Error) as caught:
            weightfs.mount("absent.safetensors")
        self.assertEqual(str(caught.exception), "absent.safetensors: No such file or directory")
        self.assertEqual(caught.exception.status, 1)
        with self.assertRaises(weightfs.Error) as caught:
            weightfs.mount("model.safetensors", options=["--bogus"])
        self.assertEqual(caught.exception.status, 2)
        self.assertIn("--bogus", str(caught.exception))

    def test_source_may_begin_with_a_dash(self) -> None:
        os.rename("model.safetensors", "-f")
        with weightfs.mount("-f") as path:
            self.assertTrue((path / "tensors").is_dir())

    def test_warnings_are_logged(self) -> None:
        Path("cut.safetensors").write_bytes(Path("model.safetensors").read_bytes()[:-1])
        with self.assertLogs("weightfs", logging.WARNING) as logs:
            with weightfs.mount("cut.safetensors", options=["--lenient"]):
                pass
        self.assertIn("cut.safetensors", logs.output[0])

    def test_mount_ends_with_a_killed_user(self) -> None:
        for end in (signal.SIGKILL, signal.SIGTERM):
            user = subprocess.Popen([sys.executable, "-c", USER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert user.stdout and user.stdin
            path = user.stdout.readline().decode().strip()
            self.assertEqual(mounted(), [path])
            user.send_signal(end)
            user.wait()
            wait_until(lambda: not mounted() and not os.path.exists(path))
            user.stdin.close()
            user.stdout.close()

    def test_end_of_the_user_unmounts(self) -> None:
        done = subprocess.run([sys.executable, "-c", USER], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(mounted(), [])
        self.assertFalse(os.path.exists(done.stdout.strip()))

    def test_end_of_a_forked_process_does_not_unmount(self) -> None:
        with weightfs.mount("model.safetensors") as path:
            done = subprocess.run(
                [sys.executable, "-c", "import os, weightfs\n"
                 "with weightfs.mount('model.safetensors') as path:\n"
                 "    if os.fork() == 0: raise SystemExit\n"
                 "    os.wait()\n"
                 "    assert (path / 'tensors').is_dir() and os.path.ismount(path)\n"],
                stderr=subprocess.PIPE, text=True,
            )
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(mounted(), [str(path)])


class WeightsTest(Case):
    """Tests of `open` with a mount. Without one, the same tests run in a subclass."""

    is_mounted = True

    def open(self, source: str, **arguments: Any) -> weightfs.Weights:
        return weightfs.open(source, mounted=self.is_mounted, **arguments)

    def test_arrays_are_those_of_the_file(self) -> None:
        expected = safetensors.numpy.load_file("model.safetensors")
        with self.open("model.safetensors") as weights:
            self.assertEqual(weights.mounted, self.is_mounted)
            self.assertEqual(list(weights), ["layers.0.bias", "layers.0.weight"])
            self.assertEqual(len(weights), 2)
            self.assertIn("layers.0.bias", weights)
            for absent in ("layers.1.bias", "", 5, None):
                self.assertNotIn(absent, weights)
            for name, array in weights.items():
                self.assertEqual(isinstance(array, np.memmap), self.is_mounted)
                self.assertFalse(array.flags.writeable)
                np.testing.assert_array_equal(np.asarray(array), expected[name], strict=True)
                np.testing.assert_array_equal(array[...], expected[name], strict=True)
                with self.assertRaisesRegex(ValueError, "read-only"):
                    array[0] = 1
            self.assertIn("2 tensors", repr(weights))
            with self.assertRaises(KeyError):
                weights["layers.1.bias"]
            self.assertIsNone(weights.get("layers.1.bias"))
        self.assertIn("closed", repr(weights))
        for use in (lambda: weights["layers.0.bias"], lambda: weights.read("index.json"), lambda: weights.metadata):
            with self.assertRaisesRegex(ValueError, "the weights are closed"):
                use()

    def test_arrays_outlive_the_weights(self) -> None:
        array = self.open("model.safetensors")["layers.0.weight"]
        gc.collect()
        self.assertEqual(mounted(), [])
        self.assertEqual(len(daemons()), 1)
        self.assertEqual(array.sum(), 66)
        view = array[2:]
        del array
        gc.collect()
        self.assertEqual(view.sum(), 51)
        del view
        gc.collect()
        wait_until(lambda: not daemons())

    def test_names_and_shapes_of_all_kinds(self) -> None:
        names = ["", ".", "..", "a/b%c", "\x01\x7f", "ä" * 130, "/" * 100, "x" * 240, "y" * 241, "z" * 221 + "é/é" * 9]
        model = {name: np.full((at,), at, np.int16) for at, name in enumerate(names)}
        model["scalar"] = np.array(7, np.float64)
        model["empty"] = np.zeros((0, 3), np.float16)
        safetensors.numpy.save_file(model, "names.safetensors")
        with self.open("names.safetensors") as weights:
            self.assertEqual(set(weights), set(model))
            for name, expected in model.items():
                np.testing.assert_array_equal(np.asarray(weights[name]), expected, strict=True)
                self.assertEqual(weights.info(name)[:4], (name, *stored(expected)))
                self.assertEqual(weights.read(weights.info(name).file or ""), expected.tobytes())

    def test_dtypes_that_numpy_lacks(self) -> None:
        entry = lambda dtype, begin, end: {"dtype": dtype, "shape": [2], "data_offsets": [begin, end]}
        raw("other.safetensors", {"b": entry("BF16", 0, 4), "i": entry("I4", 4, 5)}, b"\x80\x3f\x00\xc0\x12")
        with self.assertLogs("weightfs", logging.WARNING):
            weights = self.open("other.safetensors")
        with weights:
            self.assertEqual(list(weights), ["b"])
            np.testing.assert_array_equal(np.asarray(weights["b"]), np.array([1, -2], np.float32), strict=True)
            reason = r"i: NumPy cannot show the dtype I4; read\(.tensors/i.\) returns its bytes"
            with self.assertRaisesRegex(KeyError, reason):
                weights["i"]
            self.assertEqual(weights.read("tensors/i"), b"\x12")
            self.assertEqual((weights.info("i").dtype, weights.info("b").dtype), ("I4", "BF16"))
            with self.assertRaises(KeyError):
                weights.info("absent")

    def test_bfloat16_on_request(self) -> None:
        numbers = np.array([[1, -2.5], [0, 3e38]], ml_dtypes.bfloat16)
        one = np.array(-2.5, ml_dtypes.bfloat16)
        model = {"b": numbers, "f": np.ones(2, np.float32), "none": numbers[:0], "one": one}
        safetensors.numpy.save_file(model, "bf16.safetensors")
        with self.open("bf16.safetensors", bfloat16=True) as weights:
            for name, expected in model.items():
                self.assertEqual((weights[name].dtype, weights[name].shape), (expected.dtype, expected.shape))
                np.testing.assert_array_equal(np.asarray(weights[name]), expected, strict=True)
            np.testing.assert_array_equal(weights["b"][1], numbers[1])
            self.assertEqual(weights.info("b")[:4], ("b", "BF16", (2, 2), 8))
        with self.open("bf16.safetensors") as weights:
            self.assertEqual(weights["b"].dtype, np.float32)
        with self.assertRaisesRegex(ValueError, "the options hide tensors, which"):
            self.open("bf16.safetensors", bfloat16=True, options=["--views=index,npy"])
        missing = mock.patch.dict(sys.modules, {"ml_dtypes": None})
        with missing, self.assertRaisesRegex(ImportError, "pip install ml_dtypes"):
            self.open("bf16.safetensors", bfloat16=True)

    def test_metadata_and_files(self) -> None:
        model = {"w": np.arange(3, dtype=np.float32)}
        safetensors.numpy.save_file(model, "named.safetensors", metadata={"name": "ä", "format": "np"})
        with self.open("named.safetensors") as weights:
            self.assertEqual(weights.metadata, {"name": "ä", "format": "np"})
            self.assertIs(weights.metadata, weights.metadata)
            self.assertEqual(weights.read("metadata/name"), "ä".encode())
            self.assertEqual(json.loads(weights.read("stats/w.json"))["max"], 2)
            for path in ("stats/absent.json", "", ".", "../model.safetensors", "/etc/passwd", "stats//w.json"):
                with self.assertRaises(FileNotFoundError) as caught:
                    weights.read(path)
                self.assertEqual(str(caught.exception), f"[Errno 2] No such file or directory: {path!r}")
            with self.assertRaises(IsADirectoryError) as refused:
                weights.read("stats")
            self.assertEqual(str(refused.exception), "[Errno 21] Is a directory: 'stats'")
        with self.open("model.safetensors") as weights:
            self.assertEqual(weights.metadata, {})

    def test_indices_select_what_they_select_in_numpy(self) -> None:
        rows = np.arange(4 * 3 * 5, dtype=np.int16).reshape(4, 3, 5)
        model: dict[str, Any] = {"a": rows, "scalar": np.array(7, np.float64), "none": rows[:0]}
        model["count"], model["where"] = np.array(2, np.int8), np.array([True, True, False, False]).reshape(4, 1, 1)
        safetensors.numpy.save_file(model, "indices.safetensors")
        keys: list[Any] = [
            0, -1, 9, np.int8(2), (1, 2), (1, 2, 3), (1, 2, 3, 0), (0, -4), (), None, (None, 2), (0, None, 1), ...,
            slice(1, 3), slice(None, None, -2), slice(9, 20), (slice(None), 1), (slice(1, 3), slice(None), slice(4, 0, -3)),
            (..., 0), (1, ..., slice(2)), (..., ...), (1, 2, 3, ...), True, 1.5, "a", ["a"],
            [0, 2], [3, -1, 0], [4], [-5], [], np.array(2), np.array([3, 1], np.uint64), (1, [0, 2]), (None, [0, 1]),
            (0, slice(None), [1, 0]), (slice(1, 3), [0, 2]), (slice(None, None, 2), 1, [0, 4]), (..., [0, 1]),
            ([0, 1], [1, 2]), ([[0, 1], [2, 3]], 1), np.array([3, -1], np.int8), False, np.True_, np.array(False),
            (False, 0), (False, 9), (True, [0, 1]), (False, [0, 1]), (True, 0), ([], 2), ([], 9), ([], [0, 1]), [[]],
            np.array([]), np.array([], np.uint8), np.zeros(4, bool), np.zeros((0, 3), bool), (0, True), (..., False),
            np.array([True, False, True, False]), np.array([True]), rows > 20, (rows > 20)[..., 0],
        ]
        with self.open("indices.safetensors") as weights:
            for name, expected in model.items():
                array = weights[name]
                for attribute in ("shape", "dtype", "ndim", "size", "nbytes", "itemsize"):
                    self.assertEqual(getattr(array, attribute), getattr(expected, attribute))
                for key in keys:
                    with self.subTest(name=name, key=key):
                        try:
                            selected = expected[key]
                        except IndexError as error:
                            with self.assertRaises(IndexError) as caught:
                                array[key]
                            self.assertEqual(str(caught.exception), str(error))
                        else:
                            np.testing.assert_array_equal(array[key], selected, strict=True)
                            self.assertEqual(isinstance(array[key], np.ndarray), isinstance(selected, np.ndarray))
            array, scalar = weights["a"], weights["scalar"]
            self.assertEqual((float(scalar), int(scalar), bool(scalar)), (7, 7, True))
            for use in (len, iter):
                with self.assertRaises(TypeError):
                    use(scalar)
            self.assertEqual((len(array), array.sum(), np.max(array)), (4, 1770, 59))
            self.assertEqual((7 in array, 60 in array), (True, False))
            np.testing.assert_array_equal(list(array), list(rows))
            np.testing.assert_array_equal(array + 1, rows + 1, strict=True)
            np.testing.assert_array_equal(array == array, rows == rows, strict=True)
            np.testing.assert_array_equal(array.T, rows.T, strict=True)
            np.testing.assert_array_equal(np.concatenate([array, array[:1]]), np.concatenate([rows, rows[:1]]))
            np.testing.assert_array_equal(np.array(array, np.float64), rows.astype(np.float64), strict=True)
            self.assertTrue(np.array(array).flags.writeable)
            np.testing.assert_array_equal(pickle.loads(pickle.dumps(array)), rows, strict=True)
            self.assertEqual((complex(scalar), f"{scalar:.1f}", f"{scalar}"), (7, "7.0", "7.0"))
            count: Any = weights["count"]
            self.assertEqual((operator.index(count), "abc"[count]), (2, "c"))
            conversions: list[Callable[[Any], Any]] = [operator.index, round, complex, lambda one: format(one, ".1f")]
            for convert in conversions:
                with self.assertRaises(TypeError):
                    convert(array)
            for convert in conversions[:2]:
                with self.assertRaises(TypeError):
                    convert(scalar)
            where: Any = weights["where"]
            self.assertEqual(np.sum(array, where=where), rows[:2].sum())
            self.assertEqual(np.sum(rows, where=where, initial=count), rows[:2].sum() + 2)
            np.testing.assert_array_equal(
                np.add(array, 1, where=where, out=np.zeros_like(rows)), np.add(rows, 1, where=where, out=np.zeros_like(rows))
            )
            with self.assertRaises(ValueError):
                bool(array)
            with self.assertRaises(AttributeError):
                getattr(array, "absent")

    def test_processes_and_threads_share_arrays(self) -> None:
        expected = np.arange(1 << 18, dtype=np.int32).reshape(-1, 64)
        safetensors.numpy.save_file({"w": expected}, "large.safetensors")
        wrong: list[int] = []

        def compare(array: Any, first: int) -> None:
            wrong.extend(row for row in range(first, len(expected), 101) if (array[row] != expected[row]).any())

        with self.open("large.safetensors") as weights:
            array = weights["w"]
            self.assertEqual(array[7, 7], expected[7, 7])
            child = os.fork()
            if child == 0:
                try:
                    compare(array, 0)
                finally:
                    os._exit(len(wrong) > 0)
            threads = [threading.Thread(target=compare, args=(array, first)) for first in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual((os.waitpid(child, 0)[1], wrong), (0, []))

    def test_quantized_weights_have_their_logical_names(self) -> None:
        os.mkdir("awq")
        shapes = {"a.qweight": [128, 8], "a.qzeros": [1, 8], "a.scales": [1, 64]}
        model = {name: np.zeros(shape, np.int32) for name, shape in shapes.items()}
        model["a.scales"] = np.ones(shapes["a.scales"], np.float16)
        safetensors.numpy.save_file(model, "awq/model.safetensors")
        config = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
        Path("awq/config.json").write_text(json.dumps({"quantization_config": config}))
        with self.open("awq") as weights:
            self.assertEqual(set(weights), {"a.weight", "a.qzeros", "a.scales"})
            expected = np.zeros((64, 128), np.float32)
            np.testing.assert_array_equal(np.asarray(weights["a.weight"]), expected, strict=True)
            info = weights.info("a.weight")
            self.assertEqual(info, weights.info("a.qweight"))
            self.assertEqual(info[:4], ("a.qweight", "I32", (128, 8), 4096))
            assert info.quantization
            self.assertEqual((info.quantization["name"], info.quantization["shape"]), ("a.weight", [64, 128]))
        with self.open("awq", options=["--stored"]) as weights:
            self.assertEqual(set(weights), set(model))
            np.testing.assert_array_equal(np.asarray(weights["a.qweight"]), model["a.qweight"], strict=True)

    def test_directory_of_models_is_refused(self) -> None:
        os.mkdir("many")
        for name in "ab":
            shutil.copy("model.safetensors", f"many/{name}.safetensors")
        with self.assertRaisesRegex(weightfs.Error, "^many: not one model; open one of the models in it$"):
            self.open("many")

    def test_options_that_hide_what_is_read_are_refused(self) -> None:
        for views, hidden in [("tensors", "index.json"), ("index", "npy")]:
            with self.assertRaisesRegex(ValueError, f"the options hide {hidden}, which"):
                self.open("model.safetensors", options=[f"--views={views}"])

    def test_message_and_status_of_a_failure(self) -> None:
        Path("cut.safetensors").write_bytes(Path("model.safetensors").read_bytes()[:-1])
        Path("-f").write_text("not a model, but a text")
        for source, status, reason in [
            ("absent", 1, "^absent: No such file or directory$"),
            ("cut.safetensors", 1, "^cut.safetensors: .*--lenient"),
            ("-f", 1, "^-f: not a model"),
        ]:
            with self.assertRaisesRegex(weightfs.Error, reason) as caught:
                self.open(source)
            self.assertEqual(caught.exception.status, status)
        with self.assertRaisesRegex(weightfs.Error, "--bogus") as caught:
            self.open("model.safetensors", options=["--bogus"])
        self.assertEqual(caught.exception.status, 2)
        with self.assertLogs("weightfs", logging.WARNING) as logs:
            self.open("cut.safetensors", options=["--lenient"]).close()
        self.assertEqual(len(logs.output), 1)
        self.assertIn("cut.safetensors", logs.output[0])

    def test_pickled_weights_are_opened_again(self) -> None:
        with self.open("model.safetensors") as weights:
            code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)['layers.0.bias'].sum())"
            said = subprocess.run(
                [sys.executable, "-c", code], input=pickle.dumps(weights), capture_output=True, cwd="/", check=True
            )
            self.assertEqual(said.stdout, b"6.0\n")
            self.assertEqual(pickle.loads(pickle.dumps(weights)).mounted, self.is_mounted)
        with self.assertRaisesRegex(ValueError, "closed"):
            pickle.dumps(weights)
        if self.is_mounted:
            with self.assertRaisesRegex(TypeError, "cannot be pickled"):
                pickle.dumps(weightfs.Mount("model.safetensors"))

    def test_errors_are_os_errors_and_the_version_is_that_of_the_program(self) -> None:
        with self.assertRaises(OSError):
            self.open("absent")
        said = subprocess.run([weightfs.program(), "--version"], capture_output=True, text=True, check=True)
        self.assertEqual(said.stdout, f"weightfs {weightfs.__version__}\n")


class ServedWeightsTest(WeightsTest):
    """Tests of `open` without a mount: those of the other class, and more."""

    is_mounted = False

    def test_index_reads_the_bytes_that_it_selects(self) -> None:
        rows = np.arange(1000 * 100, dtype=np.float32).reshape(1000, 100)
        safetensors.numpy.save_file({"w": rows}, "rows.safetensors")
        with self.open("rows.safetensors") as weights:
            array = weights["w"]
            keys: list[tuple[Any, int]] = [
                (5, 400), ((5, 7), 4), (slice(2, 5), 1200), ((5, slice(10, 20)), 40), (slice(7, 5, -1), 800),
                (slice(0, 0), 0), (slice(None, None, 500), 501 * 400), ((..., 0), 999 * 400 + 4),
                ([3, 5], 1200), ((slice(3, 5), [0, 1]), 800), (np.array([5, 7], np.uint8), 1200),
                (np.array([-1, -2], np.int8), 800), ([], 0), (([], 5), 0), (np.array([], np.uint8), 0),
                (np.zeros(1000, bool), 0), (False, 0), (True, 400000),
            ]
            for key, size in keys:
                with mock.patch.object(weightfs._server.Server, "read_into", autospec=True) as read:
                    array[key]
                self.assertEqual(sum(len(call.args[3]) for call in read.call_args_list), size, key)
            np.testing.assert_array_equal(array[np.array([5, -7], np.int8)], rows[[5, -7]], strict=True)
            # A small part of a large range does not keep the range in memory.
            self.assertEqual(array[:, 0].strides, (4,))

    def test_large_reads_come_from_the_file_itself(self) -> None:
        rows = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
        safetensors.numpy.save_file({"first": rows[:1], "rows": rows}, "rows.safetensors")
        np.savez("columns.npz", columns=np.asfortranarray(rows), rows=rows)

        def direct(array: Any, first: int) -> int:
            """Reads the rows from `first` on. Returns how many bytes were read from the file itself."""
            with mock.patch.object(os, "preadv", wraps=os.preadv) as read:
                np.testing.assert_array_equal(array[first:], rows[first:], strict=True)
            return sum(len(call.args[1][0]) for call in read.call_args_list)

        with self.open("rows.safetensors") as weights, self.open("columns.npz") as others:
            self.assertEqual(direct(weights["rows"], 10), 1014 * 4096)
            # What is small, and what is gathered or decoded, comes from the server.
            self.assertEqual(direct(weights["rows"], 1000), 0)
            self.assertEqual(direct(others["columns"], 0), 0)
            self.assertEqual(direct(others["rows"], 0), rows.nbytes)
            # Another file at the path, or another version of the file, is not read.
            array = weights["rows"]
            os.chmod("rows.safetensors", 0o640)
            self.assertEqual(direct(array, 10), 0)
            os.rename("rows.safetensors", "moved.safetensors")
            self.assertEqual(direct(array, 10), 0)
            safetensors.numpy.save_file({"first": rows[:1], "rows": rows + 1}, "rows.safetensors")
            self.assertEqual(direct(array, 10), 0)

        with self.open("columns.npz") as others:
            array, read_file = others["rows"], os.preadv

            def read_and_change(*arguments: Any) -> int:
                os.utime("columns.npz", (0, 0))
                return read_file(*arguments)

            with mock.patch.object(os, "preadv", read_and_change), self.assertRaisesRegex(OSError, "since it was opened"):
                array[10:]

    def test_source_that_has_changed_gives_an_error(self) -> None:
        with self.open("model.safetensors") as weights:
            array = weights["layers.0.weight"]
            os.truncate("model.safetensors", 100)
            with self.assertRaisesRegex(weightfs.Error, "^npy/layers.0.weight.npy: .*since it was opened") as caught:
                array[0]
            self.assertEqual(caught.exception.status, 1)
            with self.assertRaisesRegex(OSError, "since it was opened"):
                array.sum()

    def test_killed_server_gives_an_error(self) -> None:
        weights = self.open("model.safetensors")
        array = weights["layers.0.weight"]
        (server,) = daemons()
        os.kill(int(server), signal.SIGKILL)
        for _ in range(2):
            with self.assertRaisesRegex(weightfs.Error, "the server has ended: exit status -9"):
                array[0]
        weights.close()

    def test_more_threads_than_connections_read(self) -> None:
        numbers = np.ones(1 << 20, np.float32)
        safetensors.numpy.save_file({"w": numbers}, "large.safetensors")
        # The limit of this package is less than the limit of the server, which holds for all processes together.
        for limit in (weightfs._server._CONNECTIONS, 400):
            wrong: list[object] = []
            made: list[None] = []
            connect = weightfs._server._Connection.connect

            def count(connection: Any) -> None:
                made.append(None)
                connect(connection)

            with (
                self.subTest(limit=limit),
                mock.patch.object(weightfs._server, "_CONNECTIONS", limit),
                mock.patch.object(weightfs._server._Connection, "connect", count),
                self.open("large.safetensors") as weights,
            ):
                array = weights["w"]
                together = threading.Barrier(300)

                def use() -> None:
                    together.wait()
                    try:
                        for begin in (0, 1 << 18, 1 << 19):
                            if array[begin:][: 1 << 17].sum() != 1 << 17 or array[: 1 << 10].sum() != 1 << 10:
                                wrong.append("sum")
                    except Exception as error:
                        wrong.append(error)

                threads = [threading.Thread(target=use) for _ in range(300)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertEqual(wrong, [])
                if limit < 256:
                    self.assertLessEqual(len(made), limit)
                del array

    def test_server_goes_on_without_free_descriptors(self) -> None:
        with self.open("model.safetensors") as weights:
            array: Any = weights["layers.0.bias"]
            own, (server,) = array._server, daemons()
            own._own_connections().close_idle()
            limits = resource.prlimit(int(server), resource.RLIMIT_NOFILE)
            resource.prlimit(int(server), resource.RLIMIT_NOFILE, (4, limits[1]))
            wrong = []
            thread = threading.Thread(target=lambda: wrong.append(array[3] != 3))
            thread.start()
            wait_until(lambda: b"a connection cannot be accepted" in own._said(0))
            resource.prlimit(int(server), resource.RLIMIT_NOFILE, limits)
            thread.join()
            # A message without a connection.
            own._shared.send(b".")
            own._own_connections().close_idle()
            self.assertEqual((wrong, array[2], len(daemons())), ([False], 2, 1))

    def test_connection_that_is_closed_without_an_answer_is_made_again(self) -> None:
        with self.open("model.safetensors") as weights:
            array: Any = weights["layers.0.bias"]
            array._server._own_connections().close_idle()
            connect = weightfs._server._Connection.connect
            made: list[Any] = []

            def fail_at_first(connection: Any) -> None:
                connect(connection)
                made.append(connection)
                if len(made) < 3:
                    connection.sock.shutdown(socket.SHUT_RDWR)

            with mock.patch.object(weightfs._server._Connection, "connect", fail_at_first):
                self.assertEqual(array[3], 3)
            self.assertEqual(len(made), 3)

    def test_default_timeout_of_sockets_is_not_used(self) -> None:
        socket.setdefaulttimeout(1e-6)
        try:
            with self.open("model.safetensors") as weights:
                self.assertEqual(weights["layers.0.bias"].sum(), 6)
        finally:
            socket.setdefaulttimeout(None)

    def test_socket_of_clients_must_be_one(self) -> None:
        command = [weightfs.program(), "serve", "--clients=0", "model.safetensors"]
        said = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        self.assertEqual((said.returncode, said.stdout), (1, ""))
        self.assertRegex(said.stderr, "^weightfs: --clients")

    def test_server_ends_with_its_user(self) -> None:
        for end in (signal.SIGKILL, signal.SIGTERM, None):
            user = subprocess.Popen([sys.executable, "-c", SERVED_USER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert user.stdout and user.stdin
            self.assertEqual(user.stdout.readline(), b"3.0\n")
            self.assertEqual(len(daemons()), 1)
            if end:
                user.send_signal(end)
            user.stdin.close()
            user.wait()
            user.stdout.close()
            wait_until(lambda: not daemons())

    def test_end_of_a_forked_process_keeps_the_server(self) -> None:
        with self.open("model.safetensors") as weights:
            array = weights["layers.0.bias"]
            said = subprocess.run(
                [sys.executable, "-X", "dev", "-W", "error", "-c", "import os, weightfs\n"
                 "weights = weightfs.open('model.safetensors', mounted=False)\n"
                 "array = weights['layers.0.bias']\n"
                 "if os.fork() == 0: assert array[3] == 3; raise SystemExit\n"
                 "assert os.wait()[1] == 0 and array[2] == 2\n"],
                capture_output=True, text=True,
            )
            self.assertEqual((said.returncode, said.stderr), (0, ""))
            self.assertEqual(array[1], 1)

    def test_path_is_refused(self) -> None:
        with self.open("model.safetensors") as weights, self.assertRaisesRegex(ValueError, "not mounted"):
            weights.path
        self.assertEqual(mounted(), [])


class FallbackTest(Case):
    def test_open_mounts_where_that_is_possible(self) -> None:
        with weightfs.open("model.safetensors") as weights:
            self.assertEqual(weights.mounted, has_fuse())
            self.assertEqual(len(mounted()), has_fuse())
            np.testing.assert_array_equal(np.asarray(weights["layers.0.bias"]), np.arange(4, dtype=np.float32))

    @unittest.skipIf(has_fuse(), "/dev/fuse is present")
    def test_mount_that_is_asked_for_is_not_replaced(self) -> None:
        with self.assertRaisesRegex(weightfs.Error, "/dev/fuse is missing"):
            weightfs.open("model.safetensors", mounted=True)
        with self.assertRaisesRegex(weightfs.Error, "/dev/fuse is missing"):
            weightfs.mount("model.safetensors")


class FileSystemTest(Case):
    """The file system of fsspec, which needs no mount."""

    def setUp(self) -> None:
        super().setUp()
        self.array = np.arange(12, dtype=np.float32).reshape(4, 3)

    def tearDown(self) -> None:
        WeightFileSystem.clear_instance_cache()
        super().tearDown()

    def files(self, **options: Any) -> Any:
        return fsspec.filesystem("weightfs", source="model.safetensors", **options)

    def test_directories_and_files_are_those_of_a_mount(self) -> None:
        files = self.files()
        self.assertEqual(files.ls("tensors", detail=False), ["tensors/layers.0.bias", "tensors/layers.0.weight"])
        self.assertEqual(files.ls("weightfs://npy"), [
            {"name": "npy/layers.0.bias.npy", "size": 144, "type": "file"},
            {"name": "npy/layers.0.weight.npy", "size": 176, "type": "file"},
        ])
        self.assertIn({"name": "tensors", "size": 0, "type": "directory"}, files.ls(""))
        self.assertEqual(files.ls("tensors/layers.0.bias", detail=False), ["tensors/layers.0.bias"])
        bias = {"name": "tensors/layers.0.bias", "size": 16, "type": "file"}
        self.assertEqual(files.info(bias["name"]), bias)
        self.assertEqual((files.info("tensors")["type"], files.info("")["type"]), ("directory", "directory"))
        self.assertEqual(files.glob("tree/layers/*/weight"), ["tree/layers/0/weight"])
        self.assertEqual(len(files.find("tensors")), 2)
        self.assertTrue(files.isfile("index.json") and files.isdir("stats") and not files.exists("absent/file"))
        self.assertEqual(files.walk("tree").__next__(), ("tree", ["layers"], []))
        files.get("stats", "copied", recursive=True)
        self.assertEqual(json.loads(Path("copied/layers.0.bias.json").read_bytes())["max"], 3)

    def test_libraries_read_the_files(self) -> None:
        files = self.files()
        with files.open("npy/layers.0.weight.npy") as file:
            np.testing.assert_array_equal(np.load(file), self.array, strict=True)
            file.seek(-4, os.SEEK_END)
            self.assertEqual(file.read(), self.array[-1:, -1].tobytes())
        with fsspec.open("weightfs://f32/layers.0.weight.f32", source="model.safetensors", mode="rb") as file:
            self.assertEqual(file.read(), self.array.tobytes())
        with files.open("stats/layers.0.weight.json") as file:
            self.assertEqual(pandas.read_json(file, typ="series")["max"], 11)
        table = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(files))
        self.assertEqual(table.open_input_file("f32/layers.0.weight.f32").read(), self.array.tobytes())
        self.assertEqual(table.get_file_info("npy/layers.0.bias.npy").size, 144)
        self.assertEqual(len(table.get_file_info(pyarrow.fs.FileSelector("tensors"))), 2)
        chained = f"weightfs://tensors/layers.0.weight::file://{os.path.abspath('model.safetensors')}"
        with fsspec.open(chained, "rb") as file:
            self.assertEqual(file.read(), self.array.tobytes())

    def test_parts_are_read(self) -> None:
        files, path, data = self.files(), "tensors/layers.0.weight", self.array.tobytes()
        for start, end in [(None, None), (0, 4), (4, None), (-8, None), (-8, -4), (None, -40), (40, 99), (48, 50), (7, 7)]:
            self.assertEqual(files.cat_file(path, start, end), data[start:end], (start, end))
        rows = files.cat_ranges([path] * 4, list(range(0, 48, 12)), list(range(12, 60, 12)))
        self.assertEqual(rows, [row.tobytes() for row in self.array])
        self.assertEqual(files.cat_ranges([path], 0, 4), [data[:4]])
        (error,) = files.cat_ranges(["absent"], 0, 4)
        self.assertIsInstance(error, FileNotFoundError)
        with self.assertRaises(FileNotFoundError):
            files.cat_ranges(["absent"], 0, 4, on_error="raise")
        both = files.cat(files.find("tensors"))
        self.assertEqual(both, {"tensors/layers.0.bias": np.arange(4, dtype="f4").tobytes(), path: data})

    def test_nothing_is_written(self) -> None:
        files = self.files()
        for write in [
            lambda: files.open("tensors/new", "wb"), lambda: files.mkdir("new"), lambda: files.makedirs("a/b"),
            lambda: files.rm("tensors", recursive=True), lambda: files.rm_file("index.json"), lambda: files.touch("new"),
            lambda: files.pipe("new", b""), lambda: files.cp_file("index.json", "new"), lambda: files.mv("a", "b"),
            lambda: files.put_file("model.safetensors", "new"), lambda: files.rmdir("tensors"),
        ]:
            with self.assertRaises(OSError) as caught:
                write()
            self.assertEqual(caught.exception.errno, errno.EROFS)

    def test_errors(self) -> None:
        files = self.files()
        for read in [files.ls, files.info, files.cat_file, files.open]:
            with self.assertRaises(FileNotFoundError):
                read("tensors/absent")
        with self.assertRaises(IsADirectoryError):
            files.cat_file("tensors")
        with self.assertRaisesRegex(weightfs.Error, "absent.safetensors: No such file"):
            fsspec.filesystem("weightfs", source="absent.safetensors").ls("")
        with self.assertRaisesRegex(ValueError, "source is missing"):
            fsspec.filesystem("weightfs")
        with self.assertRaisesRegex(ValueError, "auto_mkdir"):
            fsspec.open("weightfs://index.json::file:///m.safetensors", file={"auto_mkdir": False}).open()

    def test_pickle_opens_the_same_version_only(self) -> None:
        pickled = pickle.dumps(self.files())
        WeightFileSystem.clear_instance_cache()
        read = """
import pickle, sys
sys.stdout.buffer.write(pickle.load(sys.stdin.buffer).cat_file("tensors/layers.0.bias"))
"""
        worker = lambda: subprocess.run([sys.executable, "-c", read], input=pickled, capture_output=True)
        done = worker()
        self.assertEqual((done.stdout, done.returncode), (np.arange(4, dtype="f4").tobytes(), 0), done.stderr)
        # The same size and another time.
        os.utime("model.safetensors", ns=(0, 1))
        done = worker()
        self.assertEqual((done.stdout, done.returncode), (b"", 1))
        self.assertIn(b"not the version that was opened first", done.stderr)
        with self.assertRaises(OSError) as caught:
            pickle.loads(pickled).ls("")
        self.assertEqual(caught.exception.errno, errno.ESTALE)

    def test_directory_of_several_models_has_no_version(self) -> None:
        os.mkdir("two")
        for name in "ab":
            shutil.copy("model.safetensors", f"two/{name}.safetensors")
        files = fsspec.filesystem("weightfs", source="two")
        self.assertEqual(files.ls("a/tensors", detail=False)[0], "a/tensors/layers.0.bias")
        with self.assertRaises(OSError) as caught:
            pickle.dumps(files)
        self.assertEqual(caught.exception.errno, errno.ENOTSUP)


class ProgramTest(Case):
    def test_module_runs_the_program(self) -> None:
        run = lambda *words: subprocess.run([sys.executable, "-m", "weightfs", *words], capture_output=True, text=True)
        self.assertEqual(run("--version").stdout, subprocess.check_output([weightfs.program(), "--version"], text=True))
        done = run("ls", "absent")
        self.assertEqual((done.returncode, done.stderr), (1, "weightfs: absent: No such file or directory\n"))


if __name__ == "__main__":
    unittest.main()
