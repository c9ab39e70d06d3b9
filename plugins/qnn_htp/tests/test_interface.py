"""The function table: only what the reported version guarantees and the library has can be called."""

import ctypes
import logging

import pytest
from isthmus.errors import (
    DeviceLostError,
    ExecutionError,
    IncompatibleError,
    IntegrityError,
    OutOfMemoryError,
    UnsupportedError,
)
from isthmus_qnn_htp import _abi, _lib, libraries
from isthmus_qnn_htp.status import vendor_error

HERE = libraries.find()


def bind(version, entries):
    """Bind a table of our own, whose entries all are the address of a C function that returns 0."""
    table = (ctypes.c_void_p * 100)(*entries)
    return _lib._bind(ctypes.addressof(table), _lib._CORE, version, HERE.core), table


@pytest.fixture(scope="module")
def a_function():
    getpid = ctypes.CDLL(None).getpid
    return ctypes.cast(getpid, ctypes.c_void_p).value


@pytest.mark.parametrize(
    ("minor", "count"), [(27, 68), (31, 68), (32, 71), (35, 71), (36, 72), (39, 72), (40, 75), (99, 75)]
)
def test_a_version_guarantees_so_many_functions(minor, count):
    assert next(n for least, n in _abi.CORE_GUARANTEED if minor >= least) == count


def test_a_null_entry_and_words_past_the_table_are_no_functions(a_function):
    functions, _ = bind((2, 36, 0), [a_function] * 100)
    assert set(functions) == set(_abi.CORE_SIGNATURES)
    names = " ".join(_abi.CORE_FUNCTIONS).split()
    holes = [None if names[i : i + 1] == ["memRegister"] else a_function for i in range(100)]
    functions, _ = bind((2, 36, 0), holes)
    assert "memRegister" not in functions
    with pytest.raises(UnsupportedError, match=r"QNN API 2\.36\.0 has no memRegister"):
        _lib.Interface(functions, (2, 36, 0)).call("memRegister")


@pytest.mark.parametrize("version", [(1, 40, 0), (3, 0, 0), (2, 26, 0)])
def test_another_api_is_refused_with_both_versions(a_function, version):
    with pytest.raises(IncompatibleError, match=rf"has API {version[0]}.{version[1]}.0; this binding is for 2.27"):
        bind(version, [a_function] * 100)


def test_the_installed_libraries_have_every_function_that_is_called():
    core, system = _lib.open_core(HERE.core), _lib.open_system(HERE.system)
    assert core.version >= (2, 36, 0)
    for name in _abi.CORE_SIGNATURES:
        assert core.function(name)
    for name in _abi.SYSTEM_SIGNATURES:
        assert system.function(name)


@pytest.mark.parametrize(
    ("code", "error", "symbol"),
    [
        (1000, UnsupportedError, "QNN_COMMON_ERROR_NOT_SUPPORTED"),
        (1002, OutOfMemoryError, "QNN_COMMON_ERROR_MEM_ALLOC"),
        (1011, DeviceLostError, "QNN_COMMON_ERROR_SYSTEM_COMMUNICATION_FATAL"),
        (5005, IncompatibleError, "QNN_CONTEXT_ERROR_CREATE_FROM_BINARY"),
        (6004, ExecutionError, "QNN_GRAPH_ERROR_INVALID_TENSOR"),
    ],
)
def test_a_status_becomes_an_error_with_the_vendors_own_words(code, error, symbol):
    core = _lib.open_core(HERE.core)
    found = vendor_error("someCall", code, core.message(code), "do it")
    assert type(found) is error
    assert found.status.symbol == symbol
    assert found.status.code == code
    assert "QNN refused to do it" in str(found)


def test_a_status_of_the_system_library_is_an_integrity_error():
    assert type(vendor_error("systemContextGetMetaData", 30010, "", "read")) is IntegrityError


def test_log_lines_of_the_library_reach_the_logger(caplog):
    callback = _lib.log_callback()
    with caplog.at_level(logging.DEBUG, "isthmus.qnn"):
        callback(b" <E> something failed\n", 1, 0, ctypes.addressof(ctypes.create_string_buffer(64)))
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [(logging.ERROR, "<E> something failed")]
