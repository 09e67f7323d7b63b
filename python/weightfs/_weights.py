"""The tensors of a model as NumPy arrays."""

from __future__ import annotations

import hashlib
import json
import os
import re
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, Iterator, Mapping, Optional, Sequence, Type

from ._mount import Error, Mount, Source

if TYPE_CHECKING:
    from pathlib import Path

    import numpy


class Weights(Mapping[str, "numpy.memmap[Any, Any]"]):
    """The tensors of a mounted model: a mapping from names to read-only arrays. Made by `open`."""

    def __init__(self, source: Source, *, options: Sequence[str] = ()) -> None:
        try:
            import numpy
        except ImportError as error:
            raise ImportError("weightfs.open needs NumPy: pip install numpy") from error
        self._load = numpy.load
        self._opened = (os.path.abspath(source) if os.path.exists(source) else source, list(options))
        self._mount = Mount(source, options=options)
        try:
            self._files, self._others = _names(self._mount.path, source, options)
        except BaseException:
            self._mount.close()
            raise

    @property
    def path(self) -> Path:
        """The mount point, until the weights are closed. It has all views, such as `metadata.json` and `stats/`."""
        return self._mount.path

    def close(self) -> None:
        """Unmounts the model. Arrays stay readable. The second call has no effect."""
        self._mount.close()

    def __getitem__(self, name: str) -> numpy.memmap[Any, Any]:
        file = self._files.get(name)
        if file is None:
            raise KeyError(self._others.get(name, name))
        if not self._mount._end.alive:
            raise ValueError("the weights are closed")
        array: numpy.memmap[Any, Any] = self._load(self._mount.path / "npy" / file, mmap_mode="r")
        return array

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    # Two mappings of arrays cannot be compared: the result of comparing two arrays has no truth value.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __enter__(self) -> Weights:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the source and the options. Another process that unpickles them opens the model again."""
        if not self._mount._end.alive:
            raise ValueError("the weights are closed")
        return _reopen, self._opened

    def __repr__(self) -> str:
        closed = "" if self._mount._end.alive else ", closed"
        return f"<weightfs.Weights of {len(self)} tensors at {str(self.path)!r}{closed}>"


def open(source: Source, *, options: Sequence[str] = ()) -> Weights:
    """Opens a model as a mapping from names of tensors to NumPy arrays.

    >>> with weightfs.open("model.safetensors") as weights:
    ...     for name, array in weights.items():
    ...         print(name, array.dtype, array.shape)
    layers.0.bias float32 (4,)
    layers.0.weight float32 (4, 3)

    The names are in the order of the data. Each array is a `numpy.memmap` of a file of the mount. It is read-only, and
    memory is used only for the pages that are read. Arrays have the dtype of the tensor if NumPy has it. BF16,
    floating-point types of 8 bits or less, the block types of GGUF and quantized weights become float32, and are
    converted when they are read. Quantized weights are dequantized, under their logical names and shapes. The option
    `--stored` shows their stored numbers.

    An array stays readable as long as it exists, also after `close` and if the weights are deleted, so this works:

    >>> float(weightfs.open("model.safetensors")["layers.0.bias"].sum())
    6.0

    The mount ends when the weights are closed and the last array is deleted, or when this process ends.

    source: a file, the index or the directory of one model, or a URL, as for the command `weightfs`.
    options: more options of `weightfs mount`, such as `["--lenient", "--stored"]`.

    Weights can be pickled, for instance to pass them to another process: that process opens the model again.

    Raises `Error`, which is an OSError, with the message of the command if the model cannot be mounted, or if the
    source is a directory of several models; ValueError if the options hide the files that this reads.
    `weights[name]` raises KeyError for an unknown name, and for a tensor whose dtype has no values that NumPy can
    show, such as I4; the message says where its bytes are. A read of an array whose file fails, or has been
    changed, ends the process by SIGBUS, as for any memory map.
    """
    return Weights(source, options=options)


def _reopen(source: Source, options: Sequence[str]) -> Weights:
    return Weights(source, options=options)


def _names(mount: Path, source: Source, options: Sequence[str]) -> tuple[Dict[str, str], Dict[str, str]]:
    """The files in `npy/` by the names of their tensors, and messages about tensors that have none."""
    try:
        index = json.loads((mount / "index.json").read_bytes())
        present = set(os.listdir(mount / "npy"))
    except FileNotFoundError as error:
        if any("views" in option for option in options):
            hidden = os.path.basename(error.filename)
            raise ValueError(f"the options hide {hidden}, which weightfs.open reads") from None
        raise Error(f"{os.fspath(source)}: not one model; open one of the models in it", 1) from None
    files: Dict[str, str] = {}
    others: Dict[str, str] = {}
    for tensor in index["tensors"]:
        stored = tensor["name"]
        # A quantized weight is shown under its logical name, unless its stored numbers are shown.
        for name in (tensor.get("quantization", tensor)["name"], stored):
            file = f"{_encode(name)}.npy"
            if file in present:
                files[name] = file
                break
        else:
            bytes_in = tensor["file"] and f"; its bytes are in {mount / tensor['file']}"
            others[stored] = f"{stored}: NumPy cannot show the dtype {tensor['dtype']}{bytes_in or ''}"
    return files, others


_ESCAPED = re.compile(r"[/%\x00-\x1f\x7f]")

_LONGEST = 240
"""The length of the longest file name of a tensor, in bytes, without the extension."""


def _encode(name: str) -> str:
    """The file name of a tensor, as docs/views.md describes it under "Names"."""
    if name in ("", ".", ".."):
        return "%2E" * len(name) or "%"
    units = [_ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", char) for char in name]
    encoded = "".join(units)
    if len(encoded.encode()) <= _LONGEST:
        return encoded
    end = "%~" + hashlib.sha256(name.encode()).hexdigest()[:16]
    begin, length = "", 0
    for unit in units:
        length += len(unit.encode())
        if length > _LONGEST - len(end):
            break
        begin += unit
    return begin + end
