"""Held requests in the conformance test of step extensions."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_plug.contracts.extension.sampling_phases import HoldPhase, ReadySequence
from sglang_plug.contracts.extension.views import SequenceView

from .step_sampling import check_finish, check_tokens


class CheckedHolder(HoldPhase):
    """Passes calls on to an extension, and checks which sequences it holds and names.

    Args:
        holder: the extension.
    """

    def __init__(self, holder: HoldPhase) -> None:
        self._holder = holder
        self._held: dict[str, SequenceView] = {}
        self.has_held = False
        """True once the extension has held a request."""

    def hold(self, sequence: SequenceView) -> bool:
        """Let the extension hold ``sequence``."""
        is_held = self._holder.hold(sequence)
        assert isinstance(is_held, bool), f"hold() must return True or False, not {type(is_held).__name__}"
        if is_held:
            self.has_held = True
            self._held[sequence.request.id] = sequence
        return is_held

    def ready(self) -> Sequence[ReadySequence]:
        """Return what the extension names as ready."""
        ready = self._holder.ready()
        assert isinstance(ready, Sequence), f"ready() must return a list, not {type(ready).__name__}"
        for ready_sequence in ready:
            assert isinstance(ready_sequence, ReadySequence), (
                f"ready() must return a list of ReadySequence, not of {type(ready_sequence).__name__}"
            )
            id = ready_sequence.sequence.request.id
            name = f"request {id}: ready()"
            assert self._held.pop(id, None) is ready_sequence.sequence, (
                f"{name} names a request that is not held, or has ended"
            )
            check_finish(ready_sequence.finish, name)
            check_tokens(ready_sequence.forced, f"{name} forces")
            if ready_sequence.finish is None:
                room = ready_sequence.sequence.limit - len(ready_sequence.sequence.tokens) - 1
                assert len(ready_sequence.forced) <= max(0, room), (
                    f"{name} forces {len(ready_sequence.forced)} tokens, and there is room for {max(0, room)}"
                )
                assert ready_sequence.sequence.constrained or not ready_sequence.forced, (
                    f"{name} forces tokens and does not constrain it"
                )
        return ready

    def forget(self, sequence: SequenceView) -> None:
        """Note that a request is over, so that it must not be named any more."""
        self._held.pop(sequence.request.id, None)

    @property
    def ids(self) -> list[str]:
        """The ids of the held requests."""
        return sorted(self._held)
