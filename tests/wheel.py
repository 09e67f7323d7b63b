"""Tests of the Python package, run by tests/wheel with the Python of a clean virtual environment. Real mounts."""

import gc
import json
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any, Callable

import numpy as np
import safetensors.numpy
import weightfs

USER = """
import sys, time, weightfs
mount = weightfs.mount("model.safetensors")
print(mount.path, flush=True)
sys.stdin.read()
"""


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
    def test_arrays_are_those_of_the_file(self) -> None:
        expected = safetensors.numpy.load_file("model.safetensors")
        with weightfs.open("model.safetensors") as weights:
            self.assertEqual(list(weights), ["layers.0.bias", "layers.0.weight"])
            self.assertEqual(len(weights), 2)
            self.assertIn("layers.0.bias", weights)
            for absent in ("layers.1.bias", "", 5, None):
                self.assertNotIn(absent, weights)
            for name, array in weights.items():
                self.assertIsInstance(array, np.memmap)
                self.assertFalse(array.flags.writeable)
                np.testing.assert_array_equal(array, expected[name], strict=True)
            self.assertIn("2 tensors", repr(weights))
            with self.assertRaises(KeyError):
                weights["layers.1.bias"]
            self.assertIsNone(weights.get("layers.1.bias"))
        with self.assertRaises(ValueError):
            weights["layers.0.bias"]

    def test_arrays_outlive_the_weights(self) -> None:
        array = weightfs.open("model.safetensors")["layers.0.weight"]
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
        with weightfs.open("names.safetensors") as weights:
            self.assertEqual(set(weights), set(model))
            for name, expected in model.items():
                np.testing.assert_array_equal(weights[name], expected, strict=True)

    def test_dtypes_that_numpy_lacks(self) -> None:
        entry = lambda dtype, begin, end: {"dtype": dtype, "shape": [2], "data_offsets": [begin, end]}
        raw("other.safetensors", {"b": entry("BF16", 0, 4), "i": entry("I4", 4, 5)}, b"\x80\x3f\x00\xc0\x12")
        with self.assertLogs("weightfs", logging.WARNING):
            weights = weightfs.open("other.safetensors")
        with weights:
            self.assertEqual(list(weights), ["b"])
            np.testing.assert_array_equal(weights["b"], np.array([1, -2], np.float32), strict=True)
            with self.assertRaisesRegex(KeyError, f"i: NumPy cannot show the dtype I4; .*{weights.path}/tensors/i"):
                weights["i"]

    def test_quantized_weights_have_their_logical_names(self) -> None:
        os.mkdir("awq")
        shapes = {"a.qweight": [128, 8], "a.qzeros": [1, 8], "a.scales": [1, 64]}
        model = {name: np.zeros(shape, np.int32) for name, shape in shapes.items()}
        model["a.scales"] = np.ones(shapes["a.scales"], np.float16)
        safetensors.numpy.save_file(model, "awq/model.safetensors")
        config = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
        Path("awq/config.json").write_text(json.dumps({"quantization_config": config}))
        with weightfs.open("awq") as weights:
            self.assertEqual(set(weights), {"a.weight", "a.qzeros", "a.scales"})
            np.testing.assert_array_equal(weights["a.weight"], np.zeros((64, 128), np.float32), strict=True)
        with weightfs.open("awq", options=["--stored"]) as weights:
            self.assertEqual(set(weights), set(model))
            np.testing.assert_array_equal(weights["a.qweight"], model["a.qweight"], strict=True)

    def test_directory_of_models_is_refused(self) -> None:
        os.mkdir("many")
        for name in "ab":
            shutil.copy("model.safetensors", f"many/{name}.safetensors")
        with self.assertRaisesRegex(weightfs.Error, "many: not one model"):
            weightfs.open("many")

    def test_options_that_hide_what_is_read_are_refused(self) -> None:
        for views, hidden in [("tensors", "index.json"), ("index", "npy")]:
            with self.assertRaisesRegex(ValueError, f"the options hide {hidden}, which"):
                weightfs.open("model.safetensors", options=[f"--views={views}"])

    def test_pickled_weights_are_opened_again(self) -> None:
        with weightfs.open("model.safetensors") as weights:
            code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)['layers.0.bias'].sum())"
            said = subprocess.run(
                [sys.executable, "-c", code], input=pickle.dumps(weights), capture_output=True, cwd="/", check=True
            )
            self.assertEqual(said.stdout, b"6.0\n")
        with self.assertRaisesRegex(ValueError, "closed"):
            pickle.dumps(weights)
        with self.assertRaisesRegex(TypeError, "cannot be pickled"):
            pickle.dumps(weightfs.Mount("model.safetensors"))

    def test_errors_are_os_errors_and_the_version_is_that_of_the_program(self) -> None:
        with self.assertRaises(OSError):
            weightfs.open("absent")
        said = subprocess.run([weightfs.program(), "--version"], capture_output=True, text=True, check=True)
        self.assertEqual(said.stdout, f"weightfs {weightfs.__version__}\n")


class ProgramTest(Case):
    def test_module_runs_the_program(self) -> None:
        run = lambda *words: subprocess.run([sys.executable, "-m", "weightfs", *words], capture_output=True, text=True)
        self.assertEqual(run("--version").stdout, subprocess.check_output([weightfs.program(), "--version"], text=True))
        done = run("ls", "absent")
        self.assertEqual((done.returncode, done.stderr), (1, "weightfs: absent: No such file or directory\n"))


if __name__ == "__main__":
    unittest.main()
