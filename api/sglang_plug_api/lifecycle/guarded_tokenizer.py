"""A tokenizer for the API process whose library panics are raised as ``Exception``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from sglang_plug import StreamDecoder, Tokenizer
from sglang_plug.system.library_panics import raise_panic_as_error

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class _Named(Protocol):
    @property
    def name(self) -> str:
        """The component's name, for errors."""


Owner = TypeVar("Owner", bound=_Named)
Method = Callable[Concatenate[Owner, Arguments], Result]


def guarded(method: Method[Owner, Arguments, Result]) -> Method[Owner, Arguments, Result]:
    """Return ``method`` with panics of its library turned into errors that name the component."""

    @functools.wraps(method)
    def call(owner: Owner, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        try:
            return method(owner, *arguments, **named)
        except BaseException as error:
            raise_panic_as_error(error, f"{owner.name}, in {method.__name__}(),")
            raise

    return call


class GuardedDecoder(StreamDecoder):
    """A stream decoder that turns panics of its library into errors."""

    def __init__(self, decoder: StreamDecoder, name: str) -> None:
        self._decoder, self.name = decoder, name

    @guarded
    def feed(self, tokens: Sequence[int]) -> str:
        """Decode as ``StreamDecoder.feed`` does."""
        return self._decoder.feed(tokens)

    @guarded
    def flush(self) -> str:
        """Flush as ``StreamDecoder.flush`` does."""
        return self._decoder.flush()


class GuardedTokenizer(Tokenizer):
    """A tokenizer that turns panics of its library into errors that name the component.

    Args:
        tokenizer: the component's tokenizer.
        name: the component's name, for errors.
    """

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        self._tokenizer, self.name = tokenizer, name

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that the tokenizer has beyond the contract."""
        return getattr(self._tokenizer, name)

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary, as in ``Tokenizer.vocab_size``."""
        return self._tokenizer.vocab_size

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The end tokens, as in ``Tokenizer.eos_token_ids``."""
        return self._tokenizer.eos_token_ids

    @property
    def special_token_ids(self) -> frozenset[int]:
        """The special tokens, as in ``Tokenizer.special_token_ids``."""
        return self._tokenizer.special_token_ids

    @guarded
    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Encode as ``Tokenizer.encode`` does."""
        return self._tokenizer.encode(text, special=special)

    @guarded
    def encode_pair(self, first: str, second: str) -> list[int]:
        """Encode as ``Tokenizer.encode_pair`` does."""
        return self._tokenizer.encode_pair(first, second)

    @guarded
    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Decode as ``Tokenizer.decode`` does."""
        return self._tokenizer.decode(tokens, skip_special=skip_special)

    @guarded
    def piece(self, token: int) -> str:
        """Return the text of one token as ``Tokenizer.piece`` does."""
        return self._tokenizer.piece(token)

    @guarded
    def piece_bytes(self, token: int) -> bytes:
        """Return the bytes of one token as ``Tokenizer.piece_bytes`` does."""
        return self._tokenizer.piece_bytes(token)

    @guarded
    def chat_template(self, *, tools: bool = False) -> str | None:
        """Return the template as ``Tokenizer.chat_template`` does."""
        return self._tokenizer.chat_template(tools=tools)

    @guarded
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Render a conversation as ``Tokenizer.chat`` does."""
        return self._tokenizer.chat(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )

    @guarded
    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> StreamDecoder:
        """Return a stream decoder as ``Tokenizer.decoder`` does."""
        return GuardedDecoder(self._tokenizer.decoder(skip_special=skip_special, prompt=prompt), self.name)
