"""How each model family writes a conversation as text.

Source of the named ones: ``conversation.py`` of OpenGVLab's InternVL, separator style MPT: each message is its role's
opening, the text and the separator; the last role stays open. Note what differs: the separator of ``internvl2_5`` ends
in a newline, that of the InternVL2 families does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import jinja2
import jinja2.ext
import jinja2.sandbox

from ..errors import InputError

Message = Mapping[str, str]
"""``role`` (system, user or assistant) and ``content``."""

Template = Callable[[Sequence[Message]], str]
"""Text of a conversation, with the assistant's next turn opened."""


@attrs.frozen
class Markup:
    """Openings of the three roles and what ends a message."""

    system: str
    user: str
    assistant: str
    end: str
    controls: tuple[str, ...]
    """The control tokens in the above."""

    def __call__(self, messages: Sequence[Message]) -> str:
        """Text of a conversation."""
        opening = {"system": self.system, "user": self.user, "assistant": self.assistant}
        turns = [opening[m["role"]] + m["content"] + self.end for m in messages]
        return "".join(turns) + self.assistant


def _chatml(end: str) -> Markup:
    start = "<|im_start|>"
    return Markup(f"{start}system\n", f"{start}user\n", f"{start}assistant\n", end, controls=(start, "<|im_end|>"))


NAMED: Mapping[str, Markup] = {
    "internvl2_5": _chatml("<|im_end|>\n"),
    "chatml": _chatml("<|im_end|>\n"),
    "hermes-2": _chatml("<|im_end|>"),
    "internlm2-chat": _chatml("<|im_end|>"),
    "phi3-chat": Markup(
        "<|system|>\n",
        "<|user|>\n",
        "<|assistant|>\n",
        "<|end|>",
        controls=("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    ),
}


def jinja_template(source: str) -> Template:
    """A checkpoint's own chat template, in a sandbox, with the settings transformers uses.

    It writes its own first token; names like ``eos_token`` are set at its top by the exporter. ``InputError``: it does
    not parse, or refuses a conversation.
    """
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.globals["raise_exception"] = _refuse
    try:
        template = environment.from_string(source)
    except jinja2.TemplateError as error:
        raise InputError(f"the model's chat template does not parse: {error}", fix="export it again") from error

    def render(messages: Sequence[Message]) -> str:
        try:
            return template.render(messages=messages, add_generation_prompt=True)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the model's chat template failed: {type(error).__name__}: {error}") from error

    return render


def _refuse(message: str) -> None:
    raise InputError(f"the model's chat template refuses this conversation: {message}")
