"""Finds libascendcl, loads it, binds the table, and turns status codes into errors.

One library of each kind (the real one, the simulator) lives in a process at most. ``aclInit`` runs once, on first use;
100002 (already initialised, by torch_npu say) is success and still counts a reference. The reference is given back at
exit with ``aclFinalizeReference`` where there is one. ``aclFinalize`` is never called: it drops everybody's references.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import threading
from typing import Any

import numpy as np
from isthmus.errors import IncompatibleError, OutOfMemoryError, UnavailableError

from . import _abi, errors, toolkit

NAME = "libascendcl.so"
SIMULATOR_VARIABLE = "ISTHMUS_ASCEND_SIMULATOR"
_SIMULATOR_MARK = "isthmus_sim_version"
_start = threading.Lock()

POINTER, SIZE, UINT32, INT32, INT, FLOAT, TEXT = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_uint32,
    ctypes.c_int32,
    ctypes.c_int,
    ctypes.c_float,
    ctypes.c_char_p,
)
"""Kinds of variable for ``new`` and ``variable``."""


def simulator_named() -> bool:
    """Whether the environment asks for the simulator."""
    return os.environ.get(SIMULATOR_VARIABLE, "").lower() not in ("", "0", "false", "off", "no")


class Acl:
    """The library. ``acl.aclrtMalloc(...)`` raises unless the call succeeds; other results are returned as they are."""

    def __init__(self, dll: ctypes.CDLL, path: str) -> None:
        self.path = path
        self.simulated = hasattr(dll, _SIMULATOR_MARK)
        self._dll = dll
        self._thread = threading.local()
        missing = [name for name in _abi.PROTOTYPES if not hasattr(dll, name)]
        if missing:
            raise IncompatibleError(
                f"{path} lacks {', '.join(missing)}",
                why="it is older than CANN 8.1, or not the AscendCL library",
                fix="install CANN 8.1 or later; isthmus doctor shows what is found",
            )

    def __getattr__(self, name: str) -> Any:
        prototype = _abi.PROTOTYPES.get(name) or _abi.OPTIONAL.get(name)
        if prototype is None:
            raise AttributeError(name)
        result, *arguments = prototype
        function = getattr(self._dll, name)
        function.restype, function.argtypes = result, arguments
        check = {_abi.aclError: self._checked, _abi.aclCreated: self._created}.get(result)
        bound = function if check is None else functools.partial(check, name, function)
        setattr(self, name, bound)
        return bound

    def has(self, name: str) -> bool:
        """Whether an optional function is there."""
        return hasattr(self._dll, name)

    def status(self, name: str, *arguments: Any) -> int:
        """Call and return the status code instead of raising."""
        getattr(self, name)  # binds
        code: int = getattr(self._dll, name)(*arguments).value
        return code

    def mark_messages(self) -> None:
        """Remember this thread's message text, so that a later failure is not blamed for it."""
        self._thread.text = self._text()

    def _text(self) -> str:
        text: bytes | None = self.aclGetRecentErrMsg()
        return (text or b"").decode("utf-8", errors="replace")

    def _created(self, name: str, function: Any, *arguments: Any) -> int:
        handle: int | None = function(*arguments).value
        if not handle:
            raise OutOfMemoryError(f"{name} made no handle", why="the host has no memory left", fix="free host memory")
        return handle

    def _checked(self, name: str, function: Any, *arguments: Any) -> None:
        code = function(*arguments).value
        if code != _abi.ACL_SUCCESS:
            before, now = getattr(self._thread, "text", ""), self._text()
            self._thread.text = now
            raise errors.error(name, code, errors.new_text(before, now))


def library(simulated: bool) -> Acl:
    """The library of this process, loaded and initialised. ``UnavailableError`` says what was searched and what to do."""
    with _start:
        return _loaded(simulated)


@functools.cache
def _loaded(simulated: bool) -> Acl:
    acl = _load_simulator() if simulated else _load_real()
    _initialise(acl)
    return acl


def _load_simulator() -> Acl:
    from . import simulator  # here, so that a machine that never names it needs no compiler

    path = str(simulator.library())
    return Acl(_open(path), path)


def _load_real() -> Acl:
    failures: list[str] = []
    for path in [NAME, *map(str, toolkit.libraries(NAME))]:
        try:
            dll = _open(path)
        except OSError as error:
            failures.append(f"{path}: {error}")
            continue
        if hasattr(dll, _SIMULATOR_MARK):
            failures.append(f"{path}: the simulator, which is used only when it is named")
            continue
        return Acl(dll, path)
    raise UnavailableError(
        "no AscendCL library here",
        why=f"{'; '.join(failures)}; {toolkit.searched(NAME)}",
        fix="install CANN and its driver, then: source set_env.sh of the toolkit. "
        f"Without an NPU: --simulator, or {SIMULATOR_VARIABLE}=1 (results are labelled simulated)",
    )


def _open(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path)


def _initialise(acl: Acl) -> None:
    code = acl.status("aclInit", None)
    if code not in (_abi.ACL_SUCCESS, _abi.ACL_ERROR_REPEAT_INITIALIZE):
        raise errors.error("aclInit", code, acl._text())
    if acl.has("aclFinalizeReference"):
        atexit.register(_finalise, acl, os.getpid())


def _finalise(acl: Acl, pid: int) -> None:
    """Give our reference back, in the process that took it: a forked child has no device."""
    if os.getpid() == pid:
        acl.status("aclFinalizeReference", None)


def new(kind: Any) -> tuple[Any, Any]:
    """A zeroed C variable and its address, for out-parameters."""
    value = kind()
    return value, ctypes.byref(value)


def variable(kind: Any, value: object) -> tuple[Any, Any, int]:
    """A C variable with a value, its address and its size, for arguments that go by address."""
    made = kind(value)
    return made, ctypes.byref(made), ctypes.sizeof(made)


def host_address(view: memoryview) -> tuple[int, object]:
    """Where a contiguous view's bytes are, and what must stay alive while that address is used. No copy."""
    array = np.frombuffer(view, np.uint8)
    address: int = array.__array_interface__["data"][0]
    return address, array


def move(destination: int, source: int, size: int) -> None:
    """Copy host memory."""
    ctypes.memmove(destination, source, size)
