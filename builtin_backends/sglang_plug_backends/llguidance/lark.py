"""EBNF grammars in the notation of llguidance."""

from __future__ import annotations

from sglang_plug_backends.ebnf import EbnfError, Either, Name, Node, OneOf, Parts, Repeat, Rules, Text, reachable
from sglang_plug_backends.ebnf_regex import class_regex, rules_to_regex, text_regex

MOST_CHARACTERS = 1 << 20
EMPTY = '""'


def rules_to_lark(rules: Rules) -> str:
    """A grammar for what ``root`` says.

    Without recursion it is one expression. Otherwise each character is a token of its own: longer ones would be taken
    for as long as they match, even where the rest of the rule then cannot. Raises ``EbnfError``.
    """
    if not _is_recursive(rules):
        return f"start: /{rules_to_regex(rules)}/\n"
    order = {name: f"r{index}" if index else "start" for index, name in enumerate(reachable(rules))}
    lines = [f"{order[name]}: {_write(rules[name], order)}" for name in order]
    if sum(map(len, lines)) > MOST_CHARACTERS:
        raise EbnfError(f"the grammar would have more than {MOST_CHARACTERS} characters")
    return "\n".join(lines) + "\n"


def _is_recursive(rules: Rules) -> bool:
    """Whether a rule that ``root`` leads to leads to itself."""
    open_, closed = set[str](), set[str]()

    def visit(node: Node) -> bool:
        match node:
            case Name():
                if node.name in open_:
                    return True
                if node.name in closed:
                    return False
                open_.add(node.name)
                found = visit(rules[node.name])
                open_.remove(node.name)
                closed.add(node.name)
                return found
            case Parts():
                return any(map(visit, node.parts))
            case Either():
                return any(map(visit, node.branches))
            case Repeat():
                return visit(node.body)
        return False

    return visit(Name("root"))


def _write(node: Node, order: dict[str, str]) -> str:
    match node:
        case Text():
            return " ".join(f"/{text_regex(one)}/" for one in node.text) or EMPTY
        case OneOf():
            return f"/{class_regex(node)}/"
        case Name():
            return order[node.name]
        case Parts():
            return " ".join(_write(one, order) for one in node.parts)
        case Either():
            return f"({' | '.join(_write(one, order) for one in node.branches)})"
        case Repeat():
            most = "" if node.most is None else node.most
            return f"({_write(node.body, order)}){{{node.least},{most}}}"
