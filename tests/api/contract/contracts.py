"""Small contracts for tests: two versions of each differ in one respect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sglang_plug_api.contract.surface import Item, Member, Surface

POLICY = Item(
    "class",
    form="protocol",
    members={
        "rank": Member("method", "(self, node: Node) -> int", required=True),
        "reset": Member("method", "(self) -> None"),
    },
)
NODE = Item(
    "class",
    form="dataclass",
    members={"tokens": Member("field", "int"), "used": Member("field", "float", default="0.0")},
)
ITEMS = {
    "sglang_plug.Policy": POLICY,
    "sglang_plug.Special": Item(
        "class", bases=("sglang_plug.Policy",), members={"extra": Member("method", "(self) -> None")}
    ),
    "sglang_plug.PolicySpec": Item("class", form="dataclass", targets=("sglang_plug.Policy",)),
    "sglang_plug.Node": NODE,
    "sglang_plug.Batch": Item("class", form="dataclass", provided=True, members={"rows": Member("field", "int")}),
    "sglang_plug.copy": Item("function", "(values: list[int]) -> Node"),
    "sglang_plug.LIMIT": Item("value", "3"),
    "sglang_plug.layers.Linear": Item("class", members={"width": Member("field", "int")}),
    "hooks.register_policies": Item("hook", "(config: int, facts: int) -> Iterable[PolicySpec]"),
}
OLD = Surface(contract="1.0", routes=1, items=ITEMS)


def changed(name: str, **changes: Any) -> Surface:
    """Return the contract with other fields of one item."""
    return replace(OLD, contract="1.1", items={**ITEMS, name: replace(ITEMS[name], **changes)})


def without(name: str) -> Surface:
    """Return the contract without one item."""
    return replace(OLD, contract="2.0", items={key: item for key, item in ITEMS.items() if key != name})


def with_member(name: str, member: str, value: Member) -> Surface:
    """Return the contract with a new or another member of one class."""
    return changed(name, members={**ITEMS[name].members, member: value})


def without_member(name: str, member: str) -> Surface:
    """Return the contract without one member of a class."""
    return changed(name, members={key: value for key, value in ITEMS[name].members.items() if key != member})
