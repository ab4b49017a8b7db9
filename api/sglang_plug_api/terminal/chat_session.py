"""A chat in a terminal: sends messages, shows answers as they come, and obeys slash commands."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_plug.system.hints import did_you_mean

from .conversation import Conversation, Message, image_address, parameter
from .model_client import AnswerError, Delta, ModelClient

DIM, NORMAL = "\x1b[2m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A command that is typed instead of a message."""

    usage: str
    help: str
    act: Callable[[str], None]
    """Called with the text after the command's name."""


class ChatSession:
    """Exchanges messages with a model until the input ends or ``/exit``.

    Args:
        client: the connection to the model.
        conversation: the state to begin with.
    """

    def __init__(self, client: ModelClient, conversation: Conversation) -> None:
        self._client, self._conversation = client, conversation
        self._terminal = sys.stdout.isatty()
        self._ended = False
        self.failed = False
        """True if the last message got no answer."""
        self.commands = {
            "/help": SlashCommand("/help", "list the commands", self._help),
            "/exit": SlashCommand("/exit", "leave, as Ctrl-D does", self._exit),
            "/clear": SlashCommand("/clear", "forget the conversation", self._clear),
            "/retry": SlashCommand("/retry", "ask for another answer to the last message", self._retry),
            "/undo": SlashCommand("/undo", "take the last message and its answer back", self._undo),
            "/system": SlashCommand("/system [TEXT]", "set the system prompt, or remove it", self._system),
            "/image": SlashCommand("/image FILE-OR-URL", "add an image to the next message", self._image),
            "/set": SlashCommand("/set [NAME VALUE]", "set a field of requests, such as temperature", self._set),
            "/unset": SlashCommand("/unset NAME", "leave a field of requests to the server again", self._unset),
            "/history": SlashCommand("/history", "show the conversation", self._history),
            "/save": SlashCommand("/save FILE", "write the conversation as JSON", self._save),
            "/model": SlashCommand("/model", "name the model", self._model),
        }

    def run(self, messages: Iterable[str]) -> None:
        """Answer each message, and obey each command."""
        for text in messages:
            if text.startswith("/"):
                self._obey(text)
            else:
                self.send(text)
            if self._ended:
                return

    def send(self, text: str) -> None:
        """Send a message and print the answer; without an answer the message is taken back."""
        self._exchange(self._conversation.ask(text))

    def _exchange(self, messages: Sequence[Message]) -> None:
        parts: list[str] = []
        self.failed = False
        try:
            with contextlib.closing(self._client.chat(messages, self._conversation.parameters)) as answer:
                finish = self._show(answer, parts)
        except AnswerError as error:
            self.failed = True
            self._conversation.withdraw()
            print(f"{chr(10) if parts else ''}error: {error}", file=sys.stderr)
            return
        except KeyboardInterrupt:
            finish = "interrupt"
        print(flush=True)
        self._conversation.answer("".join(parts))
        if finish in ("length", "interrupt"):
            reason = "interrupted" if finish == "interrupt" else "--max-tokens or the context length is reached"
            print(f"[the answer is cut off: {reason}]", file=sys.stderr)

    def _show(self, answer: Iterable[Delta], parts: list[str]) -> str | None:
        """Print an answer as it comes and collect its text in ``parts``; return the reason for its end."""
        finish, reasons = None, False
        for delta in answer:
            if delta.reasoning:
                print(f"{DIM}{delta.reasoning}{NORMAL}" if self._terminal else delta.reasoning, end="", flush=True)
                reasons = True
            if delta.text:
                if reasons:
                    print("\n")
                    reasons = False
                parts.append(delta.text)
                print(delta.text, end="", flush=True)
            finish = delta.finish_reason or finish
        return finish

    def _obey(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        command = self.commands.get("/exit" if name == "/quit" else name)
        if command is None:
            hint = did_you_mean(name, self.commands) or "; /help lists them"
            print(f"no command {name}{hint}", file=sys.stderr)
            return
        command.act(argument.strip())

    def _help(self, argument: str) -> None:
        for command in self.commands.values():
            print(f"  {command.usage:<20} {command.help}")
        print("  A line that ends with \\ goes on in the next one. Ctrl-C stops an answer.")

    def _exit(self, argument: str) -> None:
        self._ended = True

    def _clear(self, argument: str) -> None:
        self._conversation.clear()
        print("forgotten")

    def _retry(self, argument: str) -> None:
        message = self._conversation.withdraw()
        if message is None:
            print("there is no message yet", file=sys.stderr)
            return
        self._exchange(self._conversation.restore(message))

    def _undo(self, argument: str) -> None:
        message = self._conversation.withdraw()
        print("there is no message yet" if message is None else "taken back")

    def _system(self, argument: str) -> None:
        self._conversation.system = argument or None
        print("system prompt set" if argument else "no system prompt")

    def _image(self, argument: str) -> None:
        if not argument:
            print("usage: /image FILE-OR-URL", file=sys.stderr)
            return
        try:
            self._conversation.images.append(image_address(argument))
        except (OSError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return
        print(f"the next message has {len(self._conversation.images)} image(s)")

    def _set(self, argument: str) -> None:
        name, _, value = argument.partition(" ")
        if value:
            self._conversation.parameters[name] = parameter(value.strip())
        elif name:
            print("usage: /set NAME VALUE", file=sys.stderr)
        for key, current in self._conversation.parameters.items():
            print(f"  {key} = {current!r}")

    def _unset(self, argument: str) -> None:
        known = self._conversation.parameters
        print(f"{argument} is not set" if known.pop(argument, None) is None else f"{argument} is the server's choice")

    def _history(self, argument: str) -> None:
        for message in self._conversation.to_send():
            print(f"{message['role']}: {_text(message)}")

    def _save(self, argument: str) -> None:
        if not argument:
            print("usage: /save FILE", file=sys.stderr)
            return
        try:
            self._conversation.save(Path(argument).expanduser(), self._client.model)
        except OSError as error:
            print(f"error: {error}", file=sys.stderr)
            return
        print(f"written: {argument}")

    def _model(self, argument: str) -> None:
        print(self._client.model)


def _text(message: Message) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return " ".join(part["text"] if part["type"] == "text" else "[image]" for part in content)
