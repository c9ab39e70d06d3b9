"""Load the QNN libraries, call what their version guarantees, and turn status codes into errors.

The only module beside ``_abi`` that knows ctypes.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from isthmus.errors import IncompatibleError, UnavailableError, UnsupportedError

from . import _abi
from .status import vendor_error

LOGGER = logging.getLogger("isthmus.qnn")
ref = ctypes.byref
address_of = ctypes.addressof
size_of = ctypes.sizeof

_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG, 5: logging.DEBUG}
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value
_libc.vsnprintf.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p]
_stdout_lock = threading.Lock()


class Interface:
    """One library: its version and its functions by name.

    ``functions`` holds what the reported version guarantees and the library has; nothing else can be called.
    """

    def __init__(self, functions: Mapping[str, Callable[..., int]], version: tuple[int, int, int]) -> None:
        self._functions = functions
        self.version = version

    def function(self, name: str) -> Callable[..., int]:
        """The function itself, for a hot path. ``UnsupportedError``: this version has none."""
        try:
            return self._functions[name]
        except KeyError:
            raise UnsupportedError(
                f"QNN API {'.'.join(map(str, self.version))} has no {name}", fix="use a newer QNN runtime"
            ) from None

    def call(self, name: str, *arguments: Any) -> int:
        """Call and return the status code, 0 for success."""
        return self.function(name)(*arguments) & 0xFFFF

    def check(self, doing: str, name: str, *arguments: Any) -> None:
        """Call, and raise what a status other than 0 means; ``doing`` completes "QNN refused to ..."."""
        if code := self.call(name, *arguments):
            raise vendor_error(name, code, self.message(code), doing)

    def message(self, code: int) -> str:
        """The vendor's text for a code, or nothing."""
        text = _abi.chars()
        if "errorGetMessage" not in self._functions or self.call("errorGetMessage", code, ref(text)):
            return ""
        return (text.value or b"").decode(errors="replace")


@attrs.frozen
class _Provider:
    symbol: str
    head: type[Any]
    names: Sequence[str]
    signatures: Mapping[str, Any]
    guaranteed: Sequence[tuple[int, int]]
    major: int
    version: Callable[[Any], Any]


_CORE = _Provider(
    "QnnInterface_getProviders",
    _abi.QnnInterface_t,
    _abi.CORE_FUNCTIONS,
    _abi.CORE_SIGNATURES,
    _abi.CORE_GUARANTEED,
    2,
    lambda head: head.apiVersion.coreApiVersion,
)
_SYSTEM = _Provider(
    "QnnSystemInterface_getProviders",
    _abi.QnnSystemInterface_t,
    _abi.SYSTEM_FUNCTIONS,
    _abi.SYSTEM_SIGNATURES,
    _abi.SYSTEM_GUARANTEED,
    1,
    lambda head: head.systemApiVersion,
)


def open_core(path: Path) -> Interface:
    """Load a QNN backend. ``UnavailableError``: not loadable. ``IncompatibleError``: an API this binding is not for."""
    return _open(path, _CORE)


def open_system(path: Path) -> Interface:
    """Load libQnnSystem, likewise."""
    return _open(path, _SYSTEM)


def _open(path: Path, provider: _Provider) -> Interface:
    library = _load(path)
    try:
        get = getattr(library, provider.symbol)
    except AttributeError:
        raise UnavailableError(f"{path} is not a QNN library: it has no {provider.symbol}") from None
    get.restype = _abi.Qnn_ErrorHandle_t
    heads, count = ctypes.POINTER(ctypes.POINTER(provider.head))(), _abi.u32()
    code = get(ref(heads), ref(count)) & 0xFFFF
    if code or not count.value:
        raise vendor_error(provider.symbol, code, "", f"name the interfaces of {path}")
    head = heads[0].contents
    version = provider.version(head)
    numbers = (version.major, version.minor, version.patch)
    return Interface(_bind(ctypes.addressof(head) + size_of(provider.head), provider, numbers, path), numbers)


def _bind(table: int, provider: _Provider, version: tuple[int, int, int], path: Path) -> dict[str, Callable[..., int]]:
    """Functions of the table at address ``table``. Words past the guaranteed ones are unrelated memory."""
    guaranteed = next((n for minor, n in provider.guaranteed if version[1] >= minor), 0)
    if version[0] != provider.major or not guaranteed:
        wanted = f"{provider.major}.{provider.guaranteed[-1][0]}"
        raise IncompatibleError(
            f"{path} has API {'.'.join(map(str, version))}; this binding is for {wanted} and later of {provider.major}.x",
            fix="use the libraries of onnxruntime-qnn 2.3.0 or later",
        )
    functions: dict[str, Callable[..., int]] = {}
    for position, name in enumerate(" ".join(provider.names).split()[:guaranteed]):
        entry = ctypes.c_void_p.from_address(table + 8 * position).value
        if entry and name in provider.signatures:
            functions[name] = ctypes.CFUNCTYPE(_abi.Qnn_ErrorHandle_t, *provider.signatures[name])(entry)
    return functions


def _load(path: Path) -> ctypes.CDLL:
    """dlopen without giving the library's 7,500 symbols to the rest of the process."""
    try:
        with _stdout_to_stderr():
            return ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be loaded: {error}", fix="isthmus doctor") from error


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """The libraries print on descriptor 1 while they load, which belongs to the program's output."""
    with _stdout_lock:
        try:
            saved = os.dup(1)
        except OSError:  # a daemon without standard output
            yield
            return
        os.dup2(2, 1)
        try:
            yield
        finally:
            _libc.fflush(None)
            os.dup2(saved, 1)
            os.close(saved)


@functools.cache  # a library may call it until the process ends
def log_callback() -> Any:
    """The callback for ``logCreate`` that hands each line to the logger ``isthmus.qnn``."""

    def forward(form: bytes, level: int, _time: int, values: int | None) -> None:
        line = ctypes.create_string_buffer(4096)
        _libc.vsnprintf(line, 4096, form, values)
        LOGGER.log(_LEVELS.get(level, logging.INFO), "%s", line.value.decode(errors="replace").strip())

    return _abi.QnnLog_Callback_t(forward)


def pointers(kind: type[Any], items: Sequence[Any]) -> Any:
    """A NULL-terminated array of pointers to ``items``, which it keeps alive; ``None`` for no items."""
    if not items:
        return None
    array: Any = (ctypes.POINTER(kind) * (len(items) + 1))()
    for position, item in enumerate(items):
        array[position] = ctypes.pointer(item)
    array.kept = items
    return array


def struct_at(kind: type[Any], address: int, size: int) -> Any:
    """A copy of the struct at an address, if ``size`` bytes are enough to hold one."""
    return (
        kind.from_buffer_copy(ctypes.string_at(address, size_of(kind))) if address and size >= size_of(kind) else None
    )


class RpcMemory:
    """Memory that the host and the DSP share (``libcdsprpc.so``). Untested on silicon."""

    def __init__(self, library: Any = None) -> None:
        """``UnavailableError``: the library is not here."""
        if library is None:
            library = _load(Path("libcdsprpc.so"))
        for name, (result, arguments) in _abi.RPCMEM_SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._library = library

    def allocate(self, size: int) -> tuple[int, int]:
        """Address and file descriptor of ``size`` new bytes; address 0 if there are none."""
        address = self._library.rpcmem_alloc(_abi.RPCMEM_HEAP_ID_SYSTEM, _abi.RPCMEM_DEFAULT_FLAGS, size) or 0
        return address, self._library.rpcmem_to_fd(address) if address else -1

    def free(self, address: int) -> None:
        """Free an allocation."""
        self._library.rpcmem_free(address)


class Addressed:
    """``size`` bytes at an address, writable; what ``numpy.asarray`` makes of it keeps it alive."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, False)}


def map_shared(fd: int, size: int) -> Addressed:
    """Map a file for reading and writing until nobody looks at it any more. ``OSError`` if that fails.

    Python's own mmap keeps a duplicate of the descriptor open for each mapping.
    """
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    mapping = Addressed(address, size)
    weakref.finalize(mapping, _libc.munmap, address, size).atexit = False
    return mapping


def pointer_to(kind: type[Any]) -> Any:
    """A NULL pointer to ``kind``, for a call to fill."""
    return ctypes.POINTER(kind)()
