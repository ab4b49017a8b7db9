"""State of a program: it grows by ``+=`` and is read by name."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any, Literal, overload

from .execution.interpreter import Interpreter
from .ir import (
    AppendForks,
    Concatenation,
    Expression,
    RoleBegin,
    RoleBlock,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    as_expression,
)
from .templates import ASSISTANT, SYSTEM, USER

RoleContext = contextlib.AbstractContextManager["ProgramState"]
Joining = Literal["gather_variable", "concate_and_append"]


class ProgramState:
    """One conversation. ``+=`` returns at once; reading waits for the value, and raises the program's error."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.ret_value: Any = None
        """The program's return value."""

    def __iadd__(self, value: Expression | str) -> ProgramState:
        self.interpreter.submit(as_expression(value))
        return self

    def __getitem__(self, name: str) -> Any:
        return self.interpreter.variable(name).value

    def __setitem__(self, name: str, value: Any) -> None:
        self.interpreter.set(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self.interpreter.names()

    def __str__(self) -> str:
        """Return the whole text in ``ProgramState(...)``, as programs for SGLang expect."""
        return f"ProgramState({self.text()})"

    def __enter__(self) -> ProgramState:
        return self

    def __exit__(self, *_: object) -> None:
        self.sync()

    def text(self) -> str:
        """Return the whole text, appended and generated, rendered with the chat template."""
        return self.interpreter.transcript().text

    def forked_text(self) -> str:
        """Return the text since the fork; the whole text if this is no fork."""
        return self.interpreter.forked_text()

    def messages(self) -> list[dict[str, Any]]:
        """Return the finished messages in OpenAI's format."""
        return [dict(message) for message in self.interpreter.transcript().messages]

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """Return the backend's facts about the generation of ``name``: tokens, finish reason, log-probabilities."""
        return self.interpreter.variable(name).meta_info

    def get_var(self, name: str) -> Any:
        """Return the variable, as ``state[name]`` does."""
        return self[name]

    def set_var(self, name: str, value: Any) -> None:
        """Set the variable, as ``state[name] = value`` does."""
        self[name] = value

    def variables(self) -> dict[str, Any]:
        """Return all variables."""
        return {name: self[name] for name in self.interpreter.names()}

    def sync(self) -> None:
        """Wait until all expressions are executed."""
        self.interpreter.wait()

    def error(self) -> BaseException | None:
        """Return the program's error, after all expressions; none is executed after an error."""
        return self.interpreter.error

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Yield the text (or a variable) in pieces as it grows. The pieces are small with ``stream=True``."""
        count, is_end = 0, False
        while not is_end:
            pieces, is_end = self.interpreter.wait_for_pieces(count, var_name)
            count += len(pieces)
            yield from pieces
        self.interpreter.check_end(var_name)

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncGenerator[Any, None]:
        """Yield pieces as ``text_iter`` does, for coroutines.

        With ``return_meta_data``, each piece of a variable comes with its facts. Of the lists with an entry for each
        generated token, such as ``output_token_logprobs``, they have the entries that came with this piece.
        """
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(changed.set)

        count, is_end = 0, False
        with self.interpreter.waking(wake):
            while not is_end:
                changed.clear()
                pieces, is_end = self.interpreter.pieces_after(count, var_name)
                for position, piece in enumerate(pieces, count):
                    yield (piece, self.interpreter.piece_meta_info(var_name, position)) if return_meta_data else piece
                count += len(pieces)
                if not pieces and not is_end:
                    await changed.wait()
        self.interpreter.check_end(var_name)

    def fork(self, size: int = 1) -> ForkGroup:
        """Wait, then return ``size`` copies that continue from here concurrently."""
        if size < 1:
            raise ValueError(f"fork needs at least 1, got {size}")
        return ForkGroup([ProgramState(copy) for copy in self.interpreter.forks(size)], self)

    def copy(self) -> ProgramState:
        """Return a copy that continues from here independently."""
        return self.fork(1)[0]

    @contextlib.contextmanager
    def var_scope(self, name: str) -> Iterator[ProgramState]:
        """Keep all text that is appended inside ``with s.var_scope("essay"):`` under a name."""
        self += ScopeBegin(name)
        yield self
        self += ScopeEnd(name)

    @overload
    def system(self, expression: None = None) -> RoleContext: ...
    @overload
    def system(self, expression: Expression | str) -> Expression: ...
    def system(self, expression: Expression | str | None = None) -> RoleContext | Expression:
        """Add or begin a system message: ``s.system("...")``, or ``with s.system():``."""
        return self._role(SYSTEM, expression)

    @overload
    def user(self, expression: None = None) -> RoleContext: ...
    @overload
    def user(self, expression: Expression | str) -> Expression: ...
    def user(self, expression: Expression | str | None = None) -> RoleContext | Expression:
        """Add or begin a user message: ``s.user("...")``, or ``with s.user():``."""
        return self._role(USER, expression)

    @overload
    def assistant(self, expression: None = None) -> RoleContext: ...
    @overload
    def assistant(self, expression: Expression | str) -> Expression: ...
    def assistant(self, expression: Expression | str | None = None) -> RoleContext | Expression:
        """Add or begin an assistant message: ``s.assistant(gen("..."))``, or ``with s.assistant():``."""
        return self._role(ASSISTANT, expression)

    def _role(self, role: str, expression: Expression | str | None) -> RoleContext | Expression:
        """Return a context; or add the message, and return an empty expression for ``s += s.user(...)``."""
        if expression is None:
            return self._message(role)
        self.interpreter.submit(RoleBlock(role, as_expression(expression)))
        return Concatenation(())

    @contextlib.contextmanager
    def _message(self, role: str) -> Iterator[ProgramState]:
        self += RoleBegin(role)
        yield self
        self += RoleEnd(role)


Appended = Expression | str | Sequence[Expression | str] | Callable[[int], Expression | str]


class ForkGroup(Sequence[ProgramState]):
    """Forks of one state.

    ``+=`` appends to every fork; a list has an entry for each fork, a function returns it for the fork's index.
    """

    def __init__(self, states: list[ProgramState], parent: ProgramState) -> None:
        self._states, self._parent = states, parent
        self._inherited = set(states[0].interpreter.names())

    def __len__(self) -> int:
        return len(self._states)

    @overload
    def __getitem__(self, index: int) -> ProgramState: ...
    @overload
    def __getitem__(self, index: slice) -> list[ProgramState]: ...
    def __getitem__(self, index: int | slice) -> ProgramState | list[ProgramState]:
        return self._states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        """Accept the assignment of ``forks[0] += ...``; a fork cannot be replaced by another state."""
        if state is not self._states[index]:
            raise TypeError("a fork cannot be replaced")

    def __iadd__(self, value: Appended) -> ForkGroup:
        if isinstance(value, Expression | str):
            values = [value] * len(self)
        else:
            values = [value(index) for index in range(len(self))] if callable(value) else list(value)
        if len(values) != len(self):
            raise ValueError(f"{len(values)} values for {len(self)} forks")
        for state, item in zip(self._states, values, strict=True):
            state += item
        return self

    def join(self, mode: Joining = "gather_variable") -> None:
        """Wait for every fork and return its results to the parent.

        ``gather_variable``: the parent gets each variable as a list, one value for each fork (``None`` where a fork
        has none). ``concate_and_append``: the parent gets the text that each fork appended. Raises a fork's error.
        """
        if mode not in ("gather_variable", "concate_and_append"):
            raise ValueError(f"unknown mode {mode!r}: there are gather_variable and concate_and_append")
        for state in self._states:
            state.text()
        if mode == "concate_and_append":
            self._parent += AppendForks(tuple(self._states))
            return
        results = [state.variables() for state in self._states]
        for name in {name: None for result in results for name in result if name not in self._inherited}:
            self._parent[name] = [result.get(name) for result in results]
