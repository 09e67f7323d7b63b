"""Kerchunk references, read by zarr-python, xarray, Dask and VirtualiZarr.

write DIR: writes models to DIR. check FORMAT REFERENCES MODEL...: compares all arrays of the references with what NumPy
or the safetensors package loads from the files of the model, and prints their number. xarray REFERENCES MODEL and dask
REFERENCES MODEL: the same for the arrays of a model without groups. virtual REFERENCES MODEL [ENDPOINT KEY SECRET]: the
same with VirtualiZarr, whose files are on this machine or in the bucket `models` of an S3 server.
"""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import zarr
from safetensors import deserialize
from safetensors.numpy import load_file, save_file

SMALL = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}
NUMBERS = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8"]


def filled(dtype, shape):
    """An array of random bytes; booleans are 0 or 1."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    octets = np.random.default_rng(size).integers(0, 2 if dtype == bool else 256, size, np.uint8)
    return octets.view(dtype).reshape(shape) if size else np.zeros(shape, dtype)


def write(directory):
    arrays = {f"model.types.{name.replace('?', 'bool')}": filled(name, (6, 4)) for name in NUMBERS}
    for name in SMALL.values():
        arrays[f"model.small.{name}"] = filled(getattr(ml_dtypes, name), (3, 8))
    for name, shape in {"scalar": (), "empty": (0, 3), "row": (1, 9), "cube": (4, 6, 5), "prime": (7, 3)}.items():
        arrays[f"shapes.{name}"] = filled("f4", shape)
    # Names that Zarr does not have, and tensors beside modules of the same name.
    odd = ["a", "a.b", "a.b.c", "c/d", r"e\f", "__g", "zarr.json", ".zgroup", ".zeta", "..", "", "重み.w", "100% {{x}}"]
    for name in odd:
        arrays[name] = filled("i2", (len(name) + 1, 3))
    directory = Path(directory)
    (directory / "a b#%20{{?").mkdir(parents=True)
    save_file(arrays, directory / "a b#%20{{?" / "m + #1.safetensors", {"chat_template": "{{ messages }} \u2028 \"'"})
    plain = {name: array for name, array in arrays.items() if name.startswith(("model.types", "shapes"))}
    save_file(plain, directory / "plain.safetensors")
    save_file({"long": filled("u1", (10_001, 1))}, directory / "long.safetensors")
    orders = {}
    for name in NUMBERS:
        name = name.replace("?", "bool")
        orders[f"fortran.{name}"] = np.asfortranarray(filled(name, (4, 6, 5)))
        orders[f"big.{name}"] = filled(np.dtype(name).newbyteorder(">"), (3, 4))
        orders[f"both.{name}"] = np.asfortranarray(filled(np.dtype(name).newbyteorder(">"), (7, 5)))
    np.savez(directory / "orders.npz", **orders)


def loaded(files):
    for file in files:
        if file.endswith(".npz"):
            yield from np.load(file).items()
            continue
        # load_file has no 8-bit floats.
        for name, entry in deserialize(Path(file).read_bytes()):
            kind = SMALL.get(entry["dtype"])
            kind = getattr(ml_dtypes, kind) if kind else entry["dtype"].replace("BOOL", "?").lower()
            kind = kind if entry["dtype"] in SMALL or kind == "?" else f"{kind[0]}{int(kind[1:]) // 8}"
            yield name, np.frombuffer(entry["data"], kind).reshape(entry["shape"])


def options(references):
    options = {"fo": references}
    # Files on servers are read by the event loop of zarr-python.
    if references.endswith(".json") and "://127." in Path(references).read_text():
        options["remote_options"] = {"asynchronous": True}
    return options


def zarr_format(references):
    """fsspec fails when it is asked for the files of format 3 in Parquet tables, which have format 2 only."""
    return {} if references.endswith(".json") else {"zarr_format": 2}


def bits(array):
    """The octets of an array in C order and little-endian order."""
    array = np.asarray(array)
    if array.dtype.kind in "iufc":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array.tobytes()


def check(version, references, *files):
    check_group(zarr.open_group("reference://", mode="r", storage_options=options(references), **zarr_format(references)), int(version), files)


def check_function(source, *files):
    import pickle

    import weightfs

    group = weightfs.zarr(source, chunks=16)
    check_group(group, 3, files)
    check_group(pickle.loads(pickle.dumps(group)), 3, files)
    name = next(name for name, _ in loaded(files))
    flat = weightfs.zarr(source, flat=True, options=["--only", name])
    assert [array.attrs["name"] for _, array in flat.members()] == [name]
    for arguments, kind, message in [
        ({"chunks": "16 eggs"}, weightfs.Error, "not a size"),
        ({"options": ["--only", "no such name"]}, weightfs.Error, "no such name"),
        ({"options": "--flat"}, TypeError, "a list of words"),
    ]:
        try:
            weightfs.zarr(source, **arguments)
        except kind as error:
            assert message in str(error), error
        else:
            raise AssertionError(arguments)


def check_group(root, version, files):
    assert root.metadata.zarr_format == version
    arrays = {array.attrs["name"]: array for _, array in root.members(max_depth=None) if isinstance(array, zarr.Array)}
    skipped = {entry["name"] for entry in root.attrs["skipped"]}
    count = 0
    for name, expected in loaded(files):
        if name in skipped:
            continue
        found = arrays.pop(name)
        expected = np.asarray(expected)
        assert found.shape == expected.shape, name
        assert bits(found[...]) == bits(expected), name
        small = "weightfs_dtype" in found.attrs
        kind = np.dtype(f"u{expected.itemsize}") if small else expected.dtype
        assert found.dtype.newbyteorder("=") == kind.newbyteorder("="), name
        if small:
            assert found.attrs["weightfs_dtype"] == found.attrs["dtype"]
            assert (found[...].view(expected.dtype).tobytes()) == expected.tobytes()
        count += 1
    assert not arrays, arrays
    for version in root.attrs["versions"]:
        if version["url"].startswith("file://"):
            assert Path(version["url"].removeprefix("file://")).stat().st_size == version["size"]
    print(count, len(skipped))


def check_xarray(references, file):
    import xarray

    dataset = xarray.open_dataset(
        "reference://",
        engine="zarr",
        chunks={},
        backend_kwargs={"storage_options": options(references), "consolidated": False, **zarr_format(references)},
    )
    expected = load_file(file)
    assert set(dataset.variables) == set(expected)
    for name, array in expected.items():
        assert bits(dataset[name].values) == bits(array), name
    print(len(expected))


def check_dask(references, file):
    import dask.array

    expected = load_file(file)
    for name, array in expected.items():
        found = dask.array.from_zarr(
            "reference://", component=name, storage_options=options(references), **zarr_format(references)
        )
        assert bits(found.compute()) == bits(array), name
    print(len(expected))


def check_virtual(references, file, endpoint=None, key=None, secret=None):
    import xarray
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore, S3Store
    from virtualizarr.parsers import KerchunkJSONParser, KerchunkParquetParser

    stores = {"file://": LocalStore()}
    if endpoint:
        stores["s3://models"] = S3Store(
            "models",
            endpoint=endpoint,
            region="us-east-1",
            access_key_id=key,
            secret_access_key=secret,
            client_options={"allow_http": True},
        )
    parser = KerchunkParquetParser() if references.endswith(".parquet") else KerchunkJSONParser()
    store = parser(url=f"file://{references}", registry=ObjectStoreRegistry(stores))
    dataset = xarray.open_zarr(store, consolidated=False, zarr_format=3)
    expected = load_file(file)
    assert set(dataset.variables) == set(expected)
    # VirtualiZarr 2.5.1 reads no scalars.
    del expected["shapes.scalar"]
    for name, array in expected.items():
        assert bits(dataset[name].values) == bits(array), name
    print(len(expected))


if __name__ == "__main__":
    actions = {
        "write": write,
        "check": check,
        "function": check_function,
        "xarray": check_xarray,
        "dask": check_dask,
        "virtual": check_virtual,
    }
    actions[sys.argv[1]](*sys.argv[2:])
