"""``python -m isthmus_cpu_ref.measure DIRECTORY '{"ENTRY": PACKED}'``: print the scratch each entry keeps, as JSON.

A process of its own, because memory can only be seen whole. Weights are mapped, so it takes little more than the scratch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnxruntime as ort
from isthmus.types import Pages

from .graph import entry_file
from .memory import HostBuffer, allocate
from .session import FAILURES, bind_arguments, open_session, session_options, tensor_spec, use_weights
from .weights import map_weights


class Run:
    """A session over zeros. Kept until the process ends, so that no later one finds memory it has freed."""

    def __init__(self, directory: Path, entry: str, *, packed: bool) -> None:
        options = session_options(packed=packed)
        self.weights = map_weights(directory)
        use_weights(options, self.weights)
        self.session = open_session(directory / entry_file(entry), options)
        self.io = self.session.io_binding()
        self.buffers = [self._bind(self.io.bind_input, value) for value in self.session.get_inputs()]
        self.buffers += [self._bind(self.io.bind_output, value) for value in self.session.get_outputs()]

    def _bind(self, bind: ort.IOBinding, value: ort.NodeArg) -> HostBuffer:
        spec = tensor_spec(value)
        if spec is None:
            raise ValueError(f"{value.name} has no fixed shape")
        buffer: HostBuffer = allocate(max(1, spec.nbytes), Pages.NORMAL, 64).handle
        buffer.bytes[:] = bytes(len(buffer.bytes))  # touched now, so that the run does not
        bind(*bind_arguments(spec), buffer.address)
        return buffer

    def scratch(self) -> int:
        """Bytes of anonymous memory that two runs leave behind in the session's arena."""
        before = _anonymous()
        for _ in range(2):
            self.session.run_with_iobinding(self.io)
        return max(0, _anonymous() - before)


def _anonymous() -> int:
    """Resident bytes of this process that are not file pages."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def main(directory: Path, entries: dict[str, bool]) -> dict[str, int | str]:
    """Scratch of each entry in bytes, or what its run said when it failed."""
    runs, seen = [], dict[str, int | str]()
    for entry, packed in entries.items():
        try:
            runs.append(Run(directory, entry, packed=packed))
            seen[entry] = runs[-1].scratch()
        except FAILURES as failure:
            seen[entry] = " ".join(str(failure).split())
    return seen


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.loads(sys.argv[2]))))
