"""The marks of one format of calls with tagged arguments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class XmlForm:
    """The marks around calls, names, keys and values, in the order in which they are written.

    White space between marks is read but means nothing; ``line`` is the one that templates write.
    """

    begin: tuple[str, ...]
    """Marks before the name."""
    name_end: str
    """The mark after the name; empty: the name ends where the first argument, or the end of the call, begins."""
    parameter: str
    """The mark before a key."""
    key_end: tuple[str, ...]
    """Marks between a key and its value."""
    value_end: str
    end: tuple[str, ...]
    """Marks after the arguments; only the first one is needed."""
    opening: str = ""
    """The mark around all calls of a section; empty: there are no sections."""
    closing: str = ""
    shared: bool = True
    """Several calls are written in one section."""
    bare: bool = False
    """A call is also read without the section around it."""
    line: str = "\n"
    """Text between marks."""
    name_only_end: str = ""
    """The mark after the name that ends a call without arguments at once; empty: there is none."""
    value_line: str = ""
    """A line end that separates a value from the marks around it; one on each side is no part of the value."""
    typed: tuple[str, str] | None = None
    """Marks that come first in ``key_end`` and tell whether the value is text or JSON."""

    @property
    def first(self) -> str:
        """Return the mark that begins a section, or a call where there are no sections."""
        return self.opening or self.begin[0]

    @property
    def starts(self) -> tuple[str, ...]:
        """Return all marks by which a parser recognises a call."""
        return (self.opening, self.begin[0]) if self.opening and self.bare else (self.first,)
