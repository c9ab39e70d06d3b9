"""Pictures and words in, words out: the host side of a multimodal model, the same on every backend.

>>> from isthmus.pipeline import Pipeline
>>> with isthmus.open_device("cpu") as device, Pipeline.load(device, artifact) as pipeline:  # doctest: +SKIP
...     with pipeline.chat() as chat:
...         print(chat.ask("What digit is this?", ["digit.png"]).text)

One file per step, in order: picture, tiles, vision; templates, prompt, tokens; embed, rope, mask, kv, plan, step,
session; sample, gate, generate; chat, pipeline; evaluate.
"""

from .chat import Chat
from .evaluate import Evaluation, evaluate
from .gate import Gate
from .generate import Answer, Timings
from .pipeline import Pipeline
from .sample import Sampling

__all__ = ["Answer", "Chat", "Evaluation", "Gate", "Pipeline", "Sampling", "Timings", "evaluate"]
