"""``python -m isthmus_cpu_ref.measure MODEL [packed]``: print the bytes of scratch an entry keeps after running.

A process of its own, because memory can only be seen whole. Weights are mapped, so it takes little more than the scratch.
"""

from __future__ import annotations

import sys
from pathlib import Path

from isthmus.types import Pages

from .graph import entry_spec, read_model
from .memory import allocate
from .session import bind_arguments, open_session, session_options, use_weights
from .weights import map_weights


def scratch(model: Path, *, packed: bool) -> int:
    """Bytes of anonymous memory that the graph's first two runs, with zeros, leave behind in the arena."""
    options = session_options(packed=packed)
    weights = map_weights(model.parent)
    use_weights(options, weights)
    session = open_session(model, options)
    spec, io = entry_spec(read_model(model), model.stem), session.io_binding()
    buffers = []
    for bind, tensors in ((io.bind_input, spec.inputs), (io.bind_output, spec.outputs)):
        for tensor in tensors:
            buffers.append(allocate(max(1, tensor.nbytes), Pages.NORMAL, 64).handle)
            buffers[-1].bytes[:] = bytes(len(buffers[-1].bytes))  # touched now, so that the run does not
            bind(*bind_arguments(tensor), buffers[-1].address)
    before = _anonymous()
    for _ in range(2):
        session.run_with_iobinding(io)
    return max(0, _anonymous() - before)


def _anonymous() -> int:
    """Resident bytes of this process that are not file pages."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


if __name__ == "__main__":
    print(scratch(Path(sys.argv[1]), packed="packed" in sys.argv[2:]))
