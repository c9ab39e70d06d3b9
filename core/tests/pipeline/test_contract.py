"""An artifact whose entries are not those its description promises is refused when it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from isthmus import DType, EntrySpec, Quantization, TensorSpec
from isthmus.errors import IncompatibleError, InputError, UnsupportedError
from isthmus.models.description import LlmEntry

Edit = Callable[[TensorSpec], TensorSpec | None]


def edit_tensor(entry: str, name: str, edit: Edit) -> Callable[[dict[str, EntrySpec]], None]:
    def edit_entries(entries: dict[str, EntrySpec]) -> None:
        def side(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
            return tuple(new for t in tensors if (new := edit(t) if t.name == name else t) is not None)

        spec = entries[entry]
        entries[entry] = EntrySpec(side(spec.inputs), side(spec.outputs))

    return edit_entries


def with_shape(*shape: int) -> Edit:
    return lambda t: attrs.evolve(t, shape=shape)


@pytest.mark.parametrize(
    ("entry", "tensor", "edit", "message"),
    [
        ("decode", "cos", lambda t: None, r"inputs of entry 'decode': missing \['cos'\], unknown \[\]"),
        ("decode", "sin", lambda t: attrs.evolve(t, name="sine"), r"missing \['sin'\], unknown \['sine'\]"),
        ("prefill", "new_key_1", lambda t: None, r"outputs of entry 'prefill': missing \['new_key_1'\]"),
        ("prefill", "past_value_0", with_shape(1, 2, 112, 4), r"past_value_0.* says \[1, 112, 2, 4\]"),
        ("prefill", "logits", with_shape(1, 1, 99), r"logits: float32\[1, 1, 99\]"),
        ("decode", "inputs_embeds", with_shape(1, 1, 8), r"inputs_embeds.* says \[1, 1, 16\]"),
        ("vision", "image_features", with_shape(1, 5, 16), r"image_features.* says \[1, 4, 16\]"),
        ("prefill", "last_index", lambda t: attrs.evolve(t, dtype=DType.INT64), "last_index.* must be int32"),
    ],
)
def test_a_tensor_that_is_missing_unknown_or_of_another_shape_is_named(
    make_pipeline: Any, entry: str, tensor: str, edit: Edit, message: str
) -> None:
    with pytest.raises(IncompatibleError, match=message):
        make_pipeline(edit=edit_tensor(entry, tensor, edit))


@pytest.mark.parametrize(
    "edit",
    [
        lambda t: attrs.evolve(t, dtype=DType.BFLOAT16),
        lambda t: attrs.evolve(t, dtype=DType.UINT16, quantization=Quantization((0.1,), (0,))),
    ],
)
def test_tensors_that_the_pipeline_cannot_feed_are_refused(make_pipeline: Any, edit: Edit) -> None:
    with pytest.raises(UnsupportedError, match="the pipeline feeds float32 and float16"):
        make_pipeline(edit=edit_tensor("decode", "cos", edit))


@pytest.mark.parametrize("name", ["logits", "past_key_1", "new_value_0"])
def test_entries_that_share_memory_must_agree_on_its_element_type(make_pipeline: Any, name: str) -> None:
    half = edit_tensor("decode", name, lambda t: attrs.evolve(t, dtype=DType.FLOAT16))
    with pytest.raises(IncompatibleError, match="several element types: float16, float32"):
        make_pipeline(edit=half)


def test_a_missing_entry_is_named(make_pipeline: Any) -> None:
    with pytest.raises(InputError, match="no entry 'vision'"):
        make_pipeline(edit=lambda entries: entries.pop("vision"))


@pytest.mark.parametrize(
    ("llm", "message"),
    [((), "lists no language-model entry"), ((LlmEntry("decode", 2, 1),), "2 tokens in a context of 1")],
)
def test_a_description_without_usable_entries_is_refused(make_pipeline: Any, llm: Any, message: str) -> None:
    with pytest.raises(IncompatibleError, match=message):
        make_pipeline(llm=llm, image=None, edit=lambda entries: entries.clear())
