"""Golden prompts. Source: conversation.py of OpenGVLab's InternVL (see templates.py)."""

from __future__ import annotations

import pytest
from isthmus.errors import InputError
from isthmus.pipeline.templates import NAMED, jinja_template

INTERNVL2 = (
    "你是由上海人工智能实验室联合商汤科技开发的书生多模态大模型，英文名叫InternVL, 是一个有用无害的人工智能助手。"
)
INTERNVL2_5 = (
    "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
)

ONE = [{"role": "user", "content": "<image>\nWhat is this?"}]
TWO = [*ONE, {"role": "assistant", "content": "A cat."}, {"role": "user", "content": "Sure?"}]


def with_system(text: str, messages: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{"role": "system", "content": text}, *messages]


GOLDEN = {
    "internvl2_5": (
        with_system(INTERNVL2_5, TWO),
        (
            f"<|im_start|>system\n{INTERNVL2_5}<|im_end|>\n"
            "<|im_start|>user\n<image>\nWhat is this?<|im_end|>\n"
            "<|im_start|>assistant\nA cat.<|im_end|>\n"
            "<|im_start|>user\nSure?<|im_end|>\n"
            "<|im_start|>assistant\n"
        ),
    ),
    "hermes-2": (
        with_system(INTERNVL2, TWO),
        (
            f"<|im_start|>system\n{INTERNVL2}<|im_end|>"
            "<|im_start|>user\n<image>\nWhat is this?<|im_end|>"
            "<|im_start|>assistant\nA cat.<|im_end|>"
            "<|im_start|>user\nSure?<|im_end|>"
            "<|im_start|>assistant\n"
        ),
    ),
    "internlm2-chat": (
        with_system(INTERNVL2, ONE),
        (
            f"<|im_start|>system\n{INTERNVL2}<|im_end|>"
            "<|im_start|>user\n<image>\nWhat is this?<|im_end|>"
            "<|im_start|>assistant\n"
        ),
    ),
    "phi3-chat": (
        with_system(INTERNVL2, TWO),
        (
            f"<|system|>\n{INTERNVL2}<|end|>"
            "<|user|>\n<image>\nWhat is this?<|end|>"
            "<|assistant|>\nA cat.<|end|>"
            "<|user|>\nSure?<|end|>"
            "<|assistant|>\n"
        ),
    ),
    "chatml": (ONE, "<|im_start|>user\n<image>\nWhat is this?<|im_end|>\n<|im_start|>assistant\n"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_every_family_writes_its_golden_prompt(name: str) -> None:
    messages, text = GOLDEN[name]
    assert NAMED[name](messages) == text


def test_every_template_has_a_golden_prompt() -> None:
    assert GOLDEN.keys() == NAMED.keys()


def test_an_empty_system_message_is_a_turn_and_none_is_not() -> None:
    markup = NAMED["internvl2_5"]
    assert markup(with_system("", ONE)).startswith("<|im_start|>system\n<|im_end|>\n<|im_start|>user")
    assert markup(ONE).startswith("<|im_start|>user")


CHATML = (
    "{%- set eos_token = '<|im_end|>' -%}"
    "{% for message in messages %}\n"
    "    {% if message['role'] == 'tool' %}{% continue %}{% endif %}\n"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + eos_token + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def test_a_jinja_template_is_rendered_with_the_settings_of_transformers() -> None:
    assert jinja_template(CHATML)(TWO) == NAMED["chatml"](TWO)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for %}", "does not parse"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ 1 + 'a' }}", "TypeError"),
        ("{{ messages[0]['content'].no.such }}", "UndefinedError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe|undefined|Security|failed"),
        ("{{ messages.append(1) }}", "Security"),
        ("{{ 1 // 0 }}", "ZeroDivision"),
    ],
)
def test_a_bad_jinja_template_is_an_input_error(source: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        jinja_template(source)(ONE)
