"""An array in a file that is read through a server. Requires NumPy."""

from __future__ import annotations

import io
import operator
from typing import Any, Iterator, NoReturn, Optional, Tuple

import numpy
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.lib.stride_tricks import as_strided

from ._server import Server

_BLOCK = 1 << 20
"""Size of the blocks in which an array is iterated over, in bytes."""


class ServedArray(NDArrayOperatorsMixin):
    """A read-only array whose elements are read when they are used.

    Indexing returns a NumPy array or a scalar, and reads the smallest range of bytes that has all selected elements:
    `a[2:5]` reads three rows, and `a[:, 0]` reads nearly everything. With arrays as indices, the range consists of
    whole rows. `numpy.asarray(a)`, arithmetic, and the attributes and methods of a NumPy array (`a.sum()`, `a.T`) read
    the whole array each time.

    It is not a `numpy.ndarray`: pass `numpy.asarray(a)` to functions that require one, such as `torch.from_numpy`.

    Raises `weightfs.Error` if the bytes cannot be read.
    """

    shape: Tuple[int, ...]
    dtype: numpy.dtype[Any]

    def __init__(self, server: Server, path: str, dtype: Any, shape: Tuple[int, ...], begin: int = 0) -> None:
        """The array that begins at byte `begin` of a file, in C order."""
        self._server = server
        self._path = path
        self._begin = begin
        self.dtype = numpy.dtype(dtype)
        self.shape = shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        size = 1
        for length in self.shape:
            size *= length
        return size

    @property
    def itemsize(self) -> int:
        """The size of an element in bytes."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The size of all elements in bytes."""
        return self.size * self.itemsize

    def __getitem__(self, key: Any) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        if any(isinstance(one, str) or isinstance(one, list) and one and isinstance(one[0], str) for one in keys):
            # Fields of records.
            return _frozen(self._read((...,))[key])
        if all(one is None or one is Ellipsis or isinstance(one, slice) or _is_integer(one) for one in keys):
            if any(one is Ellipsis for one in keys):
                return _frozen(self._read(keys))
            found = _frozen(self._read((*keys, ...)))
            return found[()] if found.ndim == 0 else found
        return self._read_rows(keys)

    def _read(self, keys: Tuple[Any, ...]) -> numpy.ndarray[Any, Any]:
        """The elements of integers and slices, of which one is an ellipsis: the result is a view, never a scalar."""
        # A view of memory that is never accessed gives the position of each selected element, and raises the errors of
        # NumPy.
        item = numpy.empty(1, numpy.dtype((numpy.void, self.itemsize)))
        strides = [self.itemsize] * self.ndim
        for axis in reversed(range(self.ndim - 1)):
            strides[axis] = strides[axis + 1] * self.shape[axis + 1]
        view = as_strided(item, self.shape, strides)[keys]
        if view.size == 0:
            return numpy.empty(view.shape, self.dtype)
        first = _address(view) - _address(item)
        steps = [(length - 1) * stride for length, stride in zip(view.shape, view.strides)]
        low = first + sum(step for step in steps if step < 0)
        high = first + sum(step for step in steps if step > 0) + self.itemsize
        buffer = numpy.empty(high - low, numpy.uint8)
        self._server.read_into(self._path, self._begin + low, buffer.data)
        found: numpy.ndarray[Any, Any] = numpy.ndarray(view.shape, self.dtype, buffer.data, first - low, view.strides)
        # A part of the buffer does not keep all of it in memory.
        return found if found.nbytes == buffer.nbytes else found.copy()

    def _read_rows(self, keys: Tuple[Any, ...]) -> Any:
        """The elements of keys that NumPy does not index by a view: whole rows are read, and indexed in memory."""
        first, others = keys[0], keys[1:]
        if self.shape and isinstance(first, slice):
            return self._read((first, ...))[(slice(None),) + others]
        rows = None if first is None or first is Ellipsis or not self.shape else numpy.asarray(first)
        if rows is not None and rows.dtype == bool and rows.shape == self.shape[:1]:
            (rows,) = rows.nonzero()
        if rows is not None and (rows.size == 0 or rows.dtype == bool and not rows.any() and rows.ndim == 0):
            # No element is selected, so any elements give the shape, or the errors of NumPy.
            return numpy.broadcast_to(numpy.zeros((), self.dtype), self.shape)[keys]
        if rows is None or rows.dtype.kind not in "iu":
            return self._read((...,))[keys]
        # Raises IndexError for a row that does not exist.
        numpy.broadcast_to(numpy.int8(0), self.shape[:1])[rows]
        # The type of the indices may be too small for the number of rows.
        rows = rows.astype(numpy.intp)
        rows = numpy.where(rows < 0, rows + self.shape[0], rows)
        low = int(rows.min())
        return self._read((slice(low, int(rows.max()) + 1), ...))[(rows - low,) + others]

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> numpy.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("the elements are not in memory, so they cannot be used without a copy")
        array = self._read((...,))
        if dtype is not None:
            array = array.astype(dtype, copy=False)
        return array if copy else _frozen(array)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        if any(isinstance(one, ServedArray) for one in out):
            _refuse_to_write()
        if out:
            options["out"] = out
        read = [_in_memory(one) for one in inputs]
        return getattr(ufunc, method)(*read, **{name: _in_memory(option) for name, option in options.items()})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(numpy.ndarray, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self[...], name)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        step = max(_BLOCK // max(self.nbytes // max(len(self), 1), 1), 1)
        return (row for begin in range(0, len(self), step) for row in self[begin : begin + step])

    def __contains__(self, item: object) -> bool:
        return item in self[...]

    def __bool__(self) -> bool:
        return bool(self[...])

    def __int__(self) -> int:
        return int(self[...])

    def __float__(self) -> float:
        return float(self[...])

    def __complex__(self) -> complex:
        return complex(self[...])

    def __index__(self) -> int:
        return operator.index(self[...])

    def __format__(self, form: str) -> str:
        return super().__format__(form) if self.shape else format(self[()], form)

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        _refuse_to_write()

    def __reduce__(self) -> Tuple[Any, ...]:
        """Pickles the elements, as of a NumPy array."""
        return numpy.asarray, (self[...],)

    def __repr__(self) -> str:
        return f"<weightfs array of {self._path!r}, shape {self.shape}, dtype {self.dtype}>"


def open_npy(server: Server, path: str) -> ServedArray:
    """The array of a `.npy` file of a mount. Reads the header."""
    # A header has at least 64 bytes. More could be bytes of the array, which would be fetched or dequantized.
    head = server.read(path, 0, 64)
    is_first = head[6] == 1
    begin = 10 + int.from_bytes(head[8:10], "little") if is_first else 12 + int.from_bytes(head[8:12], "little")
    file = io.BytesIO(head if begin <= len(head) else server.read(path, 0, begin))
    read_magic(file)
    shape, is_fortran, dtype = (read_array_header_1_0 if is_first else read_array_header_2_0)(file)
    assert not is_fortran, "files in a mount are in C order"
    return ServedArray(server, path, dtype, shape, begin)


def _is_integer(key: Any) -> bool:
    return isinstance(key, (int, numpy.integer)) and not isinstance(key, bool)


def _in_memory(value: Any) -> Any:
    return value[...] if isinstance(value, ServedArray) else value


def _frozen(array: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


def _refuse_to_write() -> NoReturn:
    raise ValueError("assignment destination is read-only")


def _address(array: numpy.ndarray[Any, Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
