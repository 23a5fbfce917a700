"""Several texts that a language model continues together, one token of each at a time."""

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from inference.engine.channel import Message
from inference.engine.handler import Handler
from inference.engine.interface import InputError


@dataclass
class Text:
    """One text, and how it is continued. `left` tokens are still to come."""

    tokens: list[int]
    left: int
    temperature: float
    top_k: int
    stop: frozenset[int]
    generator: torch.Generator = field(default_factory=torch.Generator)

    def choose(self, logits: Tensor) -> int:
        """The next token, logits of one text: the likeliest, or drawn with the temperature."""
        if self.temperature == 0:
            return int(logits.argmax())
        logits = logits / self.temperature
        if 0 < self.top_k < len(logits):
            best = logits.topk(self.top_k)
            drawn = torch.multinomial(best.values.softmax(0), 1, generator=self.generator)
            return int(best.indices[drawn])
        return int(torch.multinomial(logits.softmax(0), 1, generator=self.generator))


class Generation:
    """The texts that are being continued. New ones join, and old ones leave, at any step."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._texts: dict[int, Text] = {}

    @property
    def active(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._texts)

    def take(self, message: Message) -> None:
        """A new text, or the end of one."""
        if message["do"] == "stop":
            self._texts.pop(message["id"], None)
            return
        text = Text(
            list(message["tokens"]),
            message["max_tokens"],
            message["temperature"],
            message["top_k"],
            frozenset(message["stop"]),
        )
        if message["seed"] is None:
            text.generator.seed()
        else:
            text.generator.manual_seed(message["seed"])
        self._texts[message["id"]] = text

    def step(self) -> Message:
        """One more token of each text; a stop token ends a text and is not given."""
        began = time.perf_counter()
        errors: dict[int, str] = {}
        try:
            logits = dict(zip(self._texts, self._logits(list(self._texts.values())), strict=True))
        except Exception:
            logits = self._one_by_one(errors)
        tokens: list[tuple[int, int]] = []
        ended: list[int] = []
        for identity, row in logits.items():
            text = self._texts[identity]
            try:
                token = text.choose(row)
            except RuntimeError as error:
                errors[identity] = f"no token can be drawn: {error}"
                continue
            if token in text.stop:
                ended.append(identity)
                continue
            tokens.append((identity, token))
            text.tokens.append(token)
            text.left -= 1
            if text.left == 0:
                ended.append(identity)
        for identity in (*ended, *errors):
            del self._texts[identity]
        return self._told(tokens, ended, errors, time.perf_counter() - began)

    def _one_by_one(self, errors: dict[int, str]) -> dict[int, Tensor]:
        logits = {}
        for identity, text in self._texts.items():
            try:
                logits[identity] = self._logits([text])[0]
            except InputError as error:
                errors[identity] = str(error)
            except Exception as error:
                errors[identity] = f"the model cannot compute it: {type(error).__name__}: {error}"
        return logits

    def _logits(self, texts: list[Text]) -> Tensor:
        context = self._handler.context
        rows = [torch.tensor(text.tokens[-context:], dtype=torch.int64) for text in texts]
        lengths = torch.tensor([len(row) for row in rows])
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        with torch.inference_mode():
            return self._handler.next_logits(padded, lengths)

    def _told(
        self,
        tokens: list[tuple[int, int]],
        ended: list[int],
        errors: dict[int, str],
        seconds: float,
    ) -> Message:
        told: dict[str, Any] = {"tokens": tokens, "ended": ended, "seconds": seconds}
        return {"is": "tokens", **told, "errors": {key: text[:500] for key, text in errors.items()}}
