"""Tiny tokenizers of the kinds that checkpoints contain, saved in the format of checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "the dog sleeps, the fox runs",
    "Grüße aus Köln, viele Grüße",
    "你好，世界。你好吗？",
    "def add(a, b):\n    return a + b",
]
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]

Save = Callable[..., Path]


def byte_level() -> Tokenizer:
    """Build byte-level BPE, as in GPT-2, Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=360, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("é!", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Build Sentencepiece BPE with byte fallback, as in Llama 2 and Mistral."""
    letters = sorted(set("".join(SENTENCES[:2]).replace(" ", "")))
    words = ["▁", *letters, "▁t", "he", "▁the", "▁d", "▁f", "og", "▁dog", "▁▁"]
    vocabulary = {name: index for index, name in enumerate(["<unk>", *SPECIAL])}
    for name in [*(f"<0x{byte:02X}>" for byte in range(256)), *words]:
        vocabulary.setdefault(name, len(vocabulary))
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "d"), ("▁", "f"), ("o", "g"), ("▁d", "og"), ("▁", "▁")]
    model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def metaspace() -> Tokenizer:
    """Build Unigram, as in T5 and XLM-R."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def wordpiece() -> Tokenizer:
    """Build WordPiece, as in BERT."""
    words = ["the", "dog", "fox", "run", "##s", "##ning", ",", ".", "don", "'", "t"]
    vocabulary = {name: index for index, name in enumerate(["[UNK]", *SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


MAKERS = {
    "byte-level": byte_level,
    "byte-fallback": byte_fallback,
    "metaspace": metaspace,
    "wordpiece": wordpiece,
}


@pytest.fixture(scope="session")
def save_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Save:
    """Return ``save(kind, **tokenizer_config)``, which writes a tokenizer's files to a new folder."""

    def save(kind: str = "byte-level", **config: Any) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        MAKERS[kind]().save(str(folder / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", **config}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        return folder

    return save


@pytest.fixture(scope="session")
def folders(save_tokenizer: Save) -> dict[str, Path]:
    """Return a folder for each kind of tokenizer."""
    return {kind: save_tokenizer(kind) for kind in MAKERS}
