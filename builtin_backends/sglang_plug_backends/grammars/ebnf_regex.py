"""EBNF grammars without recursion as regular expressions that Rust's libraries read."""

from __future__ import annotations

from .ebnf import EbnfError, Either, Name, Node, OneOf, Parts, Repeat, Rules, Text

MOST_CHARACTERS = 1 << 20
LAST = 0x10FFFF
NOTHING = "(?:)"


def rules_to_regex(rules: Rules) -> str:
    """One expression for what ``root`` says. Raises ``EbnfError`` for a rule that refers to itself."""
    return _Writer(rules).rule("root")


def class_regex(node: OneOf) -> str:
    """A class of characters."""
    if not node.ranges:  # outside of nothing
        return f"[\\x{{0}}-\\x{{{LAST:x}}}]"
    inside = "".join(
        _point(first) if first == last else f"{_point(first)}-{_point(last)}" for first, last in node.ranges
    )
    return f"[{'^' if node.negated else ''}{inside}]"


def text_regex(text: str) -> str:
    """``text`` itself."""
    return "".join(_point(ord(one)) for one in text) or NOTHING


def _point(code: int) -> str:
    one = chr(code)
    return one if one.isascii() and one.isalnum() else f"\\x{{{code:x}}}"


class _Writer:
    def __init__(self, rules: Rules) -> None:
        self._rules, self._found = rules, dict[str, str]()
        self._open = set[str]()
        self._size = 0

    def rule(self, name: str) -> str:
        if name in self._open:
            raise EbnfError(f"the rule {name} refers to itself, which no regular expression can")
        if name not in self._found:
            self._open.add(name)
            self._found[name] = self._write(self._rules[name])
            self._open.remove(name)
        return self._found[name]

    def _write(self, node: Node) -> str:
        """An expression that can stand beside others and be repeated as a whole, or is one group."""
        found = self._text(node)
        if len(found) > MOST_CHARACTERS:
            raise EbnfError(f"its regular expression would have more than {MOST_CHARACTERS} characters")
        return found

    def _text(self, node: Node) -> str:
        match node:
            case Text():
                return text_regex(node.text)
            case OneOf():
                return class_regex(node)
            case Name():
                return self.rule(node.name)
            case Parts():
                return "".join(self._write(one) for one in node.parts)
            case Either():
                return self._either(node)
            case Repeat():
                most = "" if node.most is None else node.most
                return f"(?:{self._write(node.body)}){{{node.least},{most}}}"

    def _either(self, node: Either) -> str:
        """What all branches end with is written once, or nested rules would double at each level."""
        branches = [one.parts if isinstance(one, Parts) else (one,) for one in node.branches]
        shared: tuple[Node, ...] = ()
        while all(branches) and len({one[-1] for one in branches}) == 1:
            shared = (branches[0][-1], *shared)
            branches = [one[:-1] for one in branches]
        heads = dict.fromkeys("".join(self._write(part) for part in one) or NOTHING for one in branches)
        return f"(?:{'|'.join(heads)})" + "".join(self._write(one) for one in shared)
