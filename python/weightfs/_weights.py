"""The tensors of a model as NumPy arrays."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, Iterator, Mapping, NamedTuple, Optional, Sequence, Tuple, Type

from ._files import Files, open_files
from ._program import Error, Source

if TYPE_CHECKING:
    from pathlib import Path

    from ._files import Array


class TensorInfo(NamedTuple):
    """What a model says about a tensor: a line of `index.json`. Made by `Weights.info`."""

    name: str
    """The name in the model. A quantized weight also has a logical name, in `quantization`."""

    dtype: str
    """The stored dtype, such as `BF16` or `Q4_K`."""

    shape: Tuple[int, ...]
    """The stored shape, in elements."""

    nbytes: int
    """The size of the stored bytes."""

    file: Optional[str]
    """The file with the stored bytes, for `Weights.read`; None if the options hide it."""

    quantization: Optional[Dict[str, Any]]
    """How a quantized weight is stored, with its logical `name` and `shape`, as docs/quantization.md describes it; None
    for other tensors."""


class Weights(Mapping[str, "Array"]):
    """The tensors of a model: a mapping from names to read-only arrays. Made by `open`."""

    def __init__(
        self,
        source: Source,
        *,
        mounted: Optional[bool] = None,
        bfloat16: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        _require("numpy", "weightfs.open needs NumPy: pip install numpy")
        self._bfloat16: Any = None
        if bfloat16:
            self._bfloat16 = _require("ml_dtypes", "bfloat16=True needs ml_dtypes: pip install ml_dtypes").bfloat16
        absolute = os.path.abspath(source) if os.path.exists(source) else source
        self._opened = (absolute, mounted, bfloat16, list(options))
        self._metadata: Optional[Dict[str, Any]] = None
        self._closed = False
        self._files = open_files(source, mounted=mounted, options=options)
        try:
            self._index = _Index(self._files, source, bfloat16, options)
        except BaseException:
            self._files.close()
            raise

    @property
    def path(self) -> Path:
        """The mount point, until the weights are closed. It has all views, such as `metadata.json` and `stats/`.

        Raises ValueError if the model is not mounted.
        """
        if self._files.mount is None:
            raise ValueError("the weights are not mounted; use read, or open them with mounted=True")
        return self._files.mount.path

    @property
    def mounted(self) -> bool:
        """Whether arrays are memory maps of a mount."""
        return self._files.mount is not None

    @property
    def metadata(self) -> Dict[str, Any]:
        """The metadata of the model: `metadata.json`. It is read once. Raises FileNotFoundError if the options hide it."""
        if self._metadata is None:
            self._metadata = json.loads(self.read("metadata.json"))
        return self._metadata

    def info(self, name: str) -> TensorInfo:
        """Returns the stored dtype and shape of a tensor, without opening its array.

        name: a name of an array, or of a stored tensor, also of one that NumPy cannot show. Raises KeyError if there
        is none.
        """
        return self._index.tensors[name]

    def read(self, path: str) -> bytes:
        """Returns the bytes of a file of a mount, such as `stats/NAME.json`, mounted or not.

        Raises FileNotFoundError if there is none, another OSError if it cannot be read.
        """
        self._check_open()
        if any(name in ("", ".", "..") for name in path.split("/")):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._files.read(path)

    def close(self) -> None:
        """Unmounts the model, or ends its server. Arrays stay readable. The second call has no effect."""
        self._closed = True
        self._files.close()

    def __getitem__(self, name: str) -> Array:
        file = self._index.arrays.get(name)
        if file is None:
            raise KeyError(self._index.others.get(name, name))
        self._check_open()
        tensor = self._index.tensors[name]
        if self._bfloat16 is not None and _is_bfloat16(tensor):
            return self._files.raw(tensor.file or "", self._bfloat16, tensor.shape)
        return self._files.npy(f"npy/{file}")

    def __contains__(self, name: object) -> bool:
        return name in self._index.arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._index.arrays)

    def __len__(self) -> int:
        return len(self._index.arrays)

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

    def __reduce__(self) -> Tuple[Any, ...]:
        """Pickles the arguments of `open`. Another process that unpickles them opens the model again."""
        self._check_open()
        return _reopen, self._opened

    def __repr__(self) -> str:
        place = f"at {str(self.path)!r}" if self.mounted else "without a mount"
        return f"<weightfs.Weights of {len(self)} tensors {place}{', closed' if self._closed else ''}>"

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the weights are closed")


def open(
    source: Source,
    *,
    mounted: Optional[bool] = None,
    bfloat16: bool = False,
    options: Sequence[str] = (),
) -> Weights:
    """Opens a model as a mapping from names of tensors to NumPy arrays.

    >>> with weightfs.open("model.safetensors") as weights:
    ...     for name, array in weights.items():
    ...         print(name, array.dtype, array.shape)
    layers.0.bias float32 (4,)
    layers.0.weight float32 (4, 3)

    The names are in the order of the data. Arrays are read-only, and have the dtype of the tensor if NumPy has it.
    BF16, floating-point types of 8 bits or less, the block types of GGUF and quantized weights become float32, and are
    converted when they are read. Quantized weights are dequantized, under their logical names and shapes. The option
    `--stored` shows their stored numbers.

    With a mount, each array is a `numpy.memmap` of a file of the mount. Memory is used only for the pages that are
    read. Without one, as in most containers, each array has the shape, the dtype and the methods of a NumPy array, and
    an index reads what it selects, through a process that serves this one:

    >>> weights = weightfs.open("model.safetensors", mounted=False)
    >>> weights["layers.0.weight"][1:3]
    array([[3., 4., 5.],
           [6., 7., 8.]], dtype=float32)
    >>> weights.info("layers.0.weight").shape, weights.metadata
    ((4, 3), {})

    Such an array is not a `numpy.ndarray`. `numpy.asarray(array)` is one in both cases: pass it to functions that
    require one, such as `torch.from_numpy`. An array stays readable as long as it exists, also after
    `close` and if the weights are deleted, so this works:

    >>> float(weightfs.open("model.safetensors")["layers.0.bias"].sum())
    6.0

    The mount or the process ends when the weights are closed and the last array is deleted, or when this process ends.

    source: a file, the index or the directory of one model, or a URL, as for the command `weightfs`.
    mounted: True to mount; False not to mount; None to mount if /dev/fuse can be opened, and if this process has
        CAP_SYS_ADMIN or there is the program `fusermount3`.
    bfloat16: True to show BF16 tensors with their stored bytes and the dtype `ml_dtypes.bfloat16`.
    options: more options of the command, such as `["--lenient", "--stored"]`. Options that concern the mount itself
        need a mount.

    Weights can be pickled, for instance to pass them to another process: that process opens the model again. A forked
    process can use the arrays of its parent as long as the parent runs.

    Raises `Error`, which is an OSError, with the message of the command if the model cannot be opened, or if the
    source is a directory of several models; ValueError if the options hide the files that this reads; ImportError if
    NumPy or ml_dtypes is missing. `weights[name]` raises KeyError for an unknown name, and for a tensor whose dtype has
    no values that NumPy can show, such as I4; the message says how to get its bytes. If the file of an array fails, or
    has been changed, a read raises `Error`; with a mount, it ends the process by SIGBUS, as for any memory map.
    """
    return Weights(source, mounted=mounted, bfloat16=bfloat16, options=options)


def _reopen(source: Source, mounted: Optional[bool], bfloat16: bool, options: Sequence[str]) -> Weights:
    return Weights(source, mounted=mounted, bfloat16=bfloat16, options=options)


def _require(module: str, otherwise: str) -> Any:
    try:
        return __import__(module)
    except ImportError as error:
        raise ImportError(otherwise) from error


class _Index:
    """What `index.json` and the names in `npy/` say about the tensors of a model."""

    def __init__(self, files: Files, source: Source, bfloat16: bool, options: Sequence[str]) -> None:
        try:
            index = json.loads(files.read("index.json"))
            present = set(files.names("npy"))
        except FileNotFoundError as error:
            if any("views" in option for option in options):
                raise _hidden(os.path.basename(error.filename)) from None
            raise Error(f"{os.fspath(source)}: not one model; open one of the models in it", 1) from None
        self.tensors: Dict[str, TensorInfo] = {}
        """All tensors, by their names and, if they are quantized, by their logical names too."""
        self.arrays: Dict[str, str] = {}
        """The files in `npy/` by the names of their tensors."""
        self.others: Dict[str, str] = {}
        """Messages about tensors that have no such file."""
        for line in index["tensors"]:
            stored, quantization = line["name"], line.get("quantization")
            tensor = TensorInfo(stored, line["dtype"], tuple(line["shape"]), line["nbytes"], line["file"], quantization)
            self.tensors[stored] = tensor
            if bfloat16 and _is_bfloat16(tensor) and tensor.file is None:
                raise _hidden("tensors")
            # A quantized weight is shown under its logical name, unless its stored numbers are shown.
            for name in (quantization["name"] if quantization else stored, stored):
                file = f"{_encode(name)}.npy"
                if file in present:
                    self.arrays[name] = file
                    self.tensors[name] = tensor
                    break
            else:
                bytes_in = f"; read({tensor.file!r}) returns its bytes" if tensor.file else ""
                self.others[stored] = f"{stored}: NumPy cannot show the dtype {tensor.dtype}{bytes_in}"


def _is_bfloat16(tensor: TensorInfo) -> bool:
    return tensor.dtype == "BF16" and tensor.quantization is None


def _hidden(name: str) -> ValueError:
    return ValueError(f"the options hide {name}, which weightfs.open reads")


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
