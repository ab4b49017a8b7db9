"""The values that differ between two runs of the same tree, and the placeholders that replace them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
NUMBER = r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?"


@dataclass(frozen=True)
class Rule:
    """A value that differs between runs.

    Args:
        why: what the value is.
        pattern: the value with its surroundings.
        replacement: what is written, as for ``re.sub``.
        path: the rule holds only for exchanges whose path matches.
    """

    why: str
    pattern: re.Pattern[str]
    replacement: str
    path: re.Pattern[str] = re.compile("")


def _field(names: str, value: str, replacement: str, why: str, path: str = "") -> Rule:
    """Return a rule for the value of JSON fields, including JSON inside of JSON strings."""
    pattern = re.compile(rf'(\\?"(?:{names})\\?":)\s?(?:{value})(?=[,}}\]])')
    return Rule(why, pattern, rf'\g<1>"{replacement}"', re.compile(path))


METRIC_LABELS = r"(?:\{[^}\n]*\})?"
TABLE: tuple[Rule, ...] = (
    Rule("dates of an answer and of a file", re.compile(r"(?im)^((?:date|last-modified): ).*$"), r"\g<1><date>"),
    _field(
        "created|created_at|completed_at|in_progress_at|finalizing_at|expires_at|cancelling_at|cancelled_at|failed_at",
        r"\d{10}(?:\.\d+)?",
        "<time>",
        "Unix time",
    ),
    _field("e2e_latency", NUMBER, "<seconds>", "duration of a request"),
    _field("port", r"[1-9]\d*", "<port>", "port that the system chose"),
    Rule("address of the server", re.compile(r"(127\.0\.0\.1|localhost):\d{4,5}\b"), r"\g<1>:<port>"),
    Rule("address of an object in memory", re.compile(r"\bobject at 0x[0-9a-f]+"), "object at <address>"),
    Rule("time of a line of the log", re.compile(r"(?m)^\[20\d\d-[-0-9:, ]+"), "[<date>"),
    Rule("duration in a line of the log", re.compile(r"(?m)^(\[<date>.*, )\d+\.\d s$"), r"\g<1><seconds>"),
    Rule("process id", re.compile(r"(?i)\b(pid |process \[?)\d+"), r"\g<1><pid>"),
    _field("file_storage_path", r'"[^"]*"', "<storage>", "folder of uploaded files"),
    _field("memory_bytes|resident_bytes|free_bytes|total_bytes", r"\d+", "<bytes>", "memory of the machine"),
    Rule(
        "time at which a metric began",
        re.compile(rf"(?m)^(\S+_created{METRIC_LABELS}) \S+$"),
        r"\g<1> <time>",
        re.compile("^/metrics"),
    ),
    Rule(
        "durations: sums and buckets of histograms of seconds",
        re.compile(rf"(?m)^(\S+_seconds_(?:sum|bucket){METRIC_LABELS}) \S+$"),
        r"\g<1> <seconds>",
        re.compile("^/metrics"),
    ),
    Rule(
        "metrics that depend on how quickly a step follows another, and on what was computed beyond a stop string",
        re.compile(
            r"(?m)^(sglang:(?:gen_throughput|num_cached_tokens|cache_hit_rate|generation_tokens_total|spec_\w+"
            rf"|cached_tokens_total|inter_token_latency_seconds_count){METRIC_LABELS}) \S+$"
        ),
        r"\g<1> <timing>",
        re.compile("^/metrics"),
    ),
    _field("num_cached_tokens|cached|free", NUMBER, "<slots>", "see metrics", "^/(v1/loads|load|(get_)?server_info)"),
)
"""Rules that are applied to all texts, in this order."""

IDENTITIES = re.compile(
    r"(?P<kind>(?:resp_|msg_|fc_|rs_|call_|chatcmpl-|cmpl-|batch_req_|batch_|file-|backend_input_file-|backend_result_file-"
    rf"|backend_error_file-|backend_output_file-)?)(?P<id>{UUID}|\b[0-9a-f]{{32}}\b|(?<=_)[0-9a-f]{{24,32}}\b)"
)
"""Random ids; each is replaced by ``<id N>``, where N counts the different ids of an exchange, its request first."""

LOCATIONS: tuple[Rule, ...] = (
    _field("target|module|file|settings", r'"[^"]*"', "<code>", "where code lies"),
    Rule("modules in tables", re.compile(r"\bsglang_plug(?:_\w+)?(?:\.\w+)+(?::\w+)?"), "<code>"),
    Rule("paths in the tree", re.compile(r"<tree>(?:/[\w.-]+)+"), "<path>"),
)
"""Rules that ``compare --ignore-locations`` adds: they replace locations in code inside the tree."""


class Placeholders:
    """Replaces values that differ between runs by placeholders."""

    def __init__(self, folders: Iterable[tuple[Path, str]]) -> None:
        self._folders = sorted(((str(path), name) for path, name in folders), key=lambda pair: -len(pair[0]))

    def exchange(self, path: str, *texts: str) -> list[str]:
        """Return the texts of an exchange (its request first) with placeholders; ids are numbered across all texts."""
        numbers: dict[str, int] = {}

        def number(match: re.Match[str]) -> str:
            return f"{match['kind']}<id {numbers.setdefault(match['id'], len(numbers) + 1)}>"

        return [IDENTITIES.sub(number, self._ruled(path, text)) for text in texts]

    def _ruled(self, path: str, text: str) -> str:
        for folder, name in self._folders:
            text = text.replace(folder, name)
        return ruled(TABLE, path, text)


def ruled(rules: Iterable[Rule], path: str, text: str) -> str:
    """Apply all rules for ``path`` to a text."""
    for rule in rules:
        if rule.path.search(path):
            text = rule.pattern.sub(rule.replacement, text)
    return text
