"""Which compilers are here, in which versions, and whether they fit each other. Looks at package metadata only."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from isthmus.errors import IncompatibleError, UnavailableError

ORT, QNN = "onnxruntime", "onnxruntime-qnn"
_OLDEST_ORT = (1, 24, 2)
"""What the wheels of onnxruntime-qnn ask for; 1.22.1 has no function to register a provider."""


def installed(package: str) -> str | None:
    """Version of an installed distribution."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def pair_problem() -> tuple[str, str] | None:
    """What is wrong with onnxruntime and onnxruntime-qnn as installed, and the command that mends it.

    Both share an ABI that neither package states an upper bound for. Compiled with, of onnxruntime and onnxruntime-qnn:
    1.24.2 and 1.27 with 2.3.0, 1.24.2 and 1.32 with 2.7.0, 1.32 with 2.4.0. From 1.28 on 2.3.0 fails; 1.22.1 fails with
    2.7.0.
    """
    ort, qnn = installed(ORT), installed(QNN)
    absent = [name for name, found in ((ORT, ort), (QNN, qnn)) if found is None]
    if ort is None or qnn is None:
        return f"{' and '.join(absent)} not installed", f"pip install {' '.join(absent)}"
    if _numbers(ort) < _OLDEST_ORT:
        return (
            f"onnxruntime {ort} is too old for onnxruntime-qnn {qnn}, which needs {'.'.join(map(str, _OLDEST_ORT))}",
            "pip install --upgrade onnxruntime",
        )
    if _numbers(ort) >= (1, 28) and _numbers(qnn) < (2, 4):
        return (
            f"onnxruntime-qnn {qnn} was built against an older plugin ABI than onnxruntime {ort}",
            "pip install --upgrade onnxruntime-qnn",
        )
    return None


def require_ort() -> None:
    """``UnavailableError``: a package is missing. ``IncompatibleError``: the two do not fit."""
    problem = pair_problem()
    if problem is None:
        return
    what, fix = problem
    error = UnavailableError if installed(ORT) is None or installed(QNN) is None else IncompatibleError
    raise error(f"toolchain=ort cannot compile: {what}", fix=fix)


def _numbers(text: str) -> tuple[int, ...]:
    parts = []
    for part in text.split(".")[:3]:
        digits = "".join(c for c in part if c.isdigit())
        parts.append(int(digits or 0))
    return tuple(parts)
