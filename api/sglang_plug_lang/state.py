"""What a program holds in its hands: a state that grows by ``+=`` and is read by name."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, Literal, overload

from .interpreter import Interpreter
from .ir import Expression, RoleBegin, RoleBlock, RoleEnd, ScopeBegin, ScopeEnd, as_expression
from .templates import ASSISTANT, SYSTEM, USER

RoleContext = contextlib.AbstractContextManager["ProgramState"]
Joining = Literal["gather_variable", "concate_and_append"]


class ProgramState:
    """One conversation. ``+=`` returns at once; reading waits for what is read, and raises what went wrong."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.ret_value: Any = None
        """What the program returned."""

    def __iadd__(self, value: Expression | str) -> ProgramState:
        self.interpreter.submit(as_expression(value))
        return self

    def __getitem__(self, name: str) -> Any:
        return self.interpreter.variable(name).value

    def __setitem__(self, name: str, value: Any) -> None:
        self.interpreter.set(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self.interpreter.names()

    def __enter__(self) -> ProgramState:
        return self

    def __exit__(self, *_: object) -> None:
        self.sync()

    def text(self) -> str:
        """All of it: what was appended and what was generated, through the chat template."""
        return self.interpreter.transcript().text

    def messages(self) -> list[dict[str, Any]]:
        """The messages that have ended, as OpenAI's APIs take them."""
        return [dict(one) for one in self.interpreter.transcript().messages]

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """What the backend told about the generation of ``name``: tokens, reason to stop, log-probabilities."""
        return self.interpreter.variable(name).meta_info

    def variables(self) -> dict[str, Any]:
        """All variables."""
        return {name: self[name] for name in self.interpreter.names()}

    def sync(self) -> None:
        """Wait until all that was appended is done."""
        self.interpreter.wait()

    def error(self) -> BaseException | None:
        """What went wrong, once all is done; nothing is carried out after it."""
        return self.interpreter.error

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text (or a variable's) in pieces, as it grows. Needs ``stream=True`` to be in small ones."""
        count, is_end = 0, False
        while not is_end:
            pieces, is_end = self.interpreter.wait_for_pieces(count, var_name)
            count += len(pieces)
            yield from pieces
        self.interpreter.check_end(var_name)

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncGenerator[Any, None]:
        """``text_iter`` for coroutines; with ``return_meta_data`` pairs of a piece and the variable's information."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(news.set)

        count, is_end = 0, False
        with self.interpreter.waking(wake):
            while not is_end:
                news.clear()
                pieces, is_end = self.interpreter.pieces_after(count, var_name)
                count += len(pieces)
                for piece in pieces:
                    yield (piece, self.interpreter.meta_info_now(var_name)) if return_meta_data else piece
                if not pieces and not is_end:
                    await news.wait()
        self.interpreter.check_end(var_name)

    def fork(self, size: int = 1) -> ForkGroup:
        """Wait, then copy: ``size`` states that go on from here, all at the same time."""
        if size < 1:
            raise ValueError(f"fork needs at least 1, got {size}")
        return ForkGroup([ProgramState(self.interpreter.fork()) for _ in range(size)], self)

    def copy(self) -> ProgramState:
        """One state that goes on from here by itself."""
        return self.fork(1)[0]

    @contextlib.contextmanager
    def var_scope(self, name: str) -> Iterator[ProgramState]:
        """``with s.var_scope("essay"):`` keeps all text appended inside under a name."""
        self += ScopeBegin(name)
        yield self
        self += ScopeEnd(name)

    @overload
    def system(self, expression: None = None) -> RoleContext: ...
    @overload
    def system(self, expression: Expression | str) -> Expression: ...
    def system(self, expression: Expression | str | None = None) -> RoleContext | Expression:
        """``s += s.system("...")``, or ``with s.system():``."""
        return self._role(SYSTEM, expression)

    @overload
    def user(self, expression: None = None) -> RoleContext: ...
    @overload
    def user(self, expression: Expression | str) -> Expression: ...
    def user(self, expression: Expression | str | None = None) -> RoleContext | Expression:
        """``s += s.user("...")``, or ``with s.user():``."""
        return self._role(USER, expression)

    @overload
    def assistant(self, expression: None = None) -> RoleContext: ...
    @overload
    def assistant(self, expression: Expression | str) -> Expression: ...
    def assistant(self, expression: Expression | str | None = None) -> RoleContext | Expression:
        """``s += s.assistant(gen("..."))``, or ``with s.assistant():``."""
        return self._role(ASSISTANT, expression)

    def _role(self, role: str, expression: Expression | str | None) -> RoleContext | Expression:
        return self._message(role) if expression is None else RoleBlock(role, as_expression(expression))

    @contextlib.contextmanager
    def _message(self, role: str) -> Iterator[ProgramState]:
        self += RoleBegin(role)
        yield self
        self += RoleEnd(role)


class ForkGroup(Sequence[ProgramState]):
    """Forks of one state. ``+=`` appends to every one, or with a list to each its own."""

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
        """What ``forks[0] += ...`` ends with; a fork cannot be replaced by another state."""
        if state is not self._states[index]:
            raise TypeError("a fork cannot be replaced")

    def __iadd__(self, value: Expression | str | Sequence[Expression | str]) -> ForkGroup:
        values = [value] * len(self) if isinstance(value, Expression | str) else list(value)
        if len(values) != len(self):
            raise ValueError(f"{len(values)} values for {len(self)} forks")
        for state, one in zip(self._states, values, strict=True):
            state += one
        return self

    def join(self, mode: Joining = "gather_variable") -> None:
        """Wait for every fork and bring back what it did.

        ``gather_variable``: the parent gets each variable as a list, one value for each fork (``None`` where a fork
        has none). ``concate_and_append``: the parent gets what each fork appended, as text. Raises what went wrong.
        """
        if mode not in ("gather_variable", "concate_and_append"):
            raise ValueError(f"unknown mode {mode!r}: there are gather_variable and concate_and_append")
        texts = [state.text() for state in self._states]
        if mode == "concate_and_append":
            start = len(self._parent.text())
            self._parent += "".join(text[start:] for text in texts)
            return
        found = [state.variables() for state in self._states]
        for name in {name: None for one in found for name in one if name not in self._inherited}:
            self._parent[name] = [one.get(name) for one in found]
