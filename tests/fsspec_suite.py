"""fsspec's own tests for file systems, on `files/` of a model: those that copy files from it. tests/wheel runs it with
pytest.

The tests of fsspec also write the files that they copy. `ChangingFiles` writes them to the directory of the model, and
opens the source again, which is then another version. The other tests of fsspec are for file systems that can be written to.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest
from fsspec.tests.abstract import AbstractFixtures, AbstractGetTests  # type: ignore[import-untyped]
from safetensors.numpy import save_file

from weightfs._fsspec import WeightFileSystem


class ChangingFiles(WeightFileSystem):
    """A file system whose `files/` can be written to."""

    cachable = False

    def _changed(self, path: str) -> Path:
        if self._opened is not None:
            self._opened.close()
        self._opened = self._pinned = None
        return Path(self._source) / os.path.relpath(path, "files")

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:  # type: ignore[override]
        self._changed(path).mkdir(parents=create_parents)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:  # type: ignore[override]
        self._changed(path).mkdir(parents=True, exist_ok=exist_ok)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:  # type: ignore[override]
        self.pipe_file(path, b"")

    def pipe_file(self, path: str, value: bytes, **kwargs: Any) -> None:  # type: ignore[override]
        file = self._changed(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(value)

    def rm(self, path: str, recursive: bool = False, maxdepth: Any = None) -> None:  # type: ignore[override]
        shutil.rmtree(self._changed(path))


class WeightFixtures(AbstractFixtures):  # type: ignore[misc]
    @pytest.fixture
    def fs(self, tmp_path: Path) -> Iterator[ChangingFiles]:
        model = tmp_path / "model"
        model.mkdir()
        save_file({"w": np.zeros(2, np.float32)}, model / "model.safetensors")
        files = ChangingFiles(os.fspath(model))
        yield files
        files._changed("files")

    @pytest.fixture
    def fs_path(self) -> str:
        return "files"


class TestGet(WeightFixtures, AbstractGetTests):  # type: ignore[misc]
    pass
