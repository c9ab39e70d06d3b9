"""Token ids become rows of the embedding table, which stays on disk and is mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import IncompatibleError, InputError, IntegrityError
from ..models.description import EmbeddingSpec

_STORED = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


class EmbeddingTable:
    """A row-major table [rows, hidden]; only the rows asked for are ever read."""

    def __init__(self, path: Path, spec: EmbeddingSpec, hidden: int, vocab: int) -> None:
        """``vocab`` is how many ids the model may pick."""
        if spec.dtype not in _STORED:
            raise IncompatibleError(f"embedding table of dtype {spec.dtype!r}; known: {', '.join(_STORED)}")
        size, row = path.stat().st_size, hidden * np.dtype(_STORED[spec.dtype]).itemsize
        if not size or size % row:
            raise IntegrityError(
                f"{path} has {size} bytes, which is no number of rows of {row} ({hidden} {spec.dtype})"
            )
        mapped = np.memmap(path, _STORED[spec.dtype], "r").reshape(-1, hidden)
        self._table: NDArray[Any] = np.asarray(mapped)  # indexing the subclass is several times slower
        self._widen = spec.dtype == "bfloat16"
        if self.rows < vocab:
            raise IncompatibleError(f"{path} has {self.rows} rows; the model picks among {vocab} tokens")

    @property
    def rows(self) -> int:
        """Number of token ids it knows."""
        return len(self._table)

    def look_up(self, ids: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Write the rows of ``ids`` [n], which are not negative, into ``out`` [n, hidden], cast to its dtype."""
        try:
            found = self._table[ids]
        except IndexError as error:
            raise InputError(
                f"token id {ids.max()} is outside the embedding table of {self.rows} rows",
                why="the tokenizer and the weights do not belong together",
            ) from error
        out[...] = (found.astype(np.uint32) << 16).view(np.float32) if self._widen else found
