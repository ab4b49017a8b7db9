"""``sglang-plug chat``: a chat with a model, on a server or in this process."""

from __future__ import annotations

import argparse
import sys

from sglang_plug import ConfigError, Plugins

from .connection import add_connection_arguments, add_sampling_arguments, connect, sampling_parameters
from .conversation import Conversation, image_address

FAILED = 1


class ChatCommand:
    """The command, which reads messages from the terminal or from a pipe, one per line."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add the options of the chat, and those of ``serve`` for a model in this process."""
        group = parser.add_argument_group("chat")
        group.add_argument("-q", "--quick", metavar="MESSAGE", help="send one message, print the answer and exit")
        group.add_argument("--system-prompt", metavar="TEXT", help="system message before all others")
        group.add_argument(
            "--image", action="append", default=[], metavar="FILE-OR-URL", help="image of the first message; repeatable"
        )
        add_sampling_arguments(parser)
        add_connection_arguments(parser, plugins)

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Chat until the input ends; return 1 if the last message got no answer."""
        try:
            images = [image_address(source) for source in options.image]
        except (OSError, ValueError) as error:
            raise ConfigError(f"--image: {error}") from error
        conversation = Conversation(
            system=options.system_prompt, parameters=sampling_parameters(options), images=images
        )
        with connect(options, plugins) as client:
            from .chat_session import ChatSession  # the HTTP client is not needed for --help
            from .line_reader import LineReader, history_file
            from .model_client import AnswerError

            session = ChatSession(client, conversation)
            try:
                model = client.model
            except AnswerError as error:
                print(f"error: {error}", file=sys.stderr)
                return FAILED
            if options.quick is not None:
                session.send(options.quick)
            else:
                if sys.stdin.isatty():
                    print(f"Chatting with {model}. /help lists the commands, Ctrl-D leaves.")
                session.run(LineReader(tuple(session.commands), "> ", history_file()).messages())
            return FAILED if session.failed else 0


command = ChatCommand()
