"""Differences between two versions of the contract, and whom each one affects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .signatures import breaks_calls, breaks_implementations, differs_in_types, parse_signature
from .surface import Item, Member, Surface

Role = Literal["user", "implementer", "constructor"]
"""A user names, calls or reads it; an implementer defines it; a constructor creates instances of the class."""
EVERYBODY: frozenset[Role] = frozenset({"user", "implementer", "constructor"})


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two versions."""

    name: str
    """Full name of the class, function, hook or value."""
    text: str
    """The difference, as a continuation of a sentence that begins with the name."""
    member: str | None = None
    breaks: frozenset[Role] = frozenset()
    """Roles whose code no longer works."""
    is_addition: bool = False
    is_deprecation: bool = False
    is_new_member: bool = False
    """True for a member that did not exist before: code cannot use it yet."""

    @property
    def title(self) -> str:
        """Full name, with the member's."""
        return self.name if self.member is None else f"{self.name}.{self.member}"

    @property
    def level(self) -> str:
        """``breaking``, ``deprecated``, ``added``, or ``review`` for a change that may matter."""
        if self.breaks:
            return "breaking"
        return "deprecated" if self.is_deprecation else "added" if self.is_addition else "review"


def compare(old: Surface, new: Surface) -> list[Change]:
    """Return every difference between two versions, by name."""
    changes: list[Change] = []
    for name in sorted(old.items.keys() | new.items.keys()):
        before, after = old.items.get(name), new.items.get(name)
        if after is None:
            changes.append(Change(name, "was removed", breaks=EVERYBODY))
        elif before is None:
            text = f"is an earlier name of {after.text}" if after.kind == "renamed" else "is new"
            changes.append(Change(name, text, is_addition=True))
        elif after.kind == "renamed" and before.kind != "renamed":
            changes.append(Change(name, f"is now {after.text}; the name is deprecated", is_deprecation=True))
        elif before.kind != after.kind:
            changes.append(Change(name, f"was a {before.kind} and is a {after.kind}", breaks=EVERYBODY))
        else:
            changes += _item_changes(name, old, new)
    return changes


def _item_changes(name: str, old: Surface, new: Surface) -> Iterator[Change]:
    before, after = old.items[name], new.items[name]
    if after.deprecated and not before.deprecated:
        yield Change(name, f"is deprecated: {after.deprecated}", is_deprecation=True)
    if before.kind == "class":
        yield from _class_changes(name, old, new)
    elif before.text != after.text:
        yield _text_change(name, before, after)


def _text_change(name: str, before: Item, after: Item) -> Change:
    if before.kind in ("value", "renamed"):
        return Change(name, f"changed from {before.text} to {after.text}")
    if before.kind == "hook":  # an implementation takes those arguments of a hook that it needs
        removed = {parameter.name for parameter in parse_signature(before.text)[0]} - {
            parameter.name for parameter in parse_signature(after.text)[0]
        }
        roles: frozenset[Role] = frozenset({"implementer"} if removed else ())
        return Change(name, f"has another signature: {after.text}, before {before.text}", breaks=roles)
    reason = breaks_calls(before.text, after.text)
    return Change(
        name,
        f"has another signature ({reason or 'types or defaults'}): {after.text}, before {before.text}",
        breaks=frozenset({"user"} if reason else ()),
    )


def _class_changes(name: str, old: Surface, new: Surface) -> Iterator[Change]:
    before, after = old.items[name], new.items[name]
    for base in before.bases:
        if base not in after.bases and base not in new.ancestors(name):
            yield Change(name, f"no longer derives from {base}", breaks=frozenset({"user"}))
    old_members, new_members = _members(old, name), _members(new, name)
    for member in sorted(before.members.keys() | after.members.keys()):
        old_member, new_member = old_members.get(member), new_members.get(member)
        if new_member is None:
            yield Change(name, "was removed", member, breaks=EVERYBODY)
        elif old_member is None:
            yield _new_member(name, member, new_member, new)
        elif member in before.members or old_member != new_member:
            yield from _member_changes(name, member, old_member, new_member, new)


def _members(surface: Surface, name: str) -> dict[str, Member]:
    """Return the members of a class, inherited ones included."""
    lines = [surface.items[ancestor].members for ancestor in surface.ancestors(name)]
    return {member: value for members in reversed(lines) for member, value in members.items()}


def _new_member(name: str, member: str, new_member: Member, new: Surface) -> Change:
    item = new.items[name]
    if new_member.required and new.is_implementable(name):
        return Change(name, "is new and must be implemented", member, frozenset({"implementer"}), is_new_member=True)
    if _is_made_of_fields(item) and new_member.kind == "field" and new_member.default is None:
        return Change(name, "is a new field without default", member, frozenset({"constructor"}), is_new_member=True)
    return Change(name, "is new", member, is_addition=True, is_new_member=True)


def _is_made_of_fields(item: Item) -> bool:
    """Report whether plugins create instances of the class by naming its fields."""
    return item.form in ("dataclass", "model") and not item.provided


def _member_changes(name: str, member: str, old_member: Member, new_member: Member, new: Surface) -> Iterator[Change]:
    if new_member.deprecated and not old_member.deprecated:
        yield Change(name, f"is deprecated: {new_member.deprecated}", member, is_deprecation=True)
    if (old_member.kind == "method") != (new_member.kind == "method"):
        yield Change(name, f"was a {old_member.kind} and is a {new_member.kind}", member, breaks=EVERYBODY)
        return
    if new_member.required and not old_member.required and new.is_implementable(name):
        yield Change(name, "must now be implemented", member, frozenset({"implementer"}))
    if old_member.kind == "method":
        if old_member.text != new_member.text:
            yield _method_change(name, member, old_member, new_member, is_implemented=new.is_implementable(name))
        return
    if old_member.text != new_member.text:
        yield Change(
            name, f"has another type: {new_member.text or 'unknown'}, before {old_member.text or 'unknown'}", member
        )
    if old_member.default is not None and new_member.default is None and _is_made_of_fields(new.items[name]):
        yield Change(name, "has no default any more", member, frozenset({"constructor"}))
    elif old_member.default != new_member.default:
        yield Change(name, f"has another default: {new_member.default}, before {old_member.default}", member)


def _method_change(name: str, member: str, old_member: Member, new_member: Member, *, is_implemented: bool) -> Change:
    roles = set[Role]()
    reason = breaks_calls(old_member.text, new_member.text)
    if reason:
        roles.add("constructor" if member == "__init__" else "user")
    if is_implemented and member != "__init__":
        implementing = breaks_implementations(old_member.text, new_member.text)
        roles |= {"implementer"} if implementing else set()
        reason = reason or implementing
    if not reason and differs_in_types(old_member.text, new_member.text):
        reason = "types"
    text = f"has another signature ({reason or 'defaults'}): {new_member.text}, before {old_member.text}"
    return Change(name, text, member, frozenset(roles))
