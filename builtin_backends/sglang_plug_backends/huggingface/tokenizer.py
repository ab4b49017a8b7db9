"""Conversion of text to tokens and back, with the files of a Hugging Face checkpoint."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from sglang_plug import ConfigError, StreamDecoder, TemplateError, Tokenizer, TokenizerSource
from sglang_plug_backends.checkpoint_files import MAX_CONFIG, MAX_VOCABULARY, check_folder, read_file

from .pattern_trial import PatternTrial
from .stream_decoder import ByteStream, TokenBytes, WindowStream, byte_rules
from .template_process import TemplateProcesses, TemplateSetup

logger = logging.getLogger(__name__)

FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")
REMEDY = "name a folder that has one with --tokenizer-path, or serve token ids only with --skip-tokenizer-init"
ADDED_TOKENS = {"tokenizer.json": None, "tokenizer_config.json": "added_tokens_decoder", "added_tokens.json": ""}
"""Files that list added tokens, and the member that contains them; empty: the file itself."""
TOKEN_FIELD = b'"single_word"'
"""A field that each added token of a ``tokenizer.json`` has."""
MAX_ADDED_TOKENS = 1 << 17
"""Maximum number of added tokens: the library takes about 30 µs for each; known tokenizers have up to 30,000."""
PANIC = "PanicException"
"""The library's panic exception, which is no ``Exception``, so nothing in the server would answer for it."""
MAX_KEPT = 1 << 16
"""Characters of the longest text whose encoding is kept."""
CONTEXT = 4
"""Tokens of the prompt that the window decoder starts with."""


def load_tokenizer(source: TokenizerSource) -> Tokenizer:
    """Load the tokenizer in the folder ``source.path``.

    ``tokenizer.json`` is taken as it stands; older files are converted where transformers can do so. Code in the
    folder is never run. Raises ``ConfigError`` if there is no tokenizer, if it cannot be read, or if
    ``source.chat_template`` is neither a template nor a file that holds one.
    """
    processes = TemplateProcesses()
    if source.chats:
        processes.start()  # the process imports its modules while the vocabulary is read here
    library = _open(source.path)
    trial = PatternTrial(*_parts_with_patterns(library))
    try:
        tokenizer = _built(source, library, processes)
        trial.finish(source.path)
    finally:
        trial.close()
    return tokenizer


def _built(source: TokenizerSource, library: Any, processes: TemplateProcesses) -> HuggingFaceTokenizer:
    """Build the tokenizer and check its template. Raises ``ConfigError`` if ``--chat-template`` is invalid."""
    template = library.chat_template
    if source.chat_template is not None:
        template = _given_template(source.chat_template)
    tokenizer = HuggingFaceTokenizer(library, template, tuple(_eos_ids(library, source.path)), processes)
    if template is not None and source.chats:
        try:
            tokenizer.check_template()
        except TemplateError as error:
            if source.chat_template is not None:
                raise ConfigError(f"--chat-template: {error}") from error
            logger.warning("Chats will be refused, as %s; give another one with --chat-template", error)
    return tokenizer


class HuggingFaceTokenizer:
    """A ``Tokenizer`` over the tokenizers library.

    The library's object is never changed after construction, so all methods may run in several threads at once. Prompt
    text that spells a control token is that token, as everywhere in this format. Lone surrogates, which no vocabulary
    has, become U+FFFD.
    """

    def __init__(
        self,
        library: Any,
        template: str | Mapping[str, str] | None,
        eos: tuple[int, ...],
        processes: TemplateProcesses | None = None,
    ) -> None:
        self._backend = library.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._last_first: tuple[str | None, Any] = None, None  # the first text of the last pair, and its encoding
        self._eos = eos
        added = self._backend.get_added_tokens_decoder()
        self._special = frozenset(token for token, item in added.items() if item.special)
        ids = self._backend.get_vocab(with_added_tokens=True).values()
        self._size = 1 + max(ids, default=-1)
        state = None if self._backend.decoder is None else json.loads(self._backend.decoder.__getstate__())
        rules = byte_rules(state)
        texts = {token: item.content for token, item in added.items()}
        self._bytes = None if rules is None else TokenBytes(rules, self._name, texts)
        self._sources = {"default": template} if isinstance(template, str) else dict(template or {})
        constants = {name: str(text) for name, text in library.special_tokens_map.items() if name.endswith("_token")}
        self._processes = processes or TemplateProcesses()
        self._processes.configure(TemplateSetup(templates=self._sources, constants=constants))

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
        """Tokenize a text or a pair. Raises ``RuntimeError`` if the library panics."""
        try:
            ids: list[int]
            if len(texts) == 1:
                ids = self._encoding(texts[0], special).ids
            else:
                first, second = self._first_encoding(texts[0]), self._encoding(texts[1], special=False)
                ids = self._backend.post_process(first, second, special).ids
            return ids
        except BaseException as error:
            if type(error).__name__ != PANIC:
                raise
            raise RuntimeError(f"the tokenizer cannot split this text: {str(error)[:200]}") from error

    def _first_encoding(self, text: str) -> Any:
        """Return the encoding of the first text of a pair, which is kept: rerankers compare a query with many texts."""
        known, encoding = self._last_first
        if text != known:
            encoding = self._encoding(text, special=False)
            if len(text) <= MAX_KEPT:
                self._last_first = text, encoding
        return encoding

    def _encoding(self, text: str, special: bool) -> Any:
        """Encode as a batch of one, because the library releases the GIL only for batches."""
        try:
            (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=special)
        except TypeError:
            (encoding,) = self._backend.encode_batch_fast([_without_surrogates(text)], add_special_tokens=special)
        return encoding

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
        options = {
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "variables": variables,
        }
        return self._processes.render(self._existing_template(tools=bool(tools)), options)

    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> StreamDecoder:
        """Return a decoder for one output. After a special token, or without a prompt, the output starts a new text."""
        follows = bool(prompt) and prompt[-1] not in self._special
        if self._bytes is None:
            context = prompt[-CONTEXT:] if follows else ()
            return WindowStream(lambda tokens: self._library_text(tokens, skip_special), context)
        stream = ByteStream(self._bytes, self._special if skip_special else frozenset())
        if follows:
            stream.follow(prompt)
        return stream

    def chat_template(self, *, tools: bool = False) -> str | None:
        """Return the text of the template for messages with or without tools."""
        return self._sources.get(self._template_name(tools))

    def check_template(self) -> None:
        """Raise ``TemplateError`` if there is no template for messages, or if it cannot be compiled."""
        self._processes.check(self._existing_template(tools=False))

    def _existing_template(self, *, tools: bool) -> str:
        name = self._template_name(tools)
        if name not in self._sources:
            raise TemplateError(
                "this model has no chat template; give one with --chat-template, or send a plain prompt"
            )
        return name

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
    check_folder(path)
    _check_added_tokens(path)
    if not any((path / name).is_file() for name in FILES):
        raise ConfigError(f"{path} holds no tokenizer (tokenizer.json or an older form); {REMEDY}")
    try:
        library = _reader(path).from_pretrained(str(path), local_files_only=True)
    except Exception as error:  # exceptions differ between the library's file formats
        message = " ".join(str(error).split())[:300]
        raise ConfigError(f"the tokenizer in {path} cannot be read: {message}; {REMEDY}") from error
    if not library.is_fast:
        raise ConfigError(f"the tokenizer in {path} exists only in slow Python form; {REMEDY}")
    return library


def _reader(path: Path) -> Any:
    """Return the class that reads the folder's files."""
    if (path / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer  # it imports torch, which most processes with a tokenizer do not need

    return AutoTokenizer


def _check_added_tokens(path: Path) -> None:
    """Raise ``ConfigError`` if there are so many added tokens that reading them takes minutes."""
    tokens = 0
    for name, member in ADDED_TOKENS.items():
        try:
            content = read_file(path / name, MAX_VOCABULARY)
            if member is None:  # not parsed, as it may be large
                tokens = content.count(TOKEN_FIELD)
            else:
                data = json.loads(content)
                tokens = len(data.get(member, ()) if member else data)
        except (
            OSError,
            ValueError,
            RecursionError,
            TypeError,
            AttributeError,
        ):  # the library reports the error
            continue
        if tokens > MAX_ADDED_TOKENS:
            raise ConfigError(f"{path / name} has {tokens} added tokens; the maximum is {MAX_ADDED_TOKENS}")


def _parts_with_patterns(library: Any) -> list[Any]:
    """Return the serialised tokenizer parts that may contain regular expressions."""
    backend = library.backend_tokenizer
    parts = (backend.normalizer, backend.pre_tokenizer, backend.decoder)
    return [json.loads(part.__getstate__()) for part in parts if part is not None]


def _given_template(value: str) -> str:
    """Return the text of ``--chat-template``, which is a template or a file that contains one."""
    if "{" in value or "\n" in value:
        return value
    try:
        return read_file(Path(value).expanduser(), MAX_CONFIG).decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--chat-template: {value!r} is neither a Jinja template nor a readable file: {error}"
        ) from error


def _eos_ids(library: Any, path: Path) -> Iterator[int]:
    """Return the tokens that end an output: the tokenizer's own, then those of the model's configurations."""
    results: dict[int, None] = {}
    if library.eos_token_id is not None:
        results[library.eos_token_id] = None
    for name in ("generation_config.json", "config.json"):
        try:
            listed = json.loads(read_file(path / name, MAX_CONFIG)).get("eos_token_id")
        except (OSError, ValueError, AttributeError, RecursionError):
            continue
        for token in listed if isinstance(listed, list) else [listed]:
            if isinstance(token, int):
                results[token] = None
    return iter(results)


def _without_surrogates(text: str) -> str:
    """Replace surrogate pairs by their character, lone ones by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
