"""Prints statistics of all tensors, counted by the executors of Spark: spark-submit spark_stats.py SOURCE [PARTS]

The output is that of `weightfs stats SOURCE --json`. Started with `python`, Spark runs on this machine. SOURCE must
have the same path on all machines. Spark runs a part again if its worker was killed; on one machine, it does so only
with a master such as `local[4,3]`, which tries each task up to three times.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext


def count(source: str, part: str) -> bytes:
    """The statistics of one part, as a text for `weightfs combine`."""
    counted = subprocess.run(["weightfs", "stats", source, "--json", "--part", part], capture_output=True)
    if counted.returncode != 0:
        raise RuntimeError(counted.stderr.decode())
    return counted.stdout


if __name__ == "__main__":
    spark = SparkContext.getOrCreate()
    source = os.path.abspath(sys.argv[1]) if os.path.exists(sys.argv[1]) else sys.argv[1]
    parts = int(sys.argv[2]) if len(sys.argv) > 2 else spark.defaultParallelism
    # One part in each partition: a partition is what Spark runs at once, and again after a failure.
    numbers = spark.parallelize(range(1, parts + 1), parts)
    counted = numbers.map(lambda part: count(source, f"{part}/{parts}")).collect()
    with tempfile.TemporaryDirectory() as directory:
        files = [Path(directory, f"{part}.part") for part in range(1, parts + 1)]
        for file, text in zip(files, counted):
            file.write_bytes(text)
        subprocess.run(["weightfs", "combine", *files], check=True)
