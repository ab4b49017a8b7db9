"""Earlier names of what ``sglang_plug`` exports; see docs/migration.md."""

from __future__ import annotations

from .deprecation import warn_deprecated

RENAMED = {
    "CachedRun": "CachedSegment",
    "CodedWeight": "QuantizedWeight",
    "DrawOptions": "SamplingOptions",
    "Fetched": "AsyncHostCopy",
    "MetricTotal": "MetricCounter",
    "Order": "LaunchSpec",
    "OwnPart": "RankShard",
    "Preamble": "ReasoningPrefix",
    "Recurrent": "RecurrentInputs",
    "Runs": "SequenceSpans",
    "Seat": "RankEndpoint",
    "Seeing": "SupportsImages",
    "Seen": "MultimodalInputs",
    "SeenWhole": "BidirectionalImage",
    "StoredCapable": "FusedStoreCapable",
    "Team": "RankGroup",
    "WeighingCapable": "LSECapable",
}
"""Earlier name -> name."""


def current_name(name: str) -> str:
    """Return the name that ``name`` has now, with a ``DeprecationWarning`` if it is an earlier one."""
    if name not in RENAMED:
        return name
    warn_deprecated(f"sglang_plug.{name} is now sglang_plug.{RENAMED[name]}")
    return RENAMED[name]
