"""A grammar of given texts, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sglang_plug import Grammar


class OneOfTexts(Grammar):
    """A grammar that accepts some texts; ``pieces`` are the bytes of each token."""

    def __init__(self, pieces: Sequence[bytes], texts: Sequence[bytes]) -> None:
        self.pieces, self.texts = pieces, texts
        self.tokens: list[int] = []

    @property
    def generated(self) -> bytes:
        """The text generated so far, as bytes."""
        return b"".join(self.pieces[token] for token in self.tokens)

    def allowed(self) -> list[int]:
        """Return the tokens that may come next."""
        rests = [text[len(self.generated) :] for text in self.texts if text.startswith(self.generated)]
        starts = {suffix[:end] for suffix in rests for end in range(1, len(suffix) + 1)}
        return [token for token, piece in enumerate(self.pieces) if piece in starts]

    def fill(self, mask: Tensor, row: int) -> None:
        mask[row] = 0
        for token in self.allowed():
            bit = token % 32
            mask[row, token // 32] |= 1 << bit if bit < 31 else -(1 << 31)

    def accept(self, token: int) -> bool:
        if token not in self.allowed():
            return False
        self.tokens.append(token)
        return True

    def rollback(self, count: int) -> None:
        del self.tokens[len(self.tokens) - count :]

    @property
    def may_end(self) -> bool:
        return self.generated in self.texts

    @property
    def ended(self) -> bool:
        return self.may_end and not self.allowed()
