"""One profiled run: ONNX Runtime's trace, as events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from isthmus.types import ProfileEvent

_KERNEL = "_kernel_time"


def trace_events(trace: Path) -> Iterator[ProfileEvent]:
    """The whole run, then each node as it ran: ``name (operator)`` in µs."""
    records = json.loads(trace.read_text("utf-8"))
    for record in records:
        if record.get("name") == "model_run":
            yield ProfileEvent("run", float(record["dur"]), "us")
    for record in records:
        if record.get("cat") == "Node" and record["name"].endswith(_KERNEL):
            name = f"{record['name'].removesuffix(_KERNEL)} ({record['args']['op_name']})"
            yield ProfileEvent(name, float(record["dur"]), "us", node=True)
