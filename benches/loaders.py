"""Measures loaders of models on a mount beside the same files on the disk; scripts/bench --loaders installs them.

Each load runs in a process of its own, which has imported the loader before the time begins, and reads a byte of each
page of each tensor. The sum of these bytes must be the same everywhere. llama.cpp computes one token instead. It is
built from its source, so only `--only llama.cpp` measures it, with a real model in three splits, which a mount shows as
one file.
"""

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Tuple

WORK = Path("target/bench-loaders")

GGUF = Path(".cache/models/gemma-3-270m.gguf")
"""A real model, which scripts/test-data downloads."""

DEADLINE = 600
"""Seconds that one program may take."""

PAGE = 4096


class Loaded(NamedTuple):
    seconds: float
    checksum: int


def touch(tensors: Iterable[Any]) -> int:
    """The sum of a byte of each page of tensors of torch."""
    import torch

    return sum(int(tensor.detach().flatten().view(torch.uint8)[::PAGE].sum(dtype=torch.int64)) for tensor in tensors)


def touch_arrays(arrays: Iterable[Any]) -> int:
    """The same of NumPy arrays."""
    import numpy

    return sum(int(array.reshape(-1).view(numpy.uint8)[::PAGE].sum(dtype=numpy.int64)) for array in arrays)


# Each of these imports a loader and returns what loads the model in a folder and touches its tensors.


def by_load_file() -> Callable[[Path], int]:
    from safetensors.torch import load_file

    return lambda folder: touch(load_file(folder / "model.safetensors").values())


def by_safe_open(**options: Any) -> Callable[[Path], int]:
    from safetensors import safe_open

    def load(folder: Path) -> int:
        with safe_open(folder / "model.safetensors", "pt", **options) as file:
            return touch(file.get_tensor(name) for name in file.keys())

    return load


def by_bytes() -> Callable[[Path], int]:
    from safetensors.torch import load

    return lambda folder: touch(load((folder / "model.safetensors").read_bytes()).values())


def by_transformers(**options: Any) -> Callable[[Path], int]:
    import torch
    from transformers import AutoModelForCausalLM

    def load(folder: Path) -> int:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, **options)
        return touch(model.state_dict().values())

    return load


def by_fastsafetensors() -> Callable[[Path], int]:
    import torch
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    def load(folder: Path) -> int:
        loader = SafeTensorsFileLoader(SingleGroup(), torch.device("cpu"), nogds=True)
        loader.add_filenames({0: [str(folder / "model.safetensors")]})
        buffers = loader.copy_files_to_device()
        return touch(buffers.get_tensor(name) for name in list(buffers.key_to_rank_lidx))

    return load


def by_streamer() -> Callable[[Path], int]:
    from runai_model_streamer import SafetensorsStreamer

    def load(folder: Path) -> int:
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(str(folder / "model.safetensors"))
            return touch(tensor for _, tensor in streamer.get_tensors())

    return load


def by_mlx() -> Callable[[Path], int]:
    import mlx.core as mx

    # MLX reads when an array is used.
    def load(folder: Path) -> int:
        arrays = mx.load(str(folder / "model.safetensors")).values()
        return sum(int(array.flatten().view(mx.uint8)[::PAGE].astype(mx.uint64).sum().item()) for array in arrays)

    return load


def by_llama_cpp(direct: bool = False, **options: Any) -> Callable[[Path], int]:
    from llama_cpp import Llama, llama_cpp

    if direct:
        # The class has no option for it, and takes this mode if it does not map.
        llama_cpp.LLAMA_LOAD_MODE_NONE = llama_cpp.LLAMA_LOAD_MODE_DIRECT_IO

    def load(folder: Path) -> int:
        (path,) = folder.glob("*-whole.gguf")
        model = Llama(str(path), n_ctx=32, n_batch=1, n_threads=2, logits_all=True, verbose=False, **options)
        # The token that follows another one needs every weight.
        model.eval([2])
        return int(model.scores[0].argmax())

    return load


def by_numpy(**options: Any) -> Callable[[Path], int]:
    import numpy

    return lambda folder: touch_arrays(numpy.load(path, **options) for path in sorted(folder.iterdir()))


LOADERS: Dict[str, Callable[[], Callable[[Path], int]]] = {
    "safetensors load_file": by_load_file,
    "safetensors safe_open": by_safe_open,
    "safe_open, backend pread": lambda: by_safe_open(backend="pread"),
    "read() and safetensors load": by_bytes,
    "transformers": by_transformers,
    "transformers, no mapping": lambda: by_transformers(disable_mmap=True),
    "fastsafetensors, nogds": by_fastsafetensors,
    "Run:ai streamer": by_streamer,
    "MLX": by_mlx,
    "llama.cpp": by_llama_cpp,
    "llama.cpp, no mapping": lambda: by_llama_cpp(use_mmap=False),
    "llama.cpp, direct I/O": lambda: by_llama_cpp(direct=True, use_mmap=False),
    "numpy.load": by_numpy,
    "numpy.load, mapped": lambda: by_numpy(mmap_mode="r"),
}


LLAMA = "llama.cpp"
"""The beginning of the names of loaders of GGUF files."""


class Folders(NamedTuple):
    """Where loaders find a model."""

    hf: Path
    npy: Path
    gguf: Path

    def of_loader(self, name: str) -> Path:
        if name.startswith(LLAMA):
            return self.gguf
        return self.npy if name.startswith("numpy") else self.hf


def load_once(name: str, folder: Path) -> None:
    """Loads a model in this process, and prints the time and the sum."""
    load = LOADERS[name]()
    begin = time.perf_counter()
    checksum = load(folder)
    print(json.dumps(Loaded(time.perf_counter() - begin, checksum)))


def run(command: List[Any]) -> None:
    subprocess.run(command, check=True, timeout=DEADLINE, stdout=subprocess.DEVNULL)


def load_in_process(name: str, folders: Folders) -> Loaded:
    command = [sys.executable, __file__, "--load", name, str(folders.of_loader(name))]
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=DEADLINE)
    if process.returncode != 0:
        sys.exit(f"{name} has failed on {folders}:\n{process.stderr}")
    return Loaded(*json.loads(process.stdout.splitlines()[-1]))


def random_llama(size: int, dtype: Any) -> Any:
    """A random Llama of about `size` bytes. `dtype` is one of torch."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden = 2048
    # Four square matrices of attention, and three of the width `intermediate_size`.
    layer = dtype.itemsize * (4 * hidden * hidden + 3 * hidden * 4 * hidden)
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=max(1, size // layer),
        num_attention_heads=16,
        vocab_size=4096,
        architectures=["LlamaForCausalLM"],
        dtype=dtype,
    )
    torch.manual_seed(1)
    torch.set_default_dtype(dtype)
    return LlamaForCausalLM(config)


def make_model(weightfs: str, size: int, place: Path) -> None:
    """A random Llama of about `size` bytes in one file of float16 numbers, and its tensors as .npy files. They are
    kept."""
    if place.exists():
        return
    import torch

    unfinished = place.with_suffix(".unfinished")
    random_llama(size, torch.float16).save_pretrained(unfinished / "llama", max_shard_size="1TB")
    run([weightfs, "cp", unfinished / "llama", "npy", unfinished])
    unfinished.rename(place)


def make_splits(folder: Path) -> None:
    """The real model as one file, `model-whole.gguf`, and as splits in the folder `splits`. They are kept."""
    if folder.exists():
        return
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    unfinished = folder.with_suffix(".unfinished")
    (unfinished / "splits").mkdir(parents=True)
    shutil.copy(GGUF, unfinished / "model-whole.gguf")
    reader = GGUFReader(GGUF)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(unfinished / "splits/model.gguf", architecture, split_max_size=100_000_000)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind, inner = field.types[0], field.types[-1]
            array = inner if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, array)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(folder)


@contextmanager
def mounted(weightfs: str, source: Path) -> Iterator[Folders]:
    """The model in a folder, on a new mount."""
    with tempfile.TemporaryDirectory(dir=WORK) as place:
        mount = Path(place).absolute()
        run([weightfs, source, mount])
        try:
            yield Folders(mount / "export/hf", mount / "npy", mount / "export")
        finally:
            run([weightfs, "umount", mount])


def drop_caches() -> None:
    run(["sync"])
    Path("/proc/sys/vm/drop_caches").write_text("3")


def read_all(folder: Path) -> None:
    """Puts all files of a folder into the page cache."""
    for path in filter(Path.is_file, folder.iterdir()):
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


def measure(weightfs: str, name: str, native: Folders, cold: bool) -> Dict[str, Loaded]:
    """One load in each situation."""
    # Arrays are read from the file of the model there.
    source = native.gguf / "splits" if name.startswith(LLAMA) else native.hf
    found = {}
    if cold:
        drop_caches()
        found["native, cold"] = load_in_process(name, native)
        with mounted(weightfs, source) as mount:
            drop_caches()
            found["mount, cold"] = load_in_process(name, mount)
    read_all(native.of_loader(name))
    found["native"] = load_in_process(name, native)
    with mounted(weightfs, source) as mount:
        read_all(source)
        found["first"] = load_in_process(name, mount)
        found["again"] = load_in_process(name, mount)
    if len({loaded.checksum for loaded in found.values()}) != 1:
        sys.exit(f"{name} loads something else from a mount: {found}")
    return found


PAIRS: List[Tuple[str, str]] = [("native", "first"), ("native", "again"), ("native, cold", "mount, cold")]
"""What is compared: the files on the disk, and the mount."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench --loaders", description=__doc__)
    parser.add_argument("--size", type=int, default=1000, metavar="MB", help="size of the model (default: 1000)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: 3)")
    parser.add_argument("--cold", action="store_true", help="also with empty page caches; only for root")
    parser.add_argument("--only", default="", metavar="TEXT", help="only loaders whose names contain this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all times, in seconds")
    parser.add_argument("--weightfs", default="weightfs", help=argparse.SUPPRESS)
    parser.add_argument("--load", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        return load_once(options.load[0], Path(options.load[1]))
    # Nothing stays mounted.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    WORK.mkdir(parents=True, exist_ok=True)
    of_llama_cpp = options.only.startswith("llama")
    names = [name for name in LOADERS if options.only in name and name.startswith(LLAMA) == of_llama_cpp]
    place = WORK / f"{options.size}MB"
    native = Folders(place / "llama", place / "npy", WORK / "gguf")
    if of_llama_cpp:
        make_splits(native.gguf)
        size = GGUF.stat().st_size
    else:
        make_model(options.weightfs, options.size * 1_000_000, place)
        size = (native.hf / "model.safetensors").stat().st_size
    times: Dict[str, Dict[str, List[float]]] = {name: {} for name in names}
    for number in range(options.rounds):
        for name in names:
            print(f"\rround {number + 1} of {options.rounds}: {name:30}", end="", file=sys.stderr, flush=True)
            for situation, loaded in measure(options.weightfs, name, native, options.cold).items():
                times[name].setdefault(situation, []).append(loaded.seconds)
    print(f"\r{'':60}\r", end="", file=sys.stderr)
    print(f"{size / 1e6:.0f} MB, {options.rounds} rounds, medians; on a mount: ratio of throughputs to the disk")
    pairs = [pair for pair in PAIRS if options.cold or pair[0] == "native"]
    print(f"{'':28} {'native, GB/s':>12}" + "".join(f" {mount:>12}" for _, mount in pairs))
    for name, found in times.items():
        speed = size / 1e9 / statistics.median(found["native"])
        row = f"{name:28} {speed:12.2f}"
        for before, after in pairs:
            row += f" {statistics.median(a / b for a, b in zip(found[before], found[after])):12.2f}"
        print(row)
    if options.json:
        options.json.write_text(json.dumps({"bytes": size, "seconds": times}, indent=2) + "\n")


if __name__ == "__main__":
    main()
