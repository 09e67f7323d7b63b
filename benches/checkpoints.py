"""Measures the conversion of checkpoints of training beside the programs of their frameworks; scripts/bench
--checkpoints installs them.

Each program converts a whole checkpoint to one file, or reads one tensor of it, in a process of its own and with empty
page caches. The programs of the frameworks are timed after they have imported their modules, weightfs from its start.
All give the same bytes.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from loaders import drop_caches, random_llama

WORK = Path("target/bench-checkpoints")

DEADLINE = 900
"""Seconds that one program may take."""

RANKS = 4
"""Processes that write a checkpoint."""

TENSOR = "model.layers.0.mlp.up_proj.weight"
"""The tensor that is read alone: a matrix in the middle of the file of each process."""


class Run(NamedTuple):
    seconds: float
    memory: int
    """The peak of the memory of the process that is no file, in bytes."""
    read: int
    """Bytes that were read from the disk."""


# How the frameworks convert a checkpoint. Each of these imports what it needs and returns the conversion.


def dcp_whole() -> Callable[[Path, Path], None]:
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    return lambda source, target: dcp_to_torch_save(source, target)


def dcp_one() -> Callable[[Path, Path], None]:
    import torch
    import torch.distributed.checkpoint as dcp

    def read(source: Path, target: Path) -> None:
        metadata = dcp.FileSystemReader(source).read_metadata().state_dict_metadata[TENSOR]
        state = {TENSOR: torch.empty(metadata.size, dtype=metadata.properties.dtype)}
        dcp.load(state, checkpoint_id=source, no_dist=True)
        torch.save(state[TENSOR], target)

    return read


def zero_whole() -> Callable[[Path, Path], None]:
    import torch
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    # What the script itself does, in one file.
    def convert(source: Path, target: Path) -> None:
        torch.save(get_fp32_state_dict_from_zero_checkpoint(source), target)

    return convert


def zero_one() -> Callable[[Path, Path], None]:
    import torch
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    def read(source: Path, target: Path) -> None:
        state = get_fp32_state_dict_from_zero_checkpoint(source, lazy_mode=True)
        torch.save(state[TENSOR].contiguous(), target)

    return read


def verl_whole() -> Callable[[Path, Path], None]:
    from verl.model_merger.base_model_merger import ModelMergerConfig
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger

    def convert(source: Path, target: Path) -> None:
        config = ModelMergerConfig(
            operation="merge",
            backend="fsdp",
            local_dir=str(source),
            hf_model_config_path=str(source / "huggingface"),
            target_dir=str(target),
        )
        FSDPModelMerger(config).merge_and_save()

    return convert


CONVERSIONS: Dict[str, Callable[[], Callable[[Path, Path], None]]] = {
    "dcp whole": dcp_whole,
    "dcp one": dcp_one,
    "zero whole": zero_whole,
    "zero one": zero_one,
    "verl whole": verl_whole,
}


def convert_here(name: str, source: Path, target: Path) -> None:
    """Converts in this process, and says when it begins and ends."""
    convert = CONVERSIONS[name]()
    print("begin", flush=True)
    sys.stdin.readline()
    convert(source, target)
    print("end", flush=True)
    sys.stdin.readline()


def anonymous(pid: int) -> int:
    """Bytes of the memory of a process that no file backs."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


class MemoryWatch:
    """Takes the peak of the memory of a process, every 5 ms."""

    def __init__(self, pid: int):
        self.peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(pid,))
        self._thread.start()

    def _watch(self, pid: int) -> None:
        while not self._ended.wait(0.005):
            self.peak = max(self.peak, anonymous(pid))

    def end(self) -> int:
        self._ended.set()
        self._thread.join()
        return self.peak


def bytes_read(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def run_framework(name: str, source: Path, target: Path) -> Run:
    command = [sys.executable, __file__, "--convert", name, str(source), str(target)]
    log = WORK / "log"
    with open(log, "w") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        guard = threading.Timer(DEADLINE, process.kill)
        guard.start()

        def wait_for(word: str) -> None:
            for line in process.stdout:
                if line.strip() == word:
                    return
            sys.exit(f"{name} has failed:\n{log.read_text()}")

        wait_for("begin")
        # Modules that were imported stay mapped, so they are not counted.
        drop_caches()
        before = bytes_read(process.pid)
        watch = MemoryWatch(process.pid)
        begin = time.perf_counter()
        process.stdin.write("\n")
        process.stdin.flush()
        wait_for("end")
        seconds = time.perf_counter() - begin
        found = Run(seconds, watch.end(), bytes_read(process.pid) - before)
        process.communicate("\n")
        guard.cancel()
    return found


def run_weightfs(command: List[Any], output: Optional[Path]) -> Run:
    drop_caches()
    with open(output or os.devnull, "wb") as file:
        begin = time.perf_counter()
        process = subprocess.Popen([str(part) for part in command], stdout=file, stderr=subprocess.PIPE)
        watch = MemoryWatch(process.pid)
        # A child that has ended and was not waited for still has its counters.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        seconds = time.perf_counter() - begin
        found = Run(seconds, watch.end(), bytes_read(process.pid))
        _, errors = process.communicate()
    if process.returncode != 0:
        sys.exit(f"{command} has failed:\n{errors.decode()}")
    return found


# Checkpoints, written by the frameworks.


def write_rank(rank: int, kind: str, place: Path, size: int) -> None:
    """Writes what one process writes of a checkpoint."""
    import torch
    import torch.distributed as dist

    world = 2 if kind == "zero" else RANKS
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    if kind == "zero":
        import deepspeed

        model = random_llama(size // 2, torch.bfloat16)
        options = {
            "train_batch_size": world,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 2},
            "zero_force_ds_cpu_optimizer": False,
        }
        deepspeed.init_distributed(dist_backend="gloo")
        optimizer = torch.optim.AdamW(model.parameters())
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=options)
        engine.save_checkpoint(str(place), tag="global_step1")
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    model = random_llama(size, torch.bfloat16)
    state = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in model.state_dict().items()}
    if kind == "dcp":
        import torch.distributed.checkpoint as dcp

        dcp.save(state, checkpoint_id=place)
    else:
        torch.save(state, place / f"model_world_size_{world}_rank_{rank}.pt")
        if rank == 0:
            from tokenizers import Tokenizer, models
            from transformers import PreTrainedTokenizerFast

            # The merger copies a tokenizer.
            words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
            PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(place / "huggingface")
            model.config.save_pretrained(place / "huggingface")
            model.generation_config.save_pretrained(place / "huggingface")
            (place / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world}))
    dist.destroy_process_group()


def make_checkpoint(kind: str, size: int) -> Path:
    """A checkpoint whose tensors have about `size` bytes. It is kept."""
    place = WORK / f"{kind}-{size // 1_000_000}MB"
    if place.exists():
        return place
    import torch.multiprocessing as processes

    unfinished = place.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    os.environ["MASTER_PORT"] = "29517"
    processes.spawn(write_rank, (kind, unfinished, size), nprocs=2 if kind == "zero" else RANKS)
    unfinished.rename(place)
    return place


def state_of(target: Path) -> Dict[str, Any]:
    """The tensors that a conversion has written."""
    import torch
    from safetensors.torch import load_file

    if target.is_dir():
        return {name: value for file in target.glob("*.safetensors") for name, value in load_file(file).items()}
    if target.suffix == ".safetensors":
        return load_file(target)
    return torch.load(target, mmap=True)


def check_equal(name: str, target: Path, own: Path) -> None:
    """Exits if the tensors of two conversions differ. The merger of verl leaves out a tied output layer."""
    import torch

    theirs, ours = state_of(target), state_of(own)
    unlike = [key for key, value in theirs.items() if key not in ours or not torch.equal(value, ours[key])]
    if unlike or len(theirs) != len(ours):
        sys.exit(f"{name}: other tensors than weightfs: {unlike[:3]}, {len(theirs)} and {len(ours)}")


class Kind(NamedTuple):
    title: str
    whole: str
    """The program of the framework that converts all."""
    one: str
    """The one that reads a tensor."""


KINDS = {
    "dcp": Kind("DCP", "dcp_to_torch_save", "dcp.load"),
    "zero": Kind("ZeRO 2", "zero_to_fp32", "zero_to_fp32, lazy_mode"),
    "verl": Kind("FSDP ranks", "verl.model_merger", "verl.model_merger, all"),
}


def measure(weightfs: str, kind: str, size: int) -> Dict[str, Run]:
    """One run of each program."""
    source = make_checkpoint(kind, size)
    title, whole, one = KINDS[kind]
    found = {}
    with tempfile.TemporaryDirectory(dir=WORK) as name:
        place = Path(name)
        own, theirs = place / "own.safetensors", place / ("merged" if kind == "verl" else "converted.pt")
        found[f"{title}, all: weightfs export"] = run_weightfs([weightfs, "export", source, own], None)
        found[f"{title}, all: {whole}"] = everything = run_framework(f"{kind} whole", source, theirs)
        check_equal(kind, theirs, own)
        own, theirs = place / "own", place / "tensor.pt"
        found[f"{title}, one: weightfs cat"] = run_weightfs([weightfs, "cat", source, f"tensors/{TENSOR}"], own)
        if kind == "verl":
            # It has no other way.
            found[f"{title}, one: {one}"] = everything
            return found
        found[f"{title}, one: {one}"] = run_framework(f"{kind} one", source, theirs)
        import torch

        tensor = torch.load(theirs)
        if tensor.contiguous().view(torch.uint8).numpy().tobytes() != own.read_bytes():
            sys.exit(f"{kind}: another tensor than weightfs reads")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench --checkpoints", description=__doc__)
    parser.add_argument("--size", type=int, default=2000, metavar="MB", help="bytes of the tensors (default: 2000)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: 3)")
    parser.add_argument("--only", default="", metavar="KIND", help=f"one of {', '.join(KINDS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, in seconds and bytes")
    parser.add_argument("--weightfs", default="weightfs", help=argparse.SUPPRESS)
    parser.add_argument("--convert", nargs=3, metavar=("NAME", "SOURCE", "TARGET"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.convert:
        name, source, target = options.convert
        return convert_here(name, Path(source), Path(target))
    if os.geteuid() != 0:
        sys.exit("only root can empty the page cache")
    WORK.mkdir(parents=True, exist_ok=True)
    runs: Dict[str, List[Run]] = {}
    for kind in [kind for kind in KINDS if options.only in kind]:
        for number in range(options.rounds):
            title = KINDS[kind].title
            print(f"\rround {number + 1} of {options.rounds}: {title:30}", end="", file=sys.stderr, flush=True)
            for name, run in measure(options.weightfs, kind, options.size * 1_000_000).items():
                runs.setdefault(name, []).append(run)
    print(f"\r{'':60}\r", end="", file=sys.stderr)
    print(f"about {options.size} MB, empty page caches, medians of {options.rounds}")
    print(f"{'':40} {'time, s':>9} {'memory, MB':>11} {'read, MB':>9}")
    for name, every in runs.items():
        seconds, memory, read = (statistics.median(values) for values in zip(*every))
        print(f"{name:40} {seconds:9.2f} {memory / 1e6:11.0f} {read / 1e6:9.0f}")
    if options.json:
        options.json.write_text(json.dumps(runs, indent=2) + "\n")


if __name__ == "__main__":
    main()
