"""A model ready to answer questions: program, tokenizer, prompt, embedding table and vision, loaded once."""

from __future__ import annotations

from types import EllipsisType
from typing import Self

from ..artifact import ASSETS, Artifact
from ..device import Device
from ..memory import MemoryReport
from ..models.description import ModelDescription
from ..program import Program
from .chat import Chat
from .contract import check_entries
from .embed import EmbeddingTable
from .prompt import Prompter
from .tokens import load_tokenizer
from .vision import VisionEncoder


class Pipeline:
    """Conversations with one loaded program. A context manager; closing it closes its chats.

    Chats may run on several threads, one thread per chat; the device runs one graph at a time.
    """

    def __init__(self, program: Program) -> None:
        """Use a program the caller loaded, e.g. into his own memory, and keeps open.

        ``InputError``: no model description, or damaged assets. ``IncompatibleError``: the entries are not those the
        description promises.
        """
        artifact = program.artifact
        self.program = program
        self.model = ModelDescription.from_json(artifact.manifest.model)
        check_entries(program, self.model)
        prompt = self.model.prompt
        controls = (prompt.image_start, prompt.image_context, prompt.image_end) if self.model.image else ()
        self.tokenizer = load_tokenizer(
            self.model.tokenizer, lambda name: artifact.file(f"{ASSETS}/{name}"), controls=controls
        )
        self.prompter = Prompter(self.model, self.tokenizer)
        embedding = self.model.embedding
        text = self.model.text
        self.table = EmbeddingTable(artifact.file(f"{ASSETS}/{embedding.file}"), embedding, text.hidden, text.vocab)
        self.vision = VisionEncoder(program, self.model.image) if self.model.image else None
        self._chats: set[Chat] = set()
        self._owns_program = False

    @classmethod
    def load(cls, device: Device, artifact: Artifact, *, force: bool = False) -> Pipeline:
        """Load ``artifact`` on ``device`` and own the program. ``force`` as for ``Device.load``."""
        with device.memory.phase("load"):
            program = device.load(artifact, force=force)
            try:
                pipeline = cls(program)
            except BaseException:
                program.close()
                raise
        pipeline._owns_program = True
        return pipeline

    def memory(self) -> MemoryReport:
        """Books of the device: live and peak bytes of weights, workspace, I/O and KV, and what each phase changed."""
        return self.program.device.memory.report()

    def chat(self, *, system: str | EllipsisType | None = ..., use_cache: bool = True) -> Chat:
        """A new conversation with a KV cache of its own, allocated here.

        ``system`` replaces the model's own system message; ``None`` writes no system turn. Without ``use_cache`` each
        step computes the whole conversation again: for runtimes that cannot keep state, and as an oracle.
        """
        with self.program.device.memory.phase("chat"):
            chat = Chat(self, system, use_cache)
        self._chats.add(chat)
        return chat

    def close(self) -> None:
        """Close the chats, free the vision buffers, and unload the program if ``load`` made it."""
        for chat in list(self._chats):
            chat.close()
        if self.vision is not None:
            self.vision.close()
        if self._owns_program:
            self.program.close()

    def _forget(self, chat: Chat) -> None:
        self._chats.discard(chat)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
