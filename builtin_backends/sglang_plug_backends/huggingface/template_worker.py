"""The worker process that renders chat templates within limits of time and memory, started by ``template_process``.

Requests and answers are messages on standard input and output, see ``pipe_messages``. The first message is the setup,
every further one a request, both as JSON. An answer is one byte that tells its kind, then text.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from typing import Any

from sglang_plug import TemplateError, leave_signals_to_parent
from sglang_plug_backends.pipe_messages import read_message, write_message

from .template import ChatTemplate

TEXT, ABOUT_MESSAGES, ABOUT_VARIABLES = b"t", b"m", b"v"
"""Kinds of answers: the prompt, and refusals by what they are about."""
ENCODING = "utf-8", "surrogatepass"


class Worker:
    """Renders the templates of one checkpoint.

    Args:
        setup: ``templates`` by name, their ``constants``, ``cpu_seconds`` and ``characters`` (of one prompt).
    """

    def __init__(self, setup: dict[str, Any]) -> None:
        self._setup = setup
        self._templates: dict[str, ChatTemplate] = {}

    def answer(self, message: bytes) -> tuple[bytes, str]:
        """Answer a request. A timer ends the process if it takes too long."""
        signal.setitimer(signal.ITIMER_PROF, self._setup["cpu_seconds"])
        try:
            return TEXT, self._rendered(**json.loads(message))
        except TemplateError as error:
            return ABOUT_VARIABLES if error.about == "variables" else ABOUT_MESSAGES, str(error)
        except MemoryError:
            return ABOUT_MESSAGES, "the chat template needs more memory for these messages than it is given"
        except Exception as error:  # messages of an unexpected form
            return ABOUT_MESSAGES, f"the chat template cannot render these messages: {type(error).__name__}: {error}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _rendered(self, template: str, options: dict[str, Any] | None) -> str:
        if template not in self._templates:
            source = self._setup["templates"][template]
            self._templates[template] = ChatTemplate(source, self._setup["constants"])
        if options is None:
            return ""
        text = self._templates[template].render(options.pop("messages"), **options)
        if len(text) > (limit := self._setup["characters"]):
            raise TemplateError(f"the chat template makes a prompt of more than {limit} characters of these messages")
        return text


def main() -> None:
    """Answer requests until standard input ends."""
    leave_signals_to_parent()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the timer ends the process, whatever code is running
    first = read_message(sys.stdin.buffer)
    if first is None:
        return
    setup = json.loads(first)
    resource.setrlimit(resource.RLIMIT_AS, (setup["memory"], setup["memory"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    worker = Worker(setup)
    while (message := read_message(sys.stdin.buffer)) is not None:
        kind, text = worker.answer(message)
        write_message(sys.stdout.buffer, kind, text.encode(*ENCODING))


if __name__ == "__main__":
    main()
