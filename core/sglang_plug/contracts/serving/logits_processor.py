"""Contract of logits processors: components that change the logits of the requests that ask for it.

A processor declares the fields of requests that it reads (``LogitsProcessorSpec.request_fields``). The server validates
them on every generation route and in the offline engine. When a request arrives, ``prepare`` is asked once whether the
request uses the processor. Those that do not cost nothing.

The engine collects the rows of a step that use a processor and asks it for a ``LogitsBatch`` of them. The batch stays
the same as long as the same rows are computed together: what depends on the rows alone is brought to the device once.
In each step, ``apply`` gets the logits of just these rows and queues work on the device. It must not wait for the
device: no ``item``, ``tolist``, ``cpu``, ``nonzero`` or mask as an index of tensors on the device. ``send`` and
``upload`` bring numbers to the device without waiting.

The engine may queue a step before the host knows the token of the step before it. A processor with ``needs_tokens``
therefore learns of tokens on the device, by ``LogitsBatch.append``.

Processors run in ascending ``LogitsProcessorSpec.order``, then in the order of their names. They run after
log-probabilities are taken of the model's own distribution, and before the mask of a grammar, temperature and
truncation. If several ranks share the model, only the first one samples, so processors run there alone. A sequence that
uses a processor with ``needs_tokens`` has no speculative drafts. With any other processor, a sequence with drafts
has a row for each of them.

An exception in ``apply``, ``append`` or ``is_done`` ends the requests of the processor's rows with status 500, and no
others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sglang_plug.contracts.sampling_params import SamplingParams
from sglang_plug.contracts.text.parsers import ReasoningBlock

if TYPE_CHECKING:  # a plugin may declare and implement in one file, which every process imports
    import torch
    from torch import Tensor

    from sglang_plug.contracts.text.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorRequest:
    """A request, as ``LogitsProcessor.prepare`` sees it."""

    params: SamplingParams
    fields: Any
    """An instance of the spec's ``request_fields`` with what the request gave; its defaults if it gave nothing;
    ``None`` if the spec names none."""
    prompt: Sequence[int]
    constrained: bool
    """True if a grammar decides which tokens may come, stop tokens included."""
    reasoning: ReasoningBlock | None = None
    """The marks of the reasoning in the output; ``None`` if reasoning is not separated from the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsRow:
    """One row of a batch. A sequence with speculative drafts has several."""

    state: Any
    """The request's state, as ``prepare`` returned it."""
    tokens: Sequence[int]
    """The prompt and the output so far. It grows later: copy what is needed. A token that only the device knows yet
    is not among them, it comes by ``LogitsBatch.append``."""
    prompt_len: int
    """Number of prompt tokens in ``tokens``."""


class LogitsBatch(ABC):
    """The rows of a step that use one processor, and their state on the device."""

    @abstractmethod
    def apply(self, logits: Tensor, generated: Sequence[int]) -> Tensor:
        """Return the changed logits; may overwrite and return ``logits``. Queues work and never waits for the device.

        A row's result may depend on nothing of other rows.

        Args:
            logits: ``[rows, vocabulary]`` float32, contiguous, in the order of the batch's rows.
            generated: for each row, the number of output tokens before the one that these logits are for.
        """

    def append(self, tokens: Tensor) -> None:  # noqa: B027 - only for processors with needs_tokens
        """Add one token to each row; called only if the processor has ``needs_tokens``. Never waits for the device.

        Args:
            tokens: ``[rows]`` int64 on the device. A negative number is no token: its row stays as it is.
        """

    def regroup(self, rows: Sequence[int], joining: LogitsBatch | None) -> LogitsBatch | None:
        """Return a batch of ``rows`` of this one, followed by all rows of ``joining``.

        Called when sequences join or leave, if the processor has ``needs_tokens``; this batch is not used again.
        ``None``, the default: the engine makes a new batch from the tokens of all rows, which costs more the more there
        are.
        """
        return None


class LogitsProcessor(ABC):
    """Changes logits of the rows whose requests ask for it. Lives in the engine process, in one thread.

    Args:
        settings: the component's settings, ``None`` if its spec names none.
        vocab_size: width of the logits.
        device: where the logits are.
        vocabulary: given to processors with ``needs_vocabulary`` only; ``None`` where the engine reads no tokenizer
            (``--grammar-backend none``, ``--skip-tokenizer-init``, or no structured outputs).
    """

    needs_tokens: ClassVar[bool] = False
    """True if the result depends on the tokens generated so far."""
    needs_vocabulary: ClassVar[bool] = False
    """True if the constructor takes the text of all tokens as a fourth argument."""

    def __init__(
        self, settings: Any, vocab_size: int, device: torch.device, vocabulary: Vocabulary | None = None
    ) -> None:
        self.settings, self.vocab_size, self.device, self.vocabulary = settings, vocab_size, device, vocabulary

    @abstractmethod
    def prepare(self, request: ProcessorRequest) -> Any | None:
        """Return the state of a request, or ``None`` if it does not use the processor.

        Called once when a request arrives, between two steps: it should take microseconds. Raises ``ValueError`` to
        refuse the request with status 400; the text should begin with the field that is wrong.
        """

    @abstractmethod
    def batch(self, rows: Sequence[LogitsRow]) -> LogitsBatch:
        """Return a batch of ``rows``, at least one. Called when the composition of a step changes, never waits."""

    def is_done(self, state: Any, generated: int) -> bool:
        """True if the processor changes nothing more of a sequence with ``generated`` output tokens, now and later.

        Rows that are done cost nothing again.
        """
        return False
