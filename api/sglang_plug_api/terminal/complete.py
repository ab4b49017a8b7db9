"""``sglang-plug complete``: continues a text, without a chat template."""

from __future__ import annotations

import argparse
import contextlib
import sys

from sglang_plug import Plugins

from .connection import add_connection_arguments, add_sampling_arguments, connect, sampling_parameters

FAILED = 1


class CompleteCommand:
    """The command, which continues ``--prompt``, or else each line that it reads."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        """Add the prompt, and the options of ``serve`` for a model in this process."""
        group = parser.add_argument_group("completion")
        group.add_argument("-q", "--quick", "--prompt", metavar="TEXT", help="continue this text and exit")
        group.add_argument("--echo", action="store_true", help="print the prompt before its continuation")
        add_sampling_arguments(parser)
        add_connection_arguments(parser, plugins)

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        """Continue each prompt; return 1 if one of them got no continuation."""
        with connect(options, plugins) as client:
            from .line_reader import LineReader, history_file  # nothing of it is needed for --help
            from .model_client import AnswerError

            reader = LineReader((), "> ", history_file().with_name("complete_history"))
            prompts = [options.quick] if options.quick is not None else reader.messages()
            status = 0
            for prompt in prompts:
                if options.echo:
                    print(prompt, end="", flush=True)
                try:
                    with contextlib.closing(client.complete(prompt, sampling_parameters(options))) as answer:
                        for delta in answer:
                            print(delta.text, end="", flush=True)
                except AnswerError as error:
                    print(f"error: {error}", file=sys.stderr)
                    status = FAILED
                print(flush=True)
            return status


command = CompleteCommand()
