"""Prints statistics of all tensors, counted by the workers of Ray: python ray_stats.py SOURCE [PARTS]

The output is that of `weightfs stats SOURCE --json`. Without an address in RAY_ADDRESS, Ray starts on this machine.
SOURCE must have the same path on all machines. Ray runs a part again if its worker was killed.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import ray


@ray.remote
def count(source: str, part: str) -> bytes:
    """The statistics of one part, as a text for `weightfs combine`."""
    counted = subprocess.run(["weightfs", "stats", source, "--json", "--part", part], capture_output=True)
    if counted.returncode != 0:
        raise RuntimeError(counted.stderr.decode())
    return counted.stdout


if __name__ == "__main__":
    # What Ray prints about its workers does not go among the statistics, which `weightfs combine` prints.
    sys.stdout = sys.stderr
    ray.init()
    source = os.path.abspath(sys.argv[1]) if os.path.exists(sys.argv[1]) else sys.argv[1]
    parts = int(sys.argv[2] if len(sys.argv) > 2 else ray.cluster_resources().get("CPU", 1))
    with tempfile.TemporaryDirectory() as directory:
        files = [Path(directory, f"{part}.part") for part in range(1, parts + 1)]
        for file, text in zip(files, ray.get([count.remote(source, f"{file.stem}/{parts}") for file in files])):
            file.write_bytes(text)
        subprocess.run(["weightfs", "combine", *files], check=True)
