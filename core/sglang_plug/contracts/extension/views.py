"""Sequences, steps and ranks as step extensions see them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

WriteSlots = Callable[[int, "array[int]"], None]
"""Writes keys and values of the tokens from an index on to KV slots."""

if TYPE_CHECKING:
    from torch import Tensor

    from sglang_plug.contracts.model.batch import KVPool
    from sglang_plug.contracts.request import Request

    from .memory_phases import StoredStatePhase


class PromptLayout(Protocol):
    """The layout of one prompt, where it differs from that of text: see ``AdmissionPhase.layout``."""

    @property
    def cache_tokens(self) -> Sequence[int]:
        """The tokens by which the prefix cache knows the prompt, as many as it has.

        Negative numbers, which are outside of every vocabulary, stand for contents that the tokens do not tell.
        """

    def positions(self, start: int, end: int) -> Iterable[int]:
        """Return the positions of the tokens from index ``start`` to before ``end``, generated tokens included."""

    def chunk_end(self, end: int) -> int:
        """Return the index, ``end`` or a greater one, at which a chunk ends that would end at ``end``.

        It is greater where ``end`` is inside of a span that one step must compute.
        """

    def reusable(self, length: int) -> int:
        """Return how many of the first ``length`` tokens may come from the prefix cache."""


class SequenceView(Protocol):
    """A sequence as extensions see it. They change nothing of it but their own entry of ``extras``."""

    @property
    def request(self) -> Request:
        """The request."""

    @property
    def tokens(self) -> Sequence[int]:
        """The prompt and everything generated; the list grows, so copy what is to be kept."""

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""

    @property
    def computed(self) -> int:
        """Tokens whose keys and values are in the KV pool."""

    @property
    def slots(self) -> array[int]:
        """The KV slot of each token that has one, int64."""

    @property
    def slot_version(self) -> int:
        """A number that changes whenever slots of earlier tokens are replaced; otherwise slots are only appended."""

    @property
    def salt(self) -> str:
        """The key of the prefix namespace: prefixes are shared only between sequences of one salt."""

    def keys(self, start: int, stop: int) -> list[int]:
        """Return the prefix cache's keys of the tokens from ``start`` to ``stop``."""

    @property
    def generated(self) -> int:
        """Tokens generated so far."""

    @property
    def limit(self) -> int:
        """Maximum number of tokens that the sequence may grow to."""

    @property
    def reusable(self) -> int:
        """Number of leading tokens that may come from the prefix cache; the last token is always computed."""

    @property
    def layout(self) -> PromptLayout | None:
        """The layout of the prompt; ``None``: that of text."""

    @property
    def constrained(self) -> bool:
        """True if a step extension decides where the output ends, see ``SamplingPhase.constrains``."""

    @property
    def accepts_drafts(self) -> bool:
        """True if draft tokens of this sequence can be verified in one step."""

    @property
    def extras(self) -> dict[Any, Any]:
        """State of extensions, by extension."""


class ChunkView(Protocol):
    """The part of a sequence that a step computes: its next ``count`` tokens, then ``drafts``."""

    @property
    def sequence(self) -> SequenceView:
        """The sequence that the tokens belong to."""

    @property
    def start(self) -> int:
        """Index in the sequence of the first token."""

    @property
    def end(self) -> int:
        """Index in the sequence after the last token, drafts excluded."""

    @property
    def count(self) -> int:
        """Tokens of the sequence, drafts excluded."""

    @property
    def width(self) -> int:
        """Rows of the step that belong to the chunk: ``count`` and one for each draft."""

    @property
    def positions(self) -> Iterable[int]:
        """Positions of the chunk's tokens and drafts, as the model counts them."""

    @property
    def ahead(self) -> int:
        """Number of the sequence's tokens in the previous step, if that step is still on the device."""

    @property
    def pending_on_device(self) -> bool:
        """True if the previous step samples the last token of this chunk, so that only the device knows it."""

    @property
    def prefilling(self) -> bool:
        """True if these are tokens of a prompt, or of a sequence that is computed again; False if it decodes."""

    @property
    def complete(self) -> bool:
        """True if the last token of the sequence is computed, so that the next one is sampled."""

    @property
    def drafts(self) -> tuple[int, ...]:
        """Draft tokens, verified after the last token."""


class PrefixPool(Protocol):
    """The prefix cache and its KV pool, for extensions that fill or empty it. Used between two steps."""

    @property
    def kv(self) -> KVPool:
        """The pool; work that is queued on its device now comes after all steps so far."""

    @property
    def page_size(self) -> int:
        """Prefixes are cached in whole pages of this many tokens."""

    @property
    def capacity(self) -> int:
        """Number of slots of the pool."""

    @property
    def used(self) -> bool:
        """True once a slot was taken."""

    def evict(self, tokens: int) -> int:
        """Evict unused prefixes until ``tokens`` slots are freed or none is left; return the number of freed slots."""

    def return_memory(self) -> None:
        """Return the memory of free slots, on all ranks, to the system; does nothing for a pool on another device."""

    def identity(self) -> Mapping[str, str]:
        """Return what determines keys and values besides the tokens and the content of the weights, as text."""

    @property
    def stored_states(self) -> Sequence[StoredStatePhase]:
        """The extensions whose states a sequence needs, besides keys and values, to continue from a stored prefix."""

    def cached(self, sequence: SequenceView) -> int:
        """Return the number of leading tokens with which the sequence could begin now, from the prefix cache."""

    def cached_kv(self, sequence: SequenceView) -> int:
        """Return the number of leading tokens whose keys and values are in the prefix cache.

        It is greater than ``cached`` where the state to continue from is missing.
        """

    def insert(self, sequence: SequenceView, length: int, write: WriteSlots) -> int:
        """Put the first ``length`` tokens of a waiting sequence into the prefix cache; return how many are there then.

        ``write(start, slots)`` is called if there is room: it must queue writing the keys and values of the tokens from
        ``start`` (``cached_kv(sequence)``) on to ``slots``. Nothing is inserted if it raises. There is room if
        the whole sequence would fit.
        """


class PendingTensor(Protocol):
    """A tensor that is being loaded from a ``TensorStore``."""

    @property
    def done(self) -> bool:
        """True once it is loaded, cannot be loaded, or is not worth waiting for any longer."""

    @property
    def value(self) -> Tensor | None:
        """The tensor on the host, pinned for accelerators; ``None`` if it is not loaded."""


class TensorStore(Protocol):
    """Keeps tensors that are expensive to compute outside of the device. Its methods wait for nothing.

    A tensor is found again only with the same weights and for sequences with the same ``salt``, if it was not dropped.
    """

    def put_tensor(self, sequence: SequenceView, content: bytes, tensor: Tensor) -> None:
        """Store a tensor on the device, which is a function of ``content`` and the model; nothing changes it later."""

    def load_tensor(self, sequence: SequenceView, content: bytes, tokens: int) -> PendingTensor | None:
        """Begin to load the tensor of ``content``, which stands for ``tokens`` tokens; ``None``: it is not there."""


class StepPlan(Protocol):
    """A step that is planned and not launched yet."""

    @property
    def chunks(self) -> Sequence[ChunkView]:
        """All chunks of the step; each has its KV slots."""

    @property
    def budget(self) -> int:
        """Maximum number of tokens of the step."""

    def add_drafts(self, index: int, drafts: tuple[int, ...]) -> bool:
        """Verify ``drafts`` after the chunk at ``index``, with KV slots that are free; False if there are too few."""


class ExtensionRanks(Protocol):
    """The ranks that share the model, as an extension sees them; without tensor parallelism there is one."""

    @property
    def rank(self) -> int:
        """Number of this rank; 0 schedules, the others are worker ranks."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def send(self, command: bytes) -> None:
        """Let every worker rank call ``handle_command`` of this extension; only rank 0 may send, between two steps."""

    def all_ranks_succeeded(self, done: bool) -> bool:
        """Return True if ``done`` is true on every rank. All ranks must call it, after the same command."""
