"""Phases of step extensions around sampling: requests that are held, tokens that are allowed, and stuck steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_plug.contracts.request import Finish, Request, RequestError, RequestPart

    from .views import SequenceView


@dataclass(frozen=True, slots=True)
class ReadySequence:
    """A sequence that an extension no longer holds."""

    sequence: SequenceView
    forced: tuple[int, ...] = ()
    """Tokens that the output begins with; there must be room for one more, or the request ends with an error."""
    finish: Finish | RequestError | None = None
    """Set if the request ends before anything is computed."""


class HoldPhase:
    """Requests that wait for something else than the model. Override both methods; those of this class do nothing."""

    def hold(self, sequence: SequenceView) -> bool:
        """Return True if the request is not queued until ``ready`` names it; called once, after ``admit``.

        Raise ``RequestError`` to refuse it. If it is aborted meanwhile, ``AdmissionPhase.finished`` is called.
        """
        return False

    def ready(self) -> Sequence[ReadySequence]:
        """Return the held sequences that are ready, each once; must not wait.

        Called before each step, and every few milliseconds without steps, while any request is held.
        """
        return ()


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """The tokens that some rows of a step may take."""

    rows: list[int]
    """Indices of the rows, in ascending order."""
    mask: Tensor
    """int32 ``[len(rows), words]`` on the host: token ``i`` is bit ``i % 32`` of word ``i // 32``."""
    errors: Mapping[int, RequestError] = field(default_factory=dict)
    """Maps a row of the step to the error that ends its request; the mask of such a row allows nothing."""


class PendingMask(Protocol):
    """Masks that are being filled while the device computes."""

    def result(self) -> AllowedTokens:
        """Wait for all masks and return them; called once."""


@dataclass(frozen=True, slots=True)
class TokenDecision:
    """A decision about a sampled token of a constrained sequence."""

    finish: Finish | None = None
    """Set if the output ends with the token."""
    error: RequestError | None = None
    """Set if the request ends with an error, without the token."""
    forced: tuple[int, ...] = ()
    """Tokens that follow it without being sampled; the request ends with an error if they exceed its limit, or are
    not in the vocabulary.

    If the request reports log-probabilities, the output must not end with them: then ``finish`` is not set, and there
    must be room for one more token."""
    rejected: bool = False
    """True if the token is not taken: unless ``finish`` is set, another one is sampled instead, which depends on
    the seed, the position and the number of rejections there."""


class SamplingPhase:
    """The sampling of tokens. Override the methods that are needed; the others do nothing."""

    def constrains(self, request: Request) -> bool:
        """Report whether this extension decides where the output ends; called once, before ``admit``.

        If so, ``sequence.constrained`` is true: stop tokens do not end the output automatically, no drafts are
        verified, and a token is sampled only when the engine knows all tokens before it. Only one extension may
        constrain a sequence; a request that two of them constrain is refused.
        """
        return False

    def allowed(self, sequences: Sequence[SequenceView], *, asynchronous: bool) -> PendingMask | None:
        """Begin to fill masks for the rows of a step; ``None`` if this extension limits none of them.

        Called before the forward pass, or, in steps that overlap the previous one, when that one is committed. A mask
        must allow a token, or its row have an error. Masks of several extensions apply together. A row whose sequence
        is not constrained may have a mask, too, but no mask that depends on the output so far, which may be incomplete.

        Args:
            sequences: one for each row; a sequence with drafts has several rows.
            asynchronous: the device computes in the background, so what takes time is better left to ``result``.
        """
        return None

    def sampled(self, sequences: Sequence[SequenceView], tokens: Sequence[int]) -> Mapping[int, TokenDecision]:
        """Decide about the token that was sampled for each row, before it is committed; return decisions by row.

        Only rows that this extension constrains may have decisions; a request with another one ends with an error. A
        negative number is no token: its row failed.
        """
        return {}


@dataclass(frozen=True, slots=True)
class BlockingRequest:
    """A request for which a step does not return."""

    id: str
    description: str
    """The work for which the step waits, as a phrase for the log."""
    message: str
    """The error for the caller."""
    status: int = 400
    about: RequestPart = ""


class WatchdogPhase:
    """Steps that do not return. These methods are called from the watchdog's thread, while the engine's computes.

    An engine that runs in a thread of another program has no such watchdog.
    """

    def check_step(self) -> None:
        """Interrupt what takes too long; called every second while a step takes longer than one second."""

    def blocking_request(self) -> BlockingRequest | None:
        """Return the request that blocks the step, which is stuck; the engine refuses it, and its process ends."""
        return None
