"""Replacing a served model's weights by another checkpoint's of the same shape."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from sglang_plug.attention import AttentionBackend
from sglang_plug.batch import KVPool
from sglang_plug.config import CheckpointNotFoundError, ConfigError
from sglang_plug.kernels import Kernels
from sglang_plug.model import Model
from sglang_plug.policy import Checkpoint, CheckpointReader, CheckpointRequest
from sglang_plug.quantization import Quantization
from sglang_plug.request import RequestError

from .load import load_model
from .memory import is_out_of_memory
from .resolve import Resolved

logger = logging.getLogger(__name__)

IGNORED = frozenset({"_name_or_path", "transformers_version", "dtype", "torch_dtype"})
"""Differences of two configurations that do not matter to the weights."""

NO_ROOM = (
    "Failed to update weights: the new ones are loaded beside the old ones, and memory does not suffice for both; "
    "start the server with a lower --mem-fraction-static or --max-total-tokens"
)


@dataclass(frozen=True, slots=True)
class WeightUpdater:
    """Builds a second model beside the served one, so that a failed update leaves the old weights in place.

    Holds plain functions and data: no plugin is asked anything while serving.
    """

    resolved: Resolved
    backend: AttentionBackend
    kernels: Kernels
    quantization: Quantization | None = None
    kv: KVPool | None = None

    def __call__(self, source: str, revision: str | None = None) -> Model:
        """The model with the weights of ``source``; the pool has its scales then, and what it holds is void.

        Raises ``RequestError`` if they do not fit: then nothing has changed.
        """
        logger.info("Start update_weights. source=%s", source)
        request = CheckpointRequest(source=source, revision=revision, overrides=self.resolved.config.model.overrides)
        reader: CheckpointReader = self.resolved.load("checkpoint")
        try:
            checkpoint = reader(request)
            self._compare(checkpoint)
            resolved = replace(self.resolved, checkpoint=checkpoint)
            model = load_model(resolved, self.backend, self.kernels, self.quantization)
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
        if self.kv is not None:
            self.kv.use_scales(model.kv_scales)
        logger.info("Update weights end.")
        return model

    def _compare(self, checkpoint: Checkpoint) -> None:
        """Another shape would not fit the KV pool, the tokenizer or the limits that were told to clients."""
        ours, theirs = _fields(self.resolved.checkpoint), _fields(checkpoint)
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                raise ConfigError(
                    f"its configuration differs in {name!r}: served {ours.get(name)!r}, found {theirs.get(name)!r}"
                )


def _fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """What of a configuration decides about shapes and arithmetic."""
    config = checkpoint.config
    values = config.to_dict() if hasattr(config, "to_dict") else vars(config)
    kept = {name: value for name, value in values.items() if name not in IGNORED and not name.endswith("_token_id")}
    return {"architecture": checkpoint.architecture, **kept}
