"""The extension counts the bytes of images, and refuses requests that exceed the limit."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sglang_plug import (
    AdmissionPhase,
    Constraint,
    Media,
    MediaArray,
    Model,
    Request,
    RequestError,
    SequenceView,
    StepExtension,
    SupportsImages,
)
from sglang_plug.contracts.model.kernels import TORCH
from sglang_plug.engine.execution.pipeline import MAX_CONSECUTIVE_FAILURES
from sglang_plug.engine.messages.api_messages import Abort, Control
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.testing import check_step_extension
from sglang_plug_backends.multimodal.extension import MAX_BYTES, Multimodal
from tests.core.engine.test_loop import Bench


class Encoder(Model, SupportsImages):
    """A model that encodes images of any size as zeros."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)

    def encode_images(self, media: Ordered[Media]) -> list[Tensor]:
        return [torch.zeros(item.count, 2) for item in media]


class Refuses(StepExtension, AdmissionPhase):
    """An extension that refuses requests with a priority, after other extensions have admitted them."""

    def cache_key(self, sequence: SequenceView) -> str:
        if sequence.request.priority:
            raise RequestError("refused")
        return ""


def installed(max_bytes: int = MAX_BYTES) -> Multimodal:
    extension = Multimodal(max_bytes)
    extension.install(Encoder(), TORCH)
    return extension


def image(size: int) -> Media:
    return Media.of(0, 1, {"pixels": MediaArray("uint8", (size,), bytes(size))})


class Unread(list[Any]):
    """A list of chunks that must not be iterated over."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError


def test_steps_are_not_looked_at_while_no_prompt_has_images() -> None:
    extension = installed()
    sequence = Sequence.of(Request(id="a", tokens=(1, 2), media=(image(8),)), 9)
    for _ in range(2):
        extension.prepare(Unread([None]), cast(Any, None))
        extension.admit(sequence)
        with pytest.raises(AssertionError):
            extension.prepare(Unread([None]), cast(Any, None))
        extension.finished(sequence)


def test_the_contract_of_step_extensions_is_kept() -> None:
    check_step_extension(installed(), fields={"media": [(), (image(3),)]})


EVENTS = st.tuples(
    st.sampled_from(["submit", "constrained", "refused", "misplaced", "abort", "fail", "step"]), st.sampled_from("abc")
)


@given(st.booleans(), st.lists(st.tuples(EVENTS, st.integers(0, 9)), max_size=20))
def test_the_bytes_of_images_are_those_of_the_requests_that_are_there(
    overlap: bool, events: list[tuple[tuple[str, str], int]]
) -> None:
    extension, failures = installed(), iter([1] * (MAX_CONSECUTIVE_FAILURES - 1))
    bench = Bench(overlap=overlap, extensions={"multimodal": extension, "refuses": Refuses()})
    for (event, id), size in events:
        match event:
            case "submit":
                bench.submit(id, media=(image(size),))
            case "constrained":
                bench.submit(id, media=(image(size),), constraint=Constraint("regex", "a"))
            case "refused":
                bench.submit(id, media=(image(size),), priority=1)
            case "misplaced":
                bench.submit(id, media=(image(size), image(size)))
            case "abort":
                bench.inbox.messages.append(Abort((id,)))
            case "fail":
                bench.device.failures = next(failures, 0)
        bench.inbox.messages.append(Control(0, "info", {}))
        bench.loop.step()
        present = (*bench.scheduler.waiting, *bench.scheduler.running)
        assert extension.bytes == sum(media.size for sequence in present for media in sequence.request.media)
    bench.inbox.messages.append(Control(0, "info", {}))
    bench.run()
    assert extension.bytes == 0


@pytest.mark.parametrize("overlap", [False, True])
def test_requests_are_refused_while_images_take_too_much(overlap: bool) -> None:
    bench = Bench(overlap=overlap, extensions={"multimodal": installed(max_bytes=10)})
    for id, size in (("a", 6), ("b", 5), ("c", 4)):
        bench.submit(id, media=(image(size),))
    bench.run()
    assert bench.end("b")[:2] == ("error", 503)
    bench.submit("b", media=(image(10),))
    bench.run()
    assert len(bench.tokens("a")) == len(bench.tokens("b")) == len(bench.tokens("c")) == 3


def test_a_model_of_text_refuses_images() -> None:
    class Reader(Model):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

    extension = Multimodal(MAX_BYTES)
    extension.install(Reader(), TORCH)
    bench = Bench(extensions={"multimodal": extension})
    bench.submit("a", media=(image(1),))
    bench.run()
    assert bench.end("a") == ("error", 400, "the model takes text only, and the prompt has images")
