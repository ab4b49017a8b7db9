"""Tiny vision-language models, and the results of ``transformers`` for them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, PretrainedConfig, PreTrainedModel

from sglang_plug import MediaProcessor, MediaPrompt, MediaSource, Plugins

from .document_models import demo
from .vision_families import FAMILIES, SPECIAL, TEXT, Family, Ids

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN_IMAGE = FAMILIES["qwen2-vl"].in_text
SQUARE = 8
"""Side of an image patch of one token of the tiny Mistral, in pixels."""


def png(width: int, height: int, seed: int = 0, form: str = "PNG") -> bytes:
    """Return a PNG file of random pixels."""
    noise = torch.randint(0, 256, (height, width, 3), generator=torch.Generator().manual_seed(seed))
    file = io.BytesIO()
    Image.fromarray(noise.to(torch.uint8).numpy()).save(file, form)
    return file.getvalue()


@dataclass(frozen=True)
class VisionModel:
    """A checkpoint, and the model of transformers with its weights."""

    path: Path
    family: Family
    reference: PreTrainedModel
    tokenizer: Any

    def tokens(self, text: str) -> list[int]:
        """Return the token ids of a text, in which ``<|image_pad|>`` stands for an image."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    @torch.inference_mode()
    def greedy(self, tokens: Sequence[int], images: Sequence[bytes], count: int) -> tuple[list[int], list[float]]:
        """Return the greedy continuation of expanded ``tokens`` and its log-probabilities, computed without a cache."""
        row, logprobs = list(tokens), list[float]()
        image_inputs = self._image_inputs(images)
        for _ in range(count):
            ids = torch.tensor([row])
            logits = self.reference(
                input_ids=ids, use_cache=False, **image_inputs, **self._types(ids, image_inputs)
            ).logits[0, -1]
            row.append(int(logits.argmax()))
            logprobs.append(float(logits.log_softmax(-1).max()))
        return row[len(tokens) :], logprobs

    @torch.inference_mode()
    def predicted(self, tokens: Sequence[int], images: Sequence[bytes], answer: Sequence[int]) -> Any:
        """Return the likeliest tokens at the positions of ``answer``, after expanded ``tokens``, and log-probabilities.

        If these tokens are the answer itself, ``greedy`` returns it, too; this method takes one forward pass.
        """
        ids, image_inputs = torch.tensor([[*tokens, *answer]]), self._image_inputs(images)
        logits = self.reference(
            input_ids=ids, use_cache=False, **image_inputs, **self._types(ids, image_inputs)
        ).logits[0]
        predictions = logits[len(tokens) - 1 : -1]
        return predictions.argmax(-1).tolist(), predictions.log_softmax(-1).amax(-1).tolist()

    def prompt(self, text: str, images: Sequence[bytes]) -> MediaPrompt:
        """Return the prompt that the server's media processor makes from a text and images."""
        return self._processor.prompt(self.tokens(text), images)

    @cached_property
    def _processor(self) -> MediaProcessor:
        load = Plugins.discover().get("media-processor", self.family.processor).load()
        processor: MediaProcessor = load(MediaSource(path=self.path))
        return processor

    def _image_inputs(self, images: Sequence[bytes]) -> dict[str, Any]:
        if not images:
            return {}
        opened = [Image.open(io.BytesIO(image)).convert("RGB") for image in images]
        processor = AutoImageProcessor.from_pretrained(self.path, backend="pil")
        own = {"patch_size": SQUARE} if "Pixtral" in type(processor).__name__ else {}
        batch = [opened] if "Onevision" in type(processor).__name__ else opened
        inputs = dict(processor(images=batch, return_tensors="pt", **own))
        for name in ("num_crops", "num_patches"):
            inputs.pop(name, None)
        return inputs

    def _types(self, ids: torch.Tensor, image_inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the input that marks image tokens, for the families that need it."""
        config = self.reference.config
        if config.model_type == "gemma3" and image_inputs:
            return {"token_type_ids": (ids == config.image_token_id).int()}
        return {"mm_token_type_ids": (ids == config.image_token_id).int()} if "image_grid_thw" in image_inputs else {}


def write_processor(name: str, folder: Path) -> tuple[Any, PretrainedConfig]:
    """Write the files that the media processor of the family reads; return the tokenizer and the configuration."""
    family = FAMILIES[name]
    of_tokenizer = {name: SPECIAL[index] for name, index in family.of_tokenizer.items()}
    tokenizer = AutoTokenizer.from_pretrained(demo(), extra_special_tokens=of_tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": [*SPECIAL, *family.more]})
    tokenizer.chat_template = TEMPLATE.replace("IMAGE", family.in_text)
    text = {**TEXT, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    config = family.config(text, Ids(*(tokenizer.convert_tokens_to_ids(token) for token in SPECIAL)))
    config.architectures = [family.architecture]
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    family.images().save_pretrained(folder)
    if family.named:
        named = {name: SPECIAL[index] for name, index in family.named.items()}
        (folder / "processor_config.json").write_text(json.dumps(named))
    return tokenizer, config


def make_vision_model(name: str, folder: Path) -> VisionModel:
    """Write a model of the family ``name``, with random weights and the tokenizer of the demo model."""
    family = FAMILIES[name]
    tokenizer, config = write_processor(name, folder)
    torch.manual_seed(5)
    model: PreTrainedModel = getattr(transformers, family.architecture)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():  # zero-initialised parameters would hide errors
                parameter.normal_(std=0.2)
    model.float().eval().save_pretrained(folder)
    return VisionModel(folder, family, model, tokenizer)
