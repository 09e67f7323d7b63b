"""Writes the Parquet files in this directory, with the columns and the compression that Spark uses.

    python write.py      requires pyarrow
"""

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

UUID = "0e8b1f5c-1d6e-4f0a-9f5e-0123456789ab"
SCHEMA = pa.schema(
    [
        pa.field("tensor_key", pa.string(), nullable=False),
        pa.field("file_name", pa.string(), nullable=False),
        pa.field("shape", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
        pa.field("dtype", pa.string(), nullable=False),
    ]
)


def rows(shard):
    file = f"part-0000{shard}-0000-{UUID}.safetensors"
    return [("images", file, [4, 3], "U8"), ("labels", file, [4], "I64"), ("scores", file, [4], "F32")]


def write(name, rows, **options):
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows), SCHEMA)]
    table = pa.table(columns, schema=SCHEMA)
    parquet.write_table(table, Path(__file__).parent / name, **options)


if __name__ == "__main__":
    write("first.snappy.parquet", rows(0), compression="snappy")
    write("second.parquet", rows(1), compression="none", use_dictionary=False)
    write("second.zstd.parquet", rows(1), compression="zstd")
