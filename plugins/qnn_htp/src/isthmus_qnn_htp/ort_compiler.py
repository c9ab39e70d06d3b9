"""Run the compiling process, and turn its end into a result or into an error that names the cause."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from isthmus.errors import CompileError
from isthmus.types import VendorStatus

from .binary import from_json
from .built import Built, Prepared, binary_file
from .compile_job import ANSWER, REQUEST, Answer, EntryJob, Job, context_model, read_answer, write_json
from .compile_process import append_file, describe_end, run_compiler
from .onnx_graph import describe, values
from .options import CompileOptions, Precision
from .targets import Target
from .vendor_log import CODES, HINTS, Findings, RefusedNode, code_in, read_findings

_LOG = "compiler.log"
_SHOWN = 4
_WHOLE_LOG = "the whole log: --option log=FILE"


def build(entries: Sequence[Prepared], chip: Target, directory: Path, out: Path, options: CompileOptions) -> Built:
    """Compile ``entries`` into one binary with ONNX Runtime's QNN EP (a ``built.Compiler``).

    ``CompileError`` names the node, the limit or the crash.
    """
    job = Job(tuple(_place(entry, directory) for entry in entries), _provider_options(chip, options))
    answer = _run(job, {entry.name: entry.model for entry in entries}, chip, directory, options)
    graphs = {_graph_name(entry.name, directory): entry.name for entry in entries}
    file = binary_file(entries)
    (directory / answer.binary).rename(out / file)
    notes = tuple(
        f"{done.name}: all nodes on the HTP ({done.nodes} after optimisation); compiled in {done.seconds:.1f} s"
        for done in answer.compiled
    )
    peak = f"compiling {file} took at most {answer.peak_bytes >> 20} MiB of memory"
    return Built(file, graphs, from_json(answer.metadata), answer.versions, (*notes, peak))


def _place(entry: Prepared, directory: Path) -> EntryJob:
    """Write the model, and a link to its weights. The compiler derives the graph's name from the link's: builds repeat."""
    model, weights = Path(f"{entry.name}.onnx"), Path("weights", entry.name)
    (directory / model).write_bytes(entry.model.SerializeToString())
    (directory / weights).parent.mkdir(exist_ok=True)
    (directory / weights).symlink_to(entry.folder, target_is_directory=True)
    return EntryJob(entry.name, str(model), str(weights))


def _graph_name(entry: str, directory: Path) -> str:
    """Name of an entry's graph inside the binary, from the model that ONNX Runtime wrote to run it."""
    graph = onnx.load(directory / context_model(entry), load_external_data=False).graph
    if [node.op_type for node in graph.node] != ["EPContext"]:
        kinds = ", ".join(node.op_type for node in graph.node) or "no nodes"
        raise CompileError(
            f"entry {entry!r} is not one graph of the HTP: ONNX Runtime made of it {kinds}",
            why="parts of it depend on no input, or it falls into unconnected pieces",
            fix="remove what depends on no input from the graph",
        )
    return str(next(a.s.decode() for a in graph.node[0].attribute if a.name == "partition_name"))


def _provider_options(chip: Target, options: CompileOptions) -> dict[str, str]:
    """Options of the QNN EP. The SoC is always given: without it the emulator computes in float32."""
    given = {
        "soc_model": str(chip.soc),
        "htp_graph_finalization_optimization_mode": str(options.optimization),
        "offload_graph_io_quantization": "0",
    }
    if options.vtcm_mb is not None:
        given["vtcm_mb"] = str(options.vtcm_mb)
    if options.precision is Precision.BF16:
        given["htp_bf16_enable"] = "1"
    return given


def _run(
    job: Job, models: Mapping[str, onnx.ModelProto], target: Target, directory: Path, options: CompileOptions
) -> Answer:
    """Compile in a child process that works in ``directory``; the binary is left there."""
    write_json(directory / REQUEST, job)
    log = directory / _LOG
    command = [*_fixed_addresses(), sys.executable, "-P", "-m", "isthmus_qnn_htp.compile_worker"]
    environment = dict(os.environ, TMPDIR=str(directory), PYTHONHASHSEED="0")  # ONNX Runtime leaves files in TMPDIR
    code = run_compiler(command, directory, log, environment)
    if options.log:
        append_file(Path(options.log), log)
    answer = read_answer(directory / ANSWER)
    if answer is not None and not answer.failed:
        return answer
    with log.open(encoding="utf-8", errors="replace") as lines:
        findings = read_findings(lines)
    if answer is None:
        raise _crashed([e.name for e in job.entries], target, code, findings)
    raise _refused(answer, models[answer.failed], target, findings)


@functools.cache
def _fixed_addresses() -> tuple[str, ...]:
    """Command prefix that turns address randomisation off, or nothing where that is not allowed.

    The compiler's output for a transformer depends on where its heap lies; without this no two builds are equal.
    """
    command = ("setarch", platform.machine(), "--addr-no-randomize")
    if shutil.which("setarch") is None:
        return ()
    return command if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0 else ()


def _crashed(entries: list[str], target: Target, code: int, findings: Findings) -> CompileError:
    end, where = describe_end(code), f" at {findings.reached}" if findings.reached else ""
    killed = code == -signal.SIGKILL
    lines = [*(cause.line for cause in findings.causes), *findings.errors]
    return CompileError(
        f"the compiler crashed on entry {' or '.join(map(repr, entries))} for {target}{where}: {end}"
        + _quoted(lines[-_SHOWN:]),
        why="the system killed it, most likely for lack of memory" if killed else "a defect of the compiler",
        fix="compile on a machine with more memory" if killed else f"change the graph there; {_WHOLE_LOG}",
        status=VendorStatus("compile", code, text=end),
    )


def _refused(answer: Answer, model: onnx.ModelProto, target: Target, findings: Findings) -> CompileError:
    if findings.refused:
        return _refused_nodes(answer.failed, model, target, findings)
    what, status = f"entry {answer.failed!r} does not compile for {target}", _status(answer.error)
    if findings.causes:
        first = findings.causes[0]
        return CompileError(f"{what}: {first.line}", why=first.why, fix=first.fix, status=status)
    return CompileError(
        what + _quoted(findings.errors[:_SHOWN]),
        why=CODES.get(status.code or 0, "the compiler's log holds no other reason"),
        fix=_WHOLE_LOG,
        status=status,
    )


def _refused_nodes(entry: str, model: onnx.ModelProto, target: Target, findings: Findings) -> CompileError:
    """The first node in full; ONNX Runtime's own text only says that some node was left to the CPU."""
    first, *others = findings.refused
    listed = ", ".join(f"{node.name!r} ({node.op_type})" for node in others[:_SHOWN])
    more = f"; {len(others)} more: {listed}" + (" ..." if len(others) > _SHOWN else "") if others else ""
    cause = next((c for c in findings.causes if c.line in first.vendor), None)
    reason = " ".join(dict.fromkeys([*first.vendor, first.reason]))
    return CompileError(
        f"node {_described(first, model)} of entry {entry!r} would not run on the HTP of {target}: {reason}{more}",
        why=cause.why if cause else "the compiler has no form of this operator with these types, shapes or attributes",
        fix=cause.fix if cause else HINTS.get(first.op_type, "replace it by operators the HTP has, or cut it off"),
    )


def _described(node: RefusedNode, model: onnx.ModelProto) -> str:
    known = values(model)
    source = next((n for n in model.graph.node if n.name == node.name), None)
    types = [describe(known[name]) for name in source.input if name in known] if source is not None else []
    return f"{node.name!r} ({node.op_type}{' of ' + ', '.join(types) if types else ''})"


def _status(text: str) -> VendorStatus:
    """ONNX Runtime's text, without its file names and addresses."""
    first = text.splitlines()[0] if text else ""
    symbol = next((word.rstrip(":") for word in first.split() if word.startswith("QNN_")), "")
    return VendorStatus("InferenceSession", code_in(first), symbol, first[:300])


def _quoted(lines: tuple[str, ...] | list[str]) -> str:
    return "".join(f"\n  compiler: {line[:300]}" for line in lines)
