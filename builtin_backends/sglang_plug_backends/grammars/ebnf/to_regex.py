"""Conversion of EBNF grammars without recursion to regular expressions for Rust's libraries."""

from __future__ import annotations

from .tree import EbnfError, Either, Name, Node, OneOf, Parts, Repeat, Rules, Text

MAX_CHARACTERS = 1 << 20
LAST = 0x10FFFF
NOTHING = "(?:)"


def rules_to_regex(rules: Rules) -> str:
    """Convert the rule ``root`` to one expression. Raises ``EbnfError`` for a recursive rule."""
    return _Writer(rules).rule("root")


def class_regex(node: OneOf) -> str:
    """Write a character class."""
    if not node.ranges:  # the complement of the empty set
        return f"[\\x{{0}}-\\x{{{LAST:x}}}]"
    inside = "".join(
        _point(first) if first == last else f"{_point(first)}-{_point(last)}" for first, last in node.ranges
    )
    return f"[{'^' if node.negated else ''}{inside}]"


def text_regex(text: str) -> str:
    """Escape ``text`` for a regular expression."""
    return "".join(_point(ord(character)) for character in text) or NOTHING


def _point(code: int) -> str:
    character = chr(code)
    return character if character.isascii() and character.isalnum() else f"\\x{{{code:x}}}"


class _Writer:
    def __init__(self, rules: Rules) -> None:
        self._rules, self._regexes = rules, dict[str, str]()
        self._open = set[str]()

    def rule(self, name: str) -> str:
        if name in self._open:
            raise EbnfError(f"the rule {name} refers to itself, which no regular expression can")
        if name not in self._regexes:
            self._open.add(name)
            self._regexes[name] = self._write(self._rules[name])
            self._open.remove(name)
        return self._regexes[name]

    def _write(self, node: Node) -> str:
        """Write an expression that can be concatenated and repeated as a unit."""
        result = self._text(node)
        if len(result) > MAX_CHARACTERS:
            raise EbnfError(f"its regular expression would have more than {MAX_CHARACTERS} characters")
        return result

    def _text(self, node: Node) -> str:
        match node:
            case Text():
                return text_regex(node.text)
            case OneOf():
                return class_regex(node)
            case Name():
                return self.rule(node.name)
            case Parts():
                return "".join(self._write(part) for part in node.parts)
            case Either():
                return self._either(node)
            case Repeat():
                maximum = "" if node.maximum is None else node.maximum
                return f"(?:{self._write(node.body)}){{{node.minimum},{maximum}}}"

    def _either(self, node: Either) -> str:
        """Write alternatives with their common suffix factored out, or nested rules would double at each level."""
        branches = [branch.parts if isinstance(branch, Parts) else (branch,) for branch in node.branches]
        shared: tuple[Node, ...] = ()
        while all(branches) and len({branch[-1] for branch in branches}) == 1:
            shared = (branches[0][-1], *shared)
            branches = [branch[:-1] for branch in branches]
        heads = dict.fromkeys("".join(self._write(part) for part in branch) or NOTHING for branch in branches)
        return f"(?:{'|'.join(heads)})" + "".join(self._write(item) for item in shared)
