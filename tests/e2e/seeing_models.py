"""Tiny models that see images, and what ``transformers`` computes with them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from sglang_plug import MediaPrompt, MediaSource, Plugins

from .document_models import demo

TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
SPECIAL = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


def image_text(family: str) -> str:
    """What stands for an image in the text of a prompt."""
    return "<|image_pad|>" if family == "llava" else QWEN_IMAGE


def png(width: int, height: int, seed: int = 0, form: str = "PNG") -> bytes:
    """An image file: noise, each seed another one."""
    noise = torch.randint(0, 256, (height, width, 3), generator=torch.Generator().manual_seed(seed))
    file = io.BytesIO()
    Image.fromarray(noise.to(torch.uint8).numpy()).save(file, form)
    return file.getvalue()


@dataclass(frozen=True)
class SeeingModel:
    """A checkpoint, and transformers' model of it."""

    path: Path
    reference: PreTrainedModel
    tokenizer: Any
    image_token: int

    def tokens(self, text: str) -> list[int]:
        """Of a text, in which ``<|image_pad|>`` stands for an image."""
        found: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    @torch.inference_mode()
    def greedy(self, tokens: Sequence[int], images: Sequence[bytes], count: int) -> tuple[list[int], list[float]]:
        """The continuation of expanded ``tokens``, and its log-probabilities; computed without a cache."""
        row, logprobs = list(tokens), list[float]()
        given = self._seen(images)
        for _ in range(count):
            ids = torch.tensor([row])
            positioned = "image_grid_thw" in given
            types = {"mm_token_type_ids": (ids == self.image_token).int()} if positioned else {}
            logits = self.reference(input_ids=ids, use_cache=False, **given, **types).logits[0, -1]
            row.append(int(logits.argmax()))
            logprobs.append(float(logits.log_softmax(-1).max()))
        return row[len(tokens) :], logprobs

    def prompt(self, text: str, images: Sequence[bytes]) -> MediaPrompt:
        """What the server's processor makes of a text and images."""
        name = {LlavaForConditionalGeneration: "llava"}.get(type(self.reference), "qwen-vl")
        load = Plugins.discover().get("media-processor", name).load()
        found: MediaPrompt = load(MediaSource(path=self.path)).prompt(self.tokens(text), images)
        return found

    def _seen(self, images: Sequence[bytes]) -> dict[str, Any]:
        if not images:
            return {}
        opened = [Image.open(io.BytesIO(one)).convert("RGB") for one in images]
        processor = AutoImageProcessor.from_pretrained(self.path, backend="pil")
        return dict(processor(images=opened, return_tensors="pt"))


def make_seeing(family: str, folder: Path) -> SeeingModel:
    """``qwen2-vl``, ``qwen2.5-vl`` or ``llava``, with random weights and the demo's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(demo())
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    tokenizer.chat_template = TEMPLATE.replace("IMAGE", image_text(family))
    start, image, end, video = (tokenizer.convert_tokens_to_ids(one) for one in SPECIAL)
    text = {
        **TEXT,
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
    }
    ids = {"image_token_id": image, "video_token_id": video, "vision_start_token_id": start, "vision_end_token_id": end}
    images: Any = Qwen2VLImageProcessorPil(patch_size=4, min_pixels=8 * 8, max_pixels=96 * 96)
    vision: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": 4, "initializer_range": 0.2}
    torch.manual_seed(5)
    model: PreTrainedModel
    if family == "qwen2-vl":
        vision |= {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
        config: Any = Qwen2VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
        model = Qwen2VLForConditionalGeneration(config)
    elif family == "llava":
        text = {**text, "model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
        vision = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 40, "image_size": 24}
        vision |= {"num_hidden_layers": 3, "num_attention_heads": 2, "patch_size": 6, "initializer_factor": 4.0}
        config = LlavaConfig(text_config=text, vision_config=vision, image_token_index=image, image_seq_length=16)
        model = LlavaForConditionalGeneration(config)
        images = CLIPImageProcessorPil(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24})
    else:
        vision |= {"hidden_size": 32, "intermediate_size": 40, "out_hidden_size": 64}
        vision |= {"window_size": 16, "fullatt_block_indexes": [1]}
        config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids)
        model = Qwen2_5_VLForConditionalGeneration(config)
    model.float().eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    images.save_pretrained(folder)
    return SeeingModel(folder, model, tokenizer, image)
