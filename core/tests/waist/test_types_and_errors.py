import copy
import pickle

import ml_dtypes
import numpy as np
import pytest
from isthmus import errors
from isthmus.errors import InputError, IsthmusError, UnavailableError
from isthmus.types import DType, EntrySpec, MemoryRequirements, Quantization, TensorSpec, VendorStatus

TREE = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, IsthmusError)]


@pytest.mark.parametrize("dtype", DType)
def test_sizes_agree_with_numpy(dtype):
    spec = TensorSpec("x", dtype, (3, 5))
    if dtype in (DType.INT4, DType.UINT4):
        assert spec.nbytes == 8
    elif dtype is DType.BFLOAT16:
        assert spec.nbytes == np.zeros((3, 5), ml_dtypes.bfloat16).nbytes
    else:
        assert spec.nbytes == np.zeros((3, 5), dtype.numpy).nbytes
        assert DType.of(dtype.numpy) is dtype


def test_dtypes_without_a_twin_say_so():
    with pytest.raises(TypeError, match="complex64"):
        DType.of(np.complex64)
    with pytest.raises(TypeError, match="bfloat16"):
        _ = DType.BFLOAT16.numpy


def test_scalars_have_one_element_and_empty_tensors_none():
    assert TensorSpec("x", DType.FLOAT32, ()).nbytes == 4
    assert TensorSpec("x", DType.FLOAT32, (0, 9)).nbytes == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: TensorSpec("x", DType.FLOAT32, (2, -1)),
        lambda: EntrySpec((TensorSpec("x", DType.INT8, ()), TensorSpec("x", DType.INT8, ())), ()),
        lambda: EntrySpec((), (TensorSpec("x", DType.INT8, ()), TensorSpec("x", DType.INT8, (1,)))),
        lambda: Quantization((1.0,), (0, 0)),
        lambda: Quantization((), ()),
        lambda: Quantization((1.0, 2.0), (0, 0)),
        lambda: MemoryRequirements(-1, {}, {}, True, 0, 0),
        lambda: MemoryRequirements(0, {"a": -1}, {}, True, 0, 0),
        lambda: MemoryRequirements(0, {}, {}, True, 0, 0, alignment=0),
    ],
)
def test_impossible_values_are_refused(make):
    with pytest.raises(ValueError):  # noqa: PT011 - whichever words, it must not be built
        make()


def test_programs_share_the_largest_workspace():
    need = MemoryRequirements(0, {"a": 5, "b": 9}, {}, True, 0, 0)
    assert need.peak_workspace == 9
    assert MemoryRequirements(0, {}, {}, True, 0, 0).peak_workspace == 0


@pytest.mark.parametrize("kind", TREE)
def test_errors_survive_the_way_between_processes(kind):
    error = kind("what", why="why", fix="fix", status=VendorStatus("call", 7, "E_SEVEN", "seven"))
    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(back) is kind
        assert str(back) == str(error)
        assert back.as_dict() == error.as_dict()


def test_a_message_has_its_parts_in_order():
    error = UnavailableError(
        "no device", why="no driver", fix="install it", status=VendorStatus("init", 5, "NO", "gone")
    )
    assert str(error).splitlines() == [
        "no device",
        "  vendor: init -> 5 NO gone",
        "  why: no driver",
        "  fix: install it",
    ]
    assert str(InputError("short")) == "short"
    assert InputError("short").as_dict() == {
        "error": "InputError",
        "what": "short",
        "why": None,
        "fix": None,
        "vendor": None,
    }


@pytest.mark.parametrize("kind", TREE)
def test_every_error_has_an_exit_code_and_a_docstring(kind):
    assert kind.exit_code in (1, 2, 3)
    assert kind.__doc__


def test_errors_are_also_what_python_calls_them():
    assert issubclass(InputError, ValueError)
    assert issubclass(errors.OutOfMemoryError, MemoryError)
    assert issubclass(errors.ClosedError, RuntimeError)


def test_a_model_description_is_taken_literally():
    from isthmus.models.description import (
        EmbeddingSpec,
        LlmEntry,
        ModelDescription,
        PromptSpec,
        TextSpec,
        TokenizerSpec,
    )

    made = ModelDescription(
        "m",
        "qwen2",
        TextSpec(8, 1, 2, 1, 4, 100, 1e4, 64),
        EmbeddingSpec("embedding.bin", "float32"),
        TokenizerSpec("tokenizer_json", ("tokenizer.json",)),
        PromptSpec("chatml", None),
        (2,),
        (LlmEntry("decode", 1, 64),),
        -1e4,
    )
    data = made.to_json()
    assert ModelDescription.from_json(data) == made
    for path, value in (
        (("text", "layers"), "1"),
        (("text", "layers"), True),
        (("stop_ids",), "2"),
        (("name",), 5),
        (("mask_value",), float("nan")),
        (("llm",), [[]]),
        (("extra",), 1),
    ):
        forged = copy.deepcopy(data)
        place = forged
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        with pytest.raises(InputError, match="is damaged"):
            ModelDescription.from_json(forged)
