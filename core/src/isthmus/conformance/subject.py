"""The backend under test: its device, opened when first needed, and its artifacts, compiled when first needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import attrs
import pytest

from .. import api
from ..artifact import Artifact
from ..device import Device
from ..errors import InputError, IsthmusError, UnavailableError
from ..graphset import GraphSet
from ..spi import Backend
from ..types import DeviceInfo
from .cases import CASES, Case
from .options import UNAVAILABLE

BY_NAME = {case.name: case for case in CASES}


@attrs.define
class Subject:
    """Everything a test may ask of the backend, through the public API."""

    backend: Backend
    device_name: str | None
    target_name: str | None
    options: Mapping[str, str]
    device_options: Mapping[str, str]
    ready: Path | None
    """Artifacts made elsewhere."""
    work: Path
    _device: Device | None = None
    _was_open: bool = False
    _made: dict[str, Artifact | IsthmusError] = attrs.field(factory=dict)

    @property
    def name(self) -> str:
        """Name of the backend."""
        return self.backend.info.name

    def open(self) -> Device:
        """Open the device afresh. Skips the test if there is none here, and only if it never was."""
        try:
            device = api.open_device(
                f"{self.name}:{self.device_name}" if self.device_name else self.name, options=self.device_options
            )
        except UnavailableError as error:
            if self._was_open:
                raise
            skip(error)
        self._was_open = True
        return device

    def device(self) -> Device:
        """A device that tests share; a new one if a test closed or lost it."""
        if self._device is None or self._device.closed:
            self._device = self.open()
        return self._device

    def close(self) -> None:
        """Close the shared device."""
        if self._device is not None:
            self._device.close()

    def target(self, info: DeviceInfo) -> str:
        """What to compile for."""
        return self.target_name or info.targets[0]

    def compile(self, source: GraphSet | Path, out: Path, target: str) -> Artifact:
        """Compile with the options under test."""
        return api.compile(self.name, source, out, target=target, options=self.options)

    def artifact(self, case: Case, target: str) -> Artifact:
        """The compiled case. Skips the test where the compiler is not installed."""
        if self.ready:
            return _made_elsewhere(self.ready / case.name, case)
        if case.name not in self._made:
            try:
                self._made[case.name] = self._compile(case, target)
            except IsthmusError as error:
                self._made[case.name] = error
        found = self._made[case.name]
        if isinstance(found, UnavailableError):
            skip(found)
        if isinstance(found, IsthmusError):
            raise found
        return found

    def _compile(self, case: Case, target: str) -> Artifact:
        if not self.backend.targets():
            raise UnavailableError(
                f"backend {self.name} has no compiler here",
                fix="python -m isthmus.conformance build DIR elsewhere, then --artifacts DIR",
            )
        from .cases.build import write

        graphs = write(case, self.backend.dialect(target), self.work / "graphs" / case.name)
        return self.compile(graphs, self.work / "artifacts" / case.name, target)


def _made_elsewhere(path: Path, case: Case) -> Artifact:
    artifact = Artifact.open(path)
    if artifact.manifest.source_sha256 != case.fingerprint:
        raise InputError(
            f"{path} was made by another version of the suite",
            fix="python -m isthmus.conformance build DIR, with the version installed here",
        )
    return artifact


def skip(error: UnavailableError) -> NoReturn:
    """The one reason to skip."""
    pytest.skip(UNAVAILABLE + " ".join(str(error).split()))


def make(config: pytest.Config, backend: Backend, work: Path, pairs: Any) -> Subject:
    """The subject of a pytest run."""
    ready = config.getoption("--isthmus-artifacts")
    return Subject(
        backend,
        config.getoption("--isthmus-device"),
        config.getoption("--isthmus-target"),
        pairs(config.getoption("--isthmus-option")),
        pairs(config.getoption("--isthmus-device-option")),
        Path(ready) if ready else None,
        work,
    )
