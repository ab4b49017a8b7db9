"""Replacing a served model's weights by another checkpoint's of the same shape."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from sglang_plug.config import CheckpointNotFoundError, ConfigError
from sglang_plug.contracts.model.batch import KVPool
from sglang_plug.contracts.model.checkpoint import Checkpoint, CheckpointReader, CheckpointRequest
from sglang_plug.contracts.request import RequestError
from sglang_plug.engine.loading.checkpoint_formats import config_fields
from sglang_plug.engine.messages.rank_messages import Ranks
from sglang_plug.system.library_panics import panics_as_errors
from sglang_plug.system.out_of_memory import is_out_of_memory

from .rank_components import RankComponents

logger = logging.getLogger(__name__)

DTYPES = frozenset({"dtype", "torch_dtype"})
"""Further fields of a configuration that do not affect the weights."""

NO_ROOM = (
    "Failed to update weights: the new ones are loaded next to the old ones, and memory does not suffice for both; "
    "start the server with a lower --mem-fraction-static or --max-total-tokens"
)


@dataclass(frozen=True, slots=True)
class WeightUpdater:
    """Loads a second model next to the served one, so that a failed update leaves the old weights in place.

    Holds plain functions and data: no plugin hook is called while serving.
    """

    components: RankComponents
    kv: KVPool | None = None
    ranks: Ranks | None = None
    """The worker ranks, on rank 0."""

    def __call__(self, source: str, revision: str | None = None) -> None:
        """Compute with the weights of ``source``; set the pool's scales, which makes its contents invalid.

        All ranks load the weights. Raises ``RequestError`` if they do not fit, and the error of a reader that fails:
        then nothing has changed, on any rank.
        """
        logger.info("Start update_weights. source=%s", source)
        if self.ranks is not None:
            self.ranks.weights(source, revision)
        served, problem = self.components.model, None
        try:
            with panics_as_errors():
                self._use(source, revision)
        except Exception as error:  # the other ranks wait for the vote
            problem = error
        if not self.components.all_ranks_succeeded(problem is None):
            if self.components.model is not served:
                self.components.use(served)
            raise problem or RequestError(f"Failed to get weights iterator: {source} (another rank could not).")
        self.components.use_scales(self.kv)
        logger.info("Update weights end.")

    def _use(self, source: str, revision: str | None) -> None:
        """Compute with the weights of ``source``. Raises ``RequestError`` if they do not fit."""
        resolved = self.components.resolved
        request = CheckpointRequest(source=source, revision=revision, overrides=resolved.config.model.overrides)
        reader: CheckpointReader = resolved.choices["checkpoint"].component.factory()
        try:
            checkpoint = reader(request)
            self._compare(checkpoint)
            self.components.use(self.components.load(replace(resolved, checkpoint=checkpoint)))
        except CheckpointNotFoundError as error:
            logger.warning("%s", error)
            raise RequestError(f"Failed to get weights iterator: {source} (repository not found).") from error
        except ConfigError as error:
            raise RequestError(f"Failed to get weights iterator: {source} ({error}).") from error
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            logger.error("Update weights failed: %s", error)
            raise RequestError(f"{NO_ROOM} ({error}).") from error

    def _compare(self, checkpoint: Checkpoint) -> None:
        """Raise ``ConfigError`` if the checkpoint's configuration differs from the served one.

        Another shape would not fit the KV pool, the tokenizer or the limits that were reported to clients.
        """
        ours, theirs = _fields(self.components.resolved.checkpoint), _fields(checkpoint)
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                raise ConfigError(
                    f"its configuration differs in {name!r}: served {ours.get(name)!r}, found {theirs.get(name)!r}"
                )


def _fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the fields of a configuration that determine shapes and arithmetic."""
    fields = config_fields(checkpoint)
    kept = {name: value for name, value in fields.items() if name not in DTYPES and not name.endswith("_token_id")}
    return {"architecture": checkpoint.architecture, **kept}
