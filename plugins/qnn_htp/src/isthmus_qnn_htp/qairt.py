"""The converter tools of an installed QAIRT SDK: ONNX -> DLC -> (quantised DLC) -> context binary.

Untested against a real SDK. Flags are those of the tools' published help (QAIRT 2.3x) and of public build scripts; tests
check the command lines with fake tools.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from isthmus._files import inside
from isthmus.errors import CompileError, InputError, UnavailableError

from .built import Built, Prepared, binary_file
from .compile_process import append_file, describe_end, run_compiler
from .isolated import inspect
from .libraries import SDK_VARIABLES
from .onnx_graph import external
from .options import CompileOptions
from .precheck import is_quantized
from .targets import Target

_HOST = "x86_64-linux-clang"
_CONVERTER, _QUANTIZER, _GENERATOR = "qairt-converter", "qairt-quantizer", "qnn-context-binary-generator"
_BACKEND, _EXTENSIONS, _DLC_LOADER = "libQnnHtp.so", "libQnnHtpNetRunExtensions.so", "libQnnModelDlc.so"
_LAYOUT = "NONTRIVIAL"  # leaves a tensor's axes as they are; the default moves channels last
_LAST_LINES = 8


@attrs.frozen
class Sdk:
    """An SDK on disk."""

    root: Path

    @property
    def tools(self) -> Path:
        """Where the command line tools are."""
        return self.root / "bin" / _HOST

    @property
    def libraries(self) -> Path:
        """Where the libraries for this machine are."""
        return self.root / "lib" / _HOST

    def build(
        self, entries: Sequence[Prepared], chip: Target, directory: Path, out: Path, options: CompileOptions
    ) -> Built:
        """Compile ``entries`` into one binary (a ``built.Compiler``). ``CompileError`` quotes the tool that failed."""
        log = directory / "qairt.log"
        try:
            dlcs = [self._dlc(entry, directory, log, options) for entry in entries]
            self._run(self.generate(entries, dlcs, chip, directory, options), directory, log)
        finally:
            if options.log and log.exists():
                append_file(Path(options.log), log)
        file = binary_file(entries)
        (directory / file).rename(out / file)
        metadata = inspect(out / file)
        names = [entry.name for entry in entries]
        graphs = {g.name: names[0] if len(names) == 1 else _entry_of(g.name, names) for g in metadata.graphs}
        return Built(
            file, graphs, metadata, {"toolchain": "qairt"}, (f"{file}: made with the QAIRT tools, {_UNTESTED}",)
        )

    def convert(self, entry: Prepared, directory: Path) -> list[str]:
        """Command that makes ``ENTRY.dlc`` of ``ENTRY.onnx``."""
        command = [str(self.tools / _CONVERTER), "--input_network", str(directory / f"{entry.name}.onnx")]
        command += ["--output_path", str(directory / f"{entry.name}.dlc"), "--target_backend", "HTP"]
        command += ["--preserve_io_datatype"]
        if not is_quantized(entry.model):
            command += ["--float_bitwidth", "16"]
        for kind, tensors in (("input", entry.spec.inputs), ("output", entry.spec.outputs)):
            for tensor in tensors:
                command += [f"--source_model_{kind}_layout", tensor.name, _LAYOUT]
                command += [f"--desired_{kind}_layout", tensor.name, _LAYOUT]
        return command

    def quantize(self, entry: Prepared, directory: Path, options: CompileOptions) -> list[str]:
        """Command that makes ``ENTRY.quantized.dlc`` of ``ENTRY.dlc``. ``InputError``: no input list for the entry."""
        inputs = Path(options.calibration or "", f"{entry.name}.txt").absolute()
        if not inputs.is_file():
            raise InputError(f"calibration: {inputs} is not there", fix="write one line of NAME:=FILE.raw per sample")
        return [
            str(self.tools / _QUANTIZER),
            *("--input_dlc", str(directory / f"{entry.name}.dlc")),
            *("--output_dlc", str(directory / f"{entry.name}.quantized.dlc")),
            *("--input_list", str(inputs)),
            *("--act_bitwidth", str(options.activation_bits or 16)),
            *("--weights_bitwidth", str(options.weight_bits or 8)),
            *("--bias_bitwidth", "32"),
            "--use_per_channel_quantization",
            "--preserve_io_datatype",
        ]

    def generate(
        self,
        entries: Sequence[Prepared],
        dlcs: Sequence[Path],
        chip: Target,
        directory: Path,
        options: CompileOptions,
    ) -> list[str]:
        """Write the configuration files, and give the command that makes the binary."""
        extension, config = directory / "htp.json", directory / "config.json"
        extension.write_text(json.dumps(htp_config([e.name for e in entries], chip, options), indent=1), "utf-8")
        library = str(self.libraries / _EXTENSIONS)
        wrapped = {"backend_extensions": {"shared_library_path": library, "config_file_path": str(extension)}}
        config.write_text(json.dumps(wrapped, indent=1), "utf-8")
        loader = self.libraries / _DLC_LOADER  # older releases load a DLC through it
        return [
            str(self.tools / _GENERATOR),
            *("--dlc_path", ",".join(map(str, dlcs))),
            *(("--model", str(loader)) if loader.exists() else ()),
            *("--backend", str(self.libraries / _BACKEND)),
            *("--config_file", str(config)),
            *("--output_dir", str(directory)),
            *("--binary_file", binary_file(entries).removesuffix(".bin")),
        ]

    def _dlc(self, entry: Prepared, directory: Path, log: Path, options: CompileOptions) -> Path:
        _place(entry, directory)
        self._run(self.convert(entry, directory), directory, log)
        if options.calibration is None:
            return directory / f"{entry.name}.dlc"
        self._run(self.quantize(entry, directory, options), directory, log)
        return directory / f"{entry.name}.quantized.dlc"

    def _run(self, command: Sequence[str], directory: Path, log: Path) -> None:
        start = log.stat().st_size if log.exists() else 0
        code = run_compiler(command, directory, log, self._environment())
        if code == 0:
            return
        with log.open("rb") as lines:
            lines.seek(start)
            last = lines.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        quoted = "".join(f"\n  {Path(command[0]).name}: {line[:300]}" for line in last)
        raise CompileError(
            f"{Path(command[0]).name} failed: {describe_end(code)}{quoted}",
            why="see the tool's own lines above",
            fix=f"the whole log: --option log=FILE; check the SDK: {self.root}/bin/check-python-dependency",
        )

    def _environment(self) -> Mapping[str, str]:
        """What the SDK's ``envsetup.sh`` sets."""
        found = dict(os.environ, QNN_SDK_ROOT=str(self.root), QAIRT_SDK_ROOT=str(self.root))
        for name, path in (
            ("PATH", self.tools),
            ("LD_LIBRARY_PATH", self.libraries),
            ("PYTHONPATH", self.root / "lib/python"),
        ):
            found[name] = os.pathsep.join(filter(None, (str(path), found.get(name))))
        return found


_UNTESTED = "a route that was never tested against a real SDK"


def find_sdk() -> Sdk:
    """The SDK that ``QNN_SDK_ROOT`` or ``QAIRT_SDK_ROOT`` names. ``UnavailableError`` says what was looked for."""
    searched = []
    for variable in SDK_VARIABLES:
        if not (root := os.environ.get(variable)):
            searched.append(f"{variable} is not set")
            continue
        sdk = Sdk(Path(root))
        needed = [sdk.tools / name for name in (_CONVERTER, _QUANTIZER, _GENERATOR)]
        needed += [sdk.libraries / name for name in (_BACKEND, _EXTENSIONS)]
        absent = [str(path) for path in needed if not path.is_file()]
        if not absent:
            return sdk
        searched.append(f"{variable}={root} has no {', '.join(absent)}")
    raise UnavailableError(
        f"toolchain=qairt needs a QAIRT SDK for {_HOST}: {'; '.join(searched)}",
        fix="install the SDK and: export QNN_SDK_ROOT=DIR; or use toolchain=ort",
    )


def htp_config(graphs: Sequence[str], chip: Target, options: CompileOptions) -> dict[str, Any]:
    """The HTP backend's extension configuration. Source: "QNN HTP Backend Extensions" of the public documentation."""
    graph: dict[str, Any] = {"graph_names": list(graphs), "O": options.optimization, "fp16_relaxed_precision": 1}
    if options.vtcm_mb is not None:
        graph["vtcm_mb"] = options.vtcm_mb
    if options.hvx_threads is not None:
        graph["hvx_threads"] = options.hvx_threads
    config: dict[str, Any] = {"graphs": [graph], "devices": [{"soc_model": chip.soc, "dsp_arch": f"v{chip.arch}"}]}
    if len(graphs) > 1:
        config["context"] = {"weight_sharing_enabled": True}
    return config


def _place(entry: Prepared, directory: Path) -> None:
    """Write the model, its external weights beside it: the converter follows no link out of the model's directory."""
    (directory / f"{entry.name}.onnx").write_bytes(entry.model.SerializeToString())
    for location in {where["location"] for _, where in external(entry.model)}:
        to = inside(directory, location)
        if not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True)
            _link_or_copy(inside(entry.folder, location), to)


def _link_or_copy(source: Path, to: Path) -> None:
    try:
        os.link(source, to)
    except OSError:
        shutil.copyfile(source, to)


def _entry_of(graph: str, entries: Sequence[str]) -> str:
    """The entry of a graph: the converter names a graph after its file, ``_`` for what no C name may hold."""
    plain = {"".join(c if c.isalnum() else "_" for c in name): name for name in entries}
    if graph not in plain:
        raise CompileError(f"the binary holds graph {graph!r}, which is none of the entries {', '.join(entries)}")
    return plain[graph]
