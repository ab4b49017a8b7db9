"""Outputs and ends of requests in the conformance test of step extensions; see ``check_step_extension``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from sglang_plug.contracts.extension.views import SequenceView
from sglang_plug.contracts.request import Output
from sglang_plug.engine.messages.api_messages import check_sendable


class CheckedEnds:
    """Passes ends of requests on to an extension, and keeps its errors, which an engine only logs.

    Args:
        finished: the method of the extension.
    """

    def __init__(self, finished: Callable[[SequenceView], None]) -> None:
        self._finished = finished
        self.errors: list[Exception] = []

    def __call__(self, sequence: SequenceView) -> None:
        try:
            self._finished(sequence)
        except Exception as error:
            self.errors.append(error)


def raise_errors(ends: Iterable[CheckedEnds]) -> None:
    """Raise the first error of ``finished``, if there was one."""
    for error in (error for end in ends for error in end.errors):
        raise error


class CheckedOutputs:
    """Passes outputs on to an extension, and checks what it returns.

    Args:
        output: the method of the extension.
    """

    def __init__(self, output: Callable[[SequenceView, Output], Output]) -> None:
        self._output = output
        self.ended = set[str]()
        """Ids of the requests that the extension has ended."""

    def added_to(self, sequence: SequenceView, output: Output) -> Output:
        """Return what the extension returns, if it only adds to the output."""
        received = replace(output)
        added = self._output(sequence, output)
        assert output == received, (
            "output() changed the Output that it was given; dataclasses.replace makes another one"
        )
        assert isinstance(added, Output), f"output() returned {type(added).__name__}, not an Output"
        for name in ("id", "tokens", "logprobs", "prompt_logprobs"):
            assert getattr(added, name) == getattr(output, name), f"output() changed {name} of an output"
        if output.finish is not None:
            assert added.finish == output.finish, f"output() changed the end {output.finish} of a request"
        elif added.finish is not None:
            self.ended.add(sequence.request.id)
        try:
            check_sendable(added, Output)
        except TypeError as error:
            raise AssertionError(f"output() returned what other processes cannot read: {error}") from error
        return added
