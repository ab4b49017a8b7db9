from __future__ import annotations

from dataclasses import replace

import pytest

from sglang_plug_api.contract.changes import compare
from sglang_plug_api.contract.surface import Item, Member, Surface
from tests.api.contract.contracts import ITEMS, OLD, changed, with_member, without, without_member

POLICY, NODE = "sglang_plug.Policy", "sglang_plug.Node"
CASES = [
    (without(NODE), "breaking", f"{NODE} was removed"),
    (replace(OLD, items={**ITEMS, "sglang_plug.New": Item("value", "1")}), "added", "sglang_plug.New is new"),
    (without_member(NODE, "used"), "breaking", f"{NODE}.used was removed"),
    (with_member(NODE, "hits", Member("field", "int", default="0")), "added", f"{NODE}.hits is new"),
    (with_member(NODE, "hits", Member("field", "int")), "breaking", f"{NODE}.hits is a new field without default"),
    (with_member("sglang_plug.Batch", "lens", Member("field", "int")), "added", "sglang_plug.Batch.lens is new"),
    (with_member(NODE, "used", Member("field", "float")), "breaking", f"{NODE}.used has no default any more"),
    (with_member(NODE, "tokens", Member("field", "str")), "review", f"{NODE}.tokens has another type: str, before int"),
    (with_member(NODE, "tokens", Member("method", "(self) -> int")), "breaking", "was a field and is a method"),
    (
        with_member(POLICY, "rank", Member("method", "(self, node: Node, now: float=0) -> int", required=True)),
        "breaking",
        f"{POLICY}.rank has another signature (new 'now')",
    ),
    (
        with_member(POLICY, "rank", Member("method", "(self, node: Node) -> float", required=True)),
        "review",
        f"{POLICY}.rank has another signature (types)",
    ),
    (
        with_member(POLICY, "must", Member("method", "(self) -> None", required=True)),
        "breaking",
        f"{POLICY}.must is new and must be implemented",
    ),
    (
        with_member(POLICY, "reset", Member("method", "(self) -> None", required=True)),
        "breaking",
        f"{POLICY}.reset must now be implemented",
    ),
    (with_member(POLICY, "may", Member("method", "(self) -> None")), "added", f"{POLICY}.may is new"),
    (
        with_member(POLICY, "reset", Member("method", "(self) -> None", deprecated="it does nothing")),
        "deprecated",
        f"{POLICY}.reset is deprecated: it does nothing",
    ),
    (changed("sglang_plug.copy", text="(values) -> Node"), "review", "sglang_plug.copy has another signature"),
    (
        changed("sglang_plug.copy", text="(values: list[int], n: int) -> Node"),
        "breaking",
        "sglang_plug.copy has another signature (new required 'n')",
    ),
    (changed("sglang_plug.LIMIT", text="4"), "review", "sglang_plug.LIMIT changed from 3 to 4"),
    (changed("sglang_plug.Special", bases=()), "breaking", "sglang_plug.Special no longer derives from " + POLICY),
    (
        replace(OLD, items={**ITEMS, NODE: Item("renamed", "sglang_plug.Run")}),
        "deprecated",
        f"{NODE} is now sglang_plug.Run",
    ),
    (replace(OLD, items={**ITEMS, NODE: Item("function", "()")}), "breaking", f"{NODE} was a class and is a function"),
    (
        changed("hooks.register_policies", text="(facts: int) -> Iterable[PolicySpec]"),
        "breaking",
        "hooks.register_policies has another signature",
    ),
    (
        changed("hooks.register_policies", text="(config: int, facts: int, more: int) -> Iterable[PolicySpec]"),
        "review",
        "hooks.register_policies has another signature",
    ),
]


@pytest.mark.parametrize(("new", "level", "text"), CASES, ids=[case[2] for case in CASES])
def test_a_difference_is_named_and_graded(new: Surface, level: str, text: str) -> None:
    changes = {change.level: f"{change.title} {change.text}" for change in compare(OLD, new)}
    assert text in changes[level]
    assert "breaking" not in changes.keys() - {level}


def test_equal_versions_have_no_differences() -> None:
    assert compare(OLD, OLD) == []
