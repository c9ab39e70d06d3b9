"""The process that compiles: ``python -P -m isthmus_qnn_htp.compile_worker`` in a directory with ``request.json``.

ONNX Runtime's QNN EP writes the binary; its log, at full severity, is this process's output. A process compiles for one
target only, because the library keeps the SoC of the first session. It ends when its standard input does: the parent
has gone or lost patience.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs

from . import _lib, binary
from .compile_job import ANSWER, REQUEST, Answer, Compiled, EntryJob, Job, context_model, read_job, write_json
from .libraries import find

PROVIDER = "QNNExecutionProvider"  # ONNX Runtime derives option names from it; the wheel asks for this spelling


def main() -> None:
    """Compile what ``request.json`` asks and write ``answer.json``."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    answer = _compile(read_job(Path(REQUEST)))
    write_json(Path(ANSWER), attrs.evolve(answer, peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # the provider crashes when it is unloaded with a session alive


def _compile(job: Job) -> Answer:
    sessions: list[Any] = []  # shared weights live until the last session is there
    compiled: list[Compiled] = []
    name = ""
    try:
        runtime = _Runtime(job.provider_options)
        for entry in job.entries:
            name = entry.name
            started = time.monotonic()
            session, nodes = runtime.compile(entry, share=len(job.entries) > 1, last=entry is job.entries[-1])
            sessions.append(session)
            compiled.append(Compiled(name, nodes, time.monotonic() - started))
        (path,) = Path().glob("*.bin")
        metadata = binary.read_binary(_lib.open_system(find().system), path)
    except Exception as error:  # noqa: BLE001 - every failure goes to the parent, which explains it from the log
        return Answer(failed=name or job.entries[0].name, error=f"{type(error).__name__}: {error}")
    return Answer(tuple(compiled), str(path), binary.to_json(metadata), runtime.versions)


class _Runtime:
    """ONNX Runtime with the QNN provider registered."""

    def __init__(self, provider_options: Any) -> None:
        import onnxruntime as ort
        import onnxruntime_qnn as qnn

        self._ort = ort
        ort.set_default_logger_severity(0)
        ort.register_execution_provider_library(PROVIDER, qnn.get_library_path())
        self._devices = [d for d in ort.get_ep_devices() if d.ep_name == PROVIDER][:1]
        if not self._devices:
            raise RuntimeError(f"{qnn.get_library_path()} offers no device named {PROVIDER}")
        self._options = {**provider_options, "backend_path": str(find().core)}
        self.versions = {"onnxruntime": ort.__version__, "onnxruntime-qnn": version("onnxruntime-qnn")}

    def compile(self, entry: EntryJob, *, share: bool, last: bool) -> tuple[Any, int]:
        """The session, and how many nodes it placed on the HTP: all, or it raises."""
        settings = {
            "session.disable_cpu_ep_fallback": "1",
            "session.record_ep_graph_assignment_info": "1",
            "session.model_external_initializers_file_folder_path": entry.folder,
            "ep.context_enable": "1",
            "ep.context_embed_mode": "0",
            "ep.context_file_path": context_model(entry.name),
        }
        if share:
            settings |= {"ep.share_ep_contexts": "1", "ep.stop_share_ep_contexts": str(int(last))}
        options = self._ort.SessionOptions()
        options.log_severity_level = 0
        for key, value in settings.items():
            options.add_session_config_entry(key, value)
        options.add_provider_for_devices(self._devices, self._options)
        session = self._ort.InferenceSession(Path(entry.model).read_bytes(), options)
        session.disable_fallback()
        return session, _count_placed(session)


def _count_placed(session: Any) -> int:
    placed = 0
    for part in session.get_provider_graph_assignment_info():
        nodes = part.get_nodes()
        if part.ep_name != PROVIDER:
            raise RuntimeError(f"{part.ep_name} got nodes: {', '.join(n.name for n in nodes)}")
        placed += len(nodes)
    return placed


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()
