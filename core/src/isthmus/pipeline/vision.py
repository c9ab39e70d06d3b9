"""Tiles go through the vision entry and come back as rows of image features."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..models.description import ImageSpec
from ..program import Program
from .contract import float_dtype


class VisionEncoder:
    """The vision entry with buffers of its own. Shared by all conversations, one at a time."""

    def __init__(self, program: Program, image: ImageSpec) -> None:
        entry = program.entry("vision")
        (pixels,), (features,) = entry.inputs, entry.outputs
        self._image = image
        self._lock = threading.Lock()
        self._pixels: NDArray[Any] = np.zeros(pixels.shape, float_dtype(pixels))
        self._features: NDArray[Any] = np.empty(features.shape, float_dtype(features))
        with ExitStack() as stack:
            self._input = stack.enter_context(program.device.allocate(pixels.nbytes, owner="vision"))
            self._output = stack.enter_context(program.device.allocate(features.nbytes, owner="vision"))
            binding = program.bind("vision", {pixels.name: self._input}, {features.name: self._output})
            self._binding = stack.enter_context(binding)
            self._open = stack.pop_all()

    def encode(self, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features, float32 [T * tokens_per_tile, hidden], of tiles, float32 [T, 3, size, size].

        The last execute is filled up with zero tiles where T is no multiple of the entry's.
        """
        per_call, tokens = self._image.tiles_per_call, self._image.tokens_per_tile
        out = np.empty((len(pixels) * tokens, self._features.shape[-1]), np.float32)
        with self._lock:
            for first in range(0, len(pixels), per_call):
                some = pixels[first : first + per_call]
                self._pixels[: len(some)] = some
                self._pixels[len(some) :] = 0
                self._input.write(self._pixels)
                self._binding.execute()
                self._output.read_into(self._features)
                rows = self._features[: len(some)].reshape(len(some) * tokens, -1)
                out[first * tokens : (first + len(some)) * tokens] = rows
        return out

    def close(self) -> None:
        """Free binding and buffers. Safe to call twice."""
        self._open.close()
