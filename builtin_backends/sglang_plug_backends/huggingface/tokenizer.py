"""Text to tokens and back, with the files of a Hugging Face checkpoint."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from sglang_plug import ConfigError, StreamDecoder, TemplateError, Tokenizer, TokenizerSource

from .stream import ByteStream, TokenBytes, WindowStream, byte_rules
from .template import ChatTemplate

logger = logging.getLogger(__name__)

FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")
REMEDY = "name a folder that has one with --tokenizer-path, or serve token ids only with --skip-tokenizer-init"
CONTEXT = 4
"""Tokens of the prompt that the window decoder starts with."""


def load_tokenizer(source: TokenizerSource) -> Tokenizer:
    """The tokenizer in the folder ``source.path``.

    ``tokenizer.json`` is taken as it stands; older files are converted where transformers can do so. Code in the
    folder is never run. Raises ``ConfigError`` if there is no tokenizer, if it cannot be read, or if
    ``source.chat_template`` is neither a template nor a file that holds one.
    """
    library = _open(source.path)
    template = library.chat_template
    if source.chat_template is not None:
        template = _given_template(source.chat_template)
    tokenizer = HuggingFaceTokenizer(library, template, tuple(_eos_ids(library, source.path)))
    if template is not None:
        try:
            tokenizer.template(tools=False)
        except TemplateError as error:
            if source.chat_template is not None:
                raise ConfigError(f"--chat-template: {error}") from error
            logger.warning("Chats will be refused, as %s; give another one with --chat-template", error)
    return tokenizer


class HuggingFaceTokenizer:
    """A ``Tokenizer`` over the tokenizers library.

    The library's object is never changed after construction, so all methods may run in several threads at once.
    Text in a prompt that spells a control token is that token, as everywhere in this format. Lone surrogates,
    which no vocabulary has, become U+FFFD.
    """

    def __init__(self, library: Any, template: str | Mapping[str, str] | None, eos: tuple[int, ...]) -> None:
        self._backend = library.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._eos = eos
        added = self._backend.get_added_tokens_decoder()
        self._special = frozenset(token for token, one in added.items() if one.special)
        ids = self._backend.get_vocab(with_added_tokens=True).values()
        self._size = 1 + max(ids, default=-1)
        state = None if self._backend.decoder is None else json.loads(self._backend.decoder.__getstate__())
        rules = byte_rules(state)
        texts = {token: one.content for token, one in added.items()}
        self._bytes = None if rules is None else TokenBytes(rules, self._name, texts)
        self._sources = {"default": template} if isinstance(template, str) else dict(template or {})
        self._constants = {
            name: str(text) for name, text in library.special_tokens_map.items() if name.endswith("_token")
        }
        self._templates: dict[str, ChatTemplate] = {}

    @property
    def vocab_size(self) -> int:
        return self._size

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._eos

    @property
    def special_token_ids(self) -> frozenset[int]:
        return self._special

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return self._ids(text, special=special)

    def encode_pair(self, first: str, second: str) -> list[int]:
        return self._ids(first, second)

    def _ids(self, *texts: str, special: bool = True) -> list[int]:
        """Tokens of a text or a pair. A batch of one, because only batches let the process's other threads run."""
        try:
            (found,) = self._backend.encode_batch_fast([_one_or_pair(texts)], add_special_tokens=special)
        except TypeError:
            cleaned = tuple(map(_without_surrogates, texts))
            (found,) = self._backend.encode_batch_fast([_one_or_pair(cleaned)], add_special_tokens=special)
        ids: list[int] = found.ids
        return ids

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        if self._bytes is None:
            return self._library_text(tokens, skip_special)
        stream = self.decoder(skip_special=skip_special)
        return stream.feed(tokens) + stream.flush()

    def piece(self, token: int) -> str:
        if self._bytes is not None:
            return self._bytes[token].decode("utf-8", "replace")
        return self._library_text([token, token], False)[len(self._library_text([token], False)) :]

    def piece_bytes(self, token: int) -> bytes:
        return self.piece(token).encode() if self._bytes is None else self._bytes[token]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        return self.template(tools=bool(tools)).render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )

    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> StreamDecoder:
        """A decoder for one output. After a special token, or without a prompt, the output starts a text of its own."""
        follows = bool(prompt) and prompt[-1] not in self._special
        if self._bytes is None:
            context = prompt[-CONTEXT:] if follows else ()
            return WindowStream(lambda tokens: self._library_text(tokens, skip_special), context)
        stream = ByteStream(self._bytes, self._special if skip_special else frozenset())
        if follows:
            stream.follow(prompt)
        return stream

    def chat_template(self, *, tools: bool = False) -> str | None:
        """Text of the template for messages with or without tools."""
        return self._sources.get(self._template_name(tools))

    def template(self, *, tools: bool) -> ChatTemplate:
        """The template for messages with or without tools. Raises ``TemplateError`` if there is none."""
        name = self._template_name(tools)
        if name not in self._templates:
            if name not in self._sources:
                raise TemplateError(
                    "this model has no chat template; give one with --chat-template, or send a plain prompt"
                )
            self._templates[name] = ChatTemplate(self._sources[name], self._constants)
        return self._templates[name]

    def _template_name(self, tools: bool) -> str:
        return "tool_use" if tools and "tool_use" in self._sources else "default"

    def _name(self, token: int) -> str | None:
        name: str | None = self._backend.id_to_token(token) if 0 <= token < self._size else None
        return name

    def _library_text(self, tokens: Sequence[int], skip_special: bool) -> str:
        text: str = self._backend.decode(list(tokens), skip_special_tokens=skip_special)
        return text


def _open(path: Path) -> Any:
    if not path.is_dir():
        raise ConfigError(f"cannot load a tokenizer from {str(path)!r}: there is no such folder; {REMEDY}")
    if not any((path / name).is_file() for name in FILES):
        raise ConfigError(f"{path} holds no tokenizer (tokenizer.json or an older form); {REMEDY}")
    try:
        library = _reader(path).from_pretrained(str(path), local_files_only=True)
    except Exception as error:  # the library raises what its many file formats happen to raise
        message = " ".join(str(error).split())[:300]
        raise ConfigError(f"the tokenizer in {path} cannot be read: {message}; {REMEDY}") from error
    if not library.is_fast:
        raise ConfigError(f"the tokenizer in {path} exists only in slow Python form; {REMEDY}")
    return library


def _reader(path: Path) -> Any:
    """The class that reads the folder's files."""
    if (path / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer  # which imports torch: most processes that have a tokenizer need none

    return AutoTokenizer


def _given_template(given: str) -> str:
    """The text of ``--chat-template``, which may be a template or a file that holds one."""
    if "{" in given or "\n" in given:
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--chat-template: {given!r} is neither a Jinja template nor a readable file: {error}"
        ) from error


def _eos_ids(library: Any, path: Path) -> Iterator[int]:
    """Tokens that end an output: the tokenizer's own, then what the model's configurations add."""
    found: dict[int, None] = {}
    if library.eos_token_id is not None:
        found[library.eos_token_id] = None
    for name in ("generation_config.json", "config.json"):
        try:
            listed = json.loads((path / name).read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError):
            continue
        for token in listed if isinstance(listed, list) else [listed]:
            if isinstance(token, int):
                found[token] = None
    return iter(found)


def _one_or_pair(texts: tuple[str, ...]) -> Any:
    return texts[0] if len(texts) == 1 else texts


def _without_surrogates(text: str) -> str:
    """Surrogate pairs become their character, lone ones U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
