"""Ranges of versions of the contract, such as ``>=1.0,<2``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

Version = tuple[int, int]
COMPARISONS: dict[str, Callable[[Version, Version], bool]] = {
    ">=": operator.ge,
    "<": operator.lt,
    "==": operator.eq,
}
CLAUSE = re.compile(r"(>=|<|==)(\d{1,6})(?:\.(\d{1,6}))?")


@dataclass(frozen=True, slots=True)
class ContractRange:
    """Clauses that a version must fulfil, all of them."""

    clauses: tuple[tuple[str, Version], ...]

    @classmethod
    def parse(cls, text: str) -> ContractRange:
        """Parse clauses that are separated by commas. Raises ``ValueError``."""
        clauses = [CLAUSE.fullmatch(part.strip()) for part in text.split(",")]
        if not all(clauses):
            raise ValueError(f"{text!r} is not a range of versions such as '>=1.0,<2'")
        return cls(tuple((match[1], (int(match[2]), int(match[3] or 0))) for match in clauses if match is not None))

    def includes(self, version: str) -> bool:
        """Report whether a version, such as ``1.0``, is in the range."""
        major, minor = version.split(".")
        number = int(major), int(minor)
        return all(COMPARISONS[sign](number, bound) for sign, bound in self.clauses)
