"""Interpreter of programs: executes the appended expressions one after the other in its own thread.

Appending never waits; reading waits for the requested value. The thread lives only while expressions are queued.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from sglang_plug_lang.backends.base import Backend, CachesPrefixes, Completion
from sglang_plug_lang.errors import LanguageError
from sglang_plug_lang.ir import (
    AppendForks,
    CachePrefix,
    Concatenation,
    Expression,
    Generate,
    GenerationOptions,
    Image,
    RoleBegin,
    RoleBlock,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    Select,
    SeparateReasoning,
    Text,
    variables,
)

from .speculation import Speculation
from .transcript import Transcript
from .variable import Variable

BOOLEANS = {"True": True, "False": False}
NO_FACTS: Mapping[str, Any] = MappingProxyType({})
ENTRIES_OF_TOKENS = ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs")
"""Facts with one entry for each generated token."""


class Interpreter:
    """One conversation: a transcript, variables, and a queue of expressions."""

    def __init__(
        self,
        backend: Backend,
        defaults: GenerationOptions,
        stream: bool = False,
        num_api_spec_tokens: int | None = None,
    ) -> None:
        self.backend, self._defaults, self._stream = backend, defaults, stream
        self._speculation = None if num_api_spec_tokens is None else Speculation(num_api_spec_tokens)
        self._transcript = Transcript(backend.chat_template)
        self._variables: dict[str, Variable] = {}
        self._scopes: list[str] = []
        self._fork_start = 0
        self._condition = threading.Condition()
        self._queue: deque[Expression] = deque()
        self._is_busy = False
        self._is_running = False
        self._program: int | None = None
        self._worker: int | None = None
        self._error: BaseException | None = None
        self._wakers: set[Callable[[], None]] = set()

    # Methods for the program: none of them waits, except ``forks``.

    def announce_program(self) -> None:
        """Note that a program will append; until it ends, readers in other threads wait for missing values."""
        self._is_running = True

    def begin_program(self) -> None:
        """Note that the program runs in this thread."""
        self._program = threading.get_ident()

    def end_program(self) -> None:
        """Note that the program has ended."""
        with self._condition:
            self._is_running, self._program = False, None
            self._notify()

    def submit(self, expression: Expression) -> None:
        """Append an expression. After an error no further expression is executed."""
        with self._condition:
            if self._error is not None:
                return
            for name in variables(expression):
                self._variables.setdefault(name, Variable()).pending += 1
            self._queue.append(expression)
            if not self._is_busy:
                threading.Thread(target=self._work, name="program-state", daemon=True).start()
                self._is_busy = True

    def set(self, name: str, value: Any) -> None:
        """Set the value of a variable."""
        with self._condition:
            self._variables.setdefault(name, Variable()).value = value
            self._notify()

    def fail(self, error: BaseException) -> None:
        """Stop with an error; the first error is kept."""
        with self._condition:
            self._error = self._error or error
            self._notify()

    def forks(self, size: int) -> list[Interpreter]:
        """Wait until all expressions are executed, and return ``size`` independent copies."""
        self.wait()
        return [self._copy() for _ in range(size)]

    def _copy(self) -> Interpreter:
        spec_tokens = None if self._speculation is None else self._speculation.token_limit
        other = Interpreter(self.backend, self._defaults, self._stream, spec_tokens)
        other._transcript, other._fork_start = self._transcript.copy(), len(self._transcript.text)
        other._variables = {name: variable.copy() for name, variable in self._variables.items() if not variable.pending}
        other._error = self._error
        return other

    # Methods for readers.

    def wait(self) -> None:
        """Wait until all expressions are executed, or an error has ended the program."""
        with self._condition:
            self._condition.wait_for(self._is_settled)

    @property
    def error(self) -> BaseException | None:
        """The error that ended the program, after all expressions were executed."""
        self.wait()
        return self._error

    def transcript(self) -> Transcript:
        """Return the whole transcript. Raises the error that ended the program."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._transcript

    def forked_text(self) -> str:
        """Return the text since the fork; all of it for a conversation that is not one. Raises as ``transcript``."""
        if threading.get_ident() == self._worker:
            raise LanguageError("a state cannot append its own text")
        return self.transcript().text[self._fork_start :]

    def variable(self, name: str) -> Variable:
        """Wait for a variable. Raises the error that ended the program earlier, or ``KeyError`` if nothing sets it."""
        with self._condition:
            self._condition.wait_for(lambda: self._is_set(name) or self._is_settled())
            if self._is_set(name):
                return self._variables[name]
            if self._error is not None:
                raise self._error
            known = ", ".join(sorted(self._variables)) or "none"
            raise KeyError(f"no variable {name!r} was generated; there are: {known}")

    def names(self) -> list[str]:
        """Return the names of the variables that have a value."""
        self.wait()
        return [name for name, variable in self._variables.items() if not variable.pending]

    def pieces_after(self, count: int, name: str | None) -> tuple[list[str], bool]:
        """Return the pieces of the text (or variable) after the first ``count``, and whether it ended. Never waits."""
        with self._condition:
            is_settled = self._is_settled()
            if name is None:
                return self._transcript.pieces[count:], is_settled
            variable = self._variables.get(name)
            pieces = variable.pieces[count:] if variable else []
            return pieces, is_settled or self._is_set(name)

    def piece_meta_info(self, name: str | None, position: int) -> dict[str, Any]:
        """Return the facts about a piece of a variable; empty if it was not generated. Never waits."""
        variable = None if name is None else self._variables.get(name)
        return {} if variable is None else variable.piece_meta_info.get(position, {})

    def wait_for_pieces(self, count: int, name: str | None) -> tuple[list[str], bool]:
        """Return the same as ``pieces_after``, but wait until there is a piece or the end."""
        with self._condition:
            while not any(pieces := self.pieces_after(count, name)):
                self._condition.wait()
            return pieces

    def check_end(self, name: str | None) -> None:
        """Raise the error that ended the program early; call it after the last piece."""
        if name is not None:
            self.variable(name)
        elif self._error is not None:
            raise self._error

    @contextlib.contextmanager
    def waking(self, waker: Callable[[], None]) -> Iterator[None]:
        """Call ``waker`` whenever there may be something new to read."""
        self._wakers.add(waker)
        try:
            yield
        finally:
            self._wakers.discard(waker)

    def _is_set(self, name: str) -> bool:
        return name in self._variables and not self._variables[name].pending

    def _is_settled(self) -> bool:
        """Return True if nothing more will be appended; the program itself does not wait for its own end."""
        if self._is_busy:
            return False
        return self._error is not None or not self._is_running or self._program == threading.get_ident()

    def _notify(self) -> None:
        self._condition.notify_all()
        for waker in list(self._wakers):
            waker()

    # Methods of the worker thread.

    def _work(self) -> None:
        self._worker = threading.get_ident()
        while True:
            with self._condition:
                if not self._queue or self._error is not None:
                    self._queue.clear()
                    self._is_busy, self._worker = False, None
                    self._notify()
                    return
                expression = self._queue.popleft()
            try:
                self._execute(expression)
            except BaseException as error:
                self.fail(error)

    def _execute(self, expression: Expression) -> None:
        match expression:
            case Text():
                self._fill(expression.text)
            case Concatenation():
                for part in expression.parts:
                    self._execute(part)
            case RoleBlock():
                self._execute(RoleBegin(expression.role))
                self._execute(expression.body)
                self._execute(RoleEnd(expression.role))
            case RoleBegin():
                self._begin_role(expression.role)
            case RoleEnd():
                self._publish_constant(self._transcript.end_role(expression.role))
            case Image():
                self._publish_constant(self._transcript.add_image(expression.data))
            case ScopeBegin():
                self._begin_scope(expression.name)
            case ScopeEnd():
                self._end_scope(expression.name)
            case Select():
                self._select(expression)
            case Generate():
                self._generate(expression)
            case SeparateReasoning():
                self._execute(expression.generating())
            case AppendForks():
                self._fill("".join(state.forked_text() for state in expression.states))
            case CachePrefix():
                self._cache_prefix()
            case _:
                raise LanguageError(f"a state cannot carry out {type(expression).__name__}")

    def _cache_prefix(self) -> None:
        prompt = self._transcript.prompt()
        if isinstance(self.backend, CachesPrefixes) and prompt.text and not prompt.images:
            self.backend.cache_prefix(prompt.text)

    def _begin_role(self, role: str) -> None:
        for text in self._transcript.begin_role(role):
            self._publish_constant(text)

    def _begin_scope(self, name: str) -> None:
        self._variables[name].pieces.clear()
        self._variables[name].piece_meta_info.clear()
        self._scopes.append(name)

    def _end_scope(self, name: str) -> None:
        self._scopes.remove(name)
        self._set(name, "".join(self._variables[name].pieces))

    def _select(self, select: Select) -> None:
        decision = self.backend.select(self._transcript.prompt(), select.choices, select.method, select.temperature)
        self._fill(decision.choice, select.name, decision.meta_info)
        self._set(select.name, decision.choice, decision.meta_info)

    def _generate(self, generate: Generate) -> None:
        options = generate.options.over(self._defaults)
        completion = self._complete(generate, options)
        texts = [_value(text, generate.dtype) for text in (completion.text, *completion.others)]
        self._set(generate.name, texts if completion.others else texts[0], dict(completion.meta_info))

    def _complete(self, generate: Generate, options: GenerationOptions) -> Completion:
        """Generate, and append the text."""
        speculation, has_reasoning = self._speculation, generate.reasoning is not None
        if speculation is not None and not has_reasoning and speculation.applies_to(generate.options, options):
            prompt = self._transcript.prompt()
            completion = speculation.take(options, lambda changed: self.backend.generate(prompt, changed))
            self._append(completion.text, generate.name, completion.meta_info)
            return completion
        if self._stream and not has_reasoning and (options.n or 1) == 1:
            completion = self._stream_completion(generate, options)
        else:
            completion = self.backend.generate(self._transcript.prompt(), options)
            if has_reasoning:
                completion = self._split_reasoning(generate, completion)
            self._append(completion.text, generate.name, completion.meta_info)
        self._continue_speculation(completion.text)
        return completion

    def _stream_completion(self, generate: Generate, options: GenerationOptions) -> Completion:
        pieces = []
        last, published = Completion(""), Completion("")
        with contextlib.closing(self.backend.stream(self._transcript.prompt(), options)) as stream:
            for last in stream:
                pieces.append(last.text)
                self._append(last.text, generate.name, _entries_since(published.meta_info, last.meta_info))
                published = last if last.text else published
        return Completion("".join(pieces), last.meta_info)

    def _split_reasoning(self, generate: Generate, completion: Completion) -> Completion:
        assert generate.reasoning is not None
        reasoning, answer = generate.reasoning.split(completion.text)
        if generate.name is not None:
            self._set(generate.reasoning.variable(generate.name), reasoning)
        return Completion(answer, completion.meta_info)

    def _fill(self, text: str, name: str | None = None, meta_info: Mapping[str, Any] = NO_FACTS) -> None:
        """Add text that was not generated to the current message, and to a variable."""
        self._continue_speculation(text)
        self._append(text, name, meta_info)

    def _publish_constant(self, text: str) -> None:
        """Publish text that belongs to no message's content."""
        self._continue_speculation(text)
        self._publish(text)

    def _continue_speculation(self, text: str) -> None:
        if self._speculation is not None:
            self._speculation.append(text)

    def _append(self, text: str, name: str | None = None, meta_info: Mapping[str, Any] = NO_FACTS) -> None:
        """Add text to the current message, and to a variable."""
        self._publish(self._transcript.add_text(text), name, meta_info)

    def _publish(self, text: str, name: str | None = None, meta_info: Mapping[str, Any] = NO_FACTS) -> None:
        if not text:
            return
        with self._condition:
            self._transcript.pieces.append(text)
            if name is not None:
                variable = self._variables[name]
                variable.piece_meta_info[len(variable.pieces)] = dict(meta_info)
            for changed in {*self._scopes, *([] if name is None else [name])}:
                self._variables[changed].pieces.append(text)
            self._notify()

    def _set(self, name: str | None, value: Any, meta_info: dict[str, Any] | None = None) -> None:
        if name is None:
            return
        with self._condition:
            variable = self._variables[name]
            variable.value, variable.meta_info = value, meta_info or {}
            variable.pending -= 1
            self._notify()


def _entries_since(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``now`` with those entries of its tokens that ``earlier`` does not have."""
    added = {name: now[name][len(earlier.get(name) or ()) :] for name in ENTRIES_OF_TOKENS if now.get(name)}
    return {**now, **added}


def _value(text: str, dtype: type | None) -> Any:
    if dtype is None:
        return text
    content = text.strip()
    if dtype is str:
        return content.strip('"')
    try:
        return BOOLEANS[content] if dtype is bool else dtype(content)
    except (ValueError, KeyError):
        raise LanguageError(f"the model was asked for {dtype.__name__} and said {text!r}") from None
