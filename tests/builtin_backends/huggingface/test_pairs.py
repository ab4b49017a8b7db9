"""Pairs of texts in the template of each family's tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import NormalizedString, PreTokenizedString, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from sglang_plug import TokenizerSource
from sglang_plug_backends.huggingface.tokenizer import HuggingFaceTokenizer, load_tokenizer

PAIRS = {
    "bert": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [1, 4, 5, 2, 6, 2]),
    "xlm-roberta": ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]", [1, 4, 5, 2, 2, 6, 2]),
    "decoder": ("$A", "$A $B:1", [4, 5, 6]),
}


WORDS = {word: index for index, word in enumerate(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "what", "panda", "bear"])}


@pytest.mark.parametrize("family", PAIRS)
def test_as_the_post_processor_says(family: str, tmp_path: Path) -> None:
    single, pair, expected = PAIRS[family]
    backend = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    special = [(item, WORDS[item]) for item in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
    backend.enable_truncation(3)
    backend.enable_padding(length=30, pad_id=3)
    library = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    library.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(TokenizerSource(path=tmp_path))
    assert tokenizer.encode_pair("what panda", "bear") == expected
    assert tokenizer.encode_pair("what panda", "\ud800") != expected  # lone surrogates are read as U+FFFD


class Splitting:
    """A tokenizer that splits at spaces, and records the texts that it is called with."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        def split(index: int, part: NormalizedString) -> list[NormalizedString]:
            self.texts.append(str(part))
            return part.split(" ", "removed")

        text.split(split)


def test_the_first_text_of_many_pairs_is_tokenized_once() -> None:
    backend, splitting = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]")), Splitting()
    backend.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    library = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    library.backend_tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(splitting)
    tokenizer = HuggingFaceTokenizer(library, None, (2,))
    assert tokenizer.encode_pair("what panda", "bear") == [1, 4, 5, 2, 6, 2]
    assert tokenizer.encode_pair("what panda", "panda") == [1, 4, 5, 2, 5, 2]
    assert tokenizer.encode_pair("bear", "panda") == [1, 6, 2, 5, 2]
    assert tokenizer.encode_pair("what panda", "bear") == [1, 4, 5, 2, 6, 2]
    assert splitting.texts == ["what panda", "bear", "panda", "bear", "panda", "what panda", "bear"]
