"""Pairs of texts in the template of each family's tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from sglang_plug import TokenizerSource
from sglang_plug_backends.huggingface.tokenizer import load_tokenizer

PAIRS = {
    "bert": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [1, 4, 5, 2, 6, 2]),
    "xlm-roberta": ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]", [1, 4, 5, 2, 2, 6, 2]),
    "decoder": ("$A", "$A $B:1", [4, 5, 6]),
}


@pytest.mark.parametrize("family", PAIRS)
def test_as_the_post_processor_says(family: str, tmp_path: Path) -> None:
    single, pair, expected = PAIRS[family]
    words = {word: index for index, word in enumerate(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "what", "panda", "bear"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [(item, words[item]) for item in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
    backend.enable_truncation(3)
    backend.enable_padding(length=30, pad_id=3)
    library = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    library.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(TokenizerSource(path=tmp_path))
    assert tokenizer.encode_pair("what panda", "bear") == expected
    assert tokenizer.encode_pair("what panda", "\ud800") != expected  # lone surrogates are read as U+FFFD
