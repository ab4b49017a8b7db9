"""The vocabulary of the model, read with the tokenizer component."""

from __future__ import annotations

from functools import partial

from sglang_plug.contracts.text.tokenizer import Tokenizer
from sglang_plug.contracts.text.vocabulary import Vocabulary


def read_vocabulary(tokenizer: Tokenizer, size: int, stop_ids: tuple[int, ...]) -> Vocabulary:
    """Read the vocabulary of a model with ``size`` token ids; ids that the tokenizer lacks have no text."""
    special, known = tokenizer.special_token_ids, min(size, tokenizer.vocab_size)
    pieces = [b"" if token in special else tokenizer.piece_bytes(token) for token in range(known)]
    pieces += [b""] * (size - known)
    stops = tuple(dict.fromkeys((*stop_ids, *tokenizer.eos_token_ids)))
    names = {tokenizer.piece(token): token for token in sorted(special) if token < known}
    return Vocabulary(pieces, stops, names, partial(tokenizer.encode, special=False))
