"""A random checkpoint of a model family, with transformers' results for it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from .families import families


class TinyModel:
    """A random checkpoint on disk, with transformers' model of it."""

    def __init__(self, path: Path, reference: PreTrainedModel) -> None:
        self.path, self.reference = path, reference
        self._logits = functools.lru_cache(maxsize=32)(self._forward)

    @torch.inference_mode()
    def greedy(self, tokens: Sequence[int], count: int, guess: Sequence[int] = ()) -> list[int]:
        """Return transformers' greedy continuation, computed without a KV cache.

        If ``guess`` is that continuation, one pass shows it: each of its tokens is the likeliest after those before.
        """
        if len(guess) == count:
            logits = self._logits((*tokens, *guess))[len(tokens) - 1 : -1]
            if logits.argmax(-1).tolist() == list(guess):
                return list(guess)
        row = list(tokens)
        for _ in range(count):
            row.append(int(self._forward(tuple(row))[-1].argmax()))
        return row[len(tokens) :]

    @torch.inference_mode()
    def logprobs(self, tokens: Sequence[int]) -> list[float]:
        """Return the log-probability of each token but the first."""
        logits = self._logits(tuple(tokens))[:-1]
        chosen = torch.tensor(tokens[1:])[:, None]
        return logits.log_softmax(-1).gather(1, chosen)[:, 0].tolist()

    @torch.inference_mode()
    def ranks(self, tokens: Sequence[int], tolerance: float = 1e-4) -> list[range]:
        """Return the possible ranks of each token but the first, if log-probabilities differ by up to half the
        tolerance."""
        logprobs = self._logits(tuple(tokens))[:-1].log_softmax(-1)
        chosen = logprobs.gather(1, torch.tensor(tokens[1:])[:, None])
        first = (logprobs > chosen + tolerance).sum(-1) + 1
        last = (logprobs >= chosen - tolerance).sum(-1)
        return [range(low, high + 1) for low, high in zip(first.tolist(), last.tolist(), strict=True)]

    def _forward(self, tokens: tuple[int, ...]) -> torch.Tensor:
        return self.reference(torch.tensor([tokens])).logits[0]


def make_tiny_model(family: str, path: Path) -> TinyModel:
    """Write a random checkpoint of a family to a folder."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(families()[family], attn_implementation="eager").float().eval()
    model.save_pretrained(path)
    return TinyModel(path, model)
