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
        was, now = old_members.get(member), new_members.get(member)
        if now is None:
            yield Change(name, "was removed", member, breaks=EVERYBODY)
        elif was is None:
            yield _new_member(name, member, now, new)
        elif member in before.members or was != now:
            yield from _member_changes(name, member, was, now, new)


def _members(surface: Surface, name: str) -> dict[str, Member]:
    """Return the members of a class, inherited ones included."""
    lines = [surface.items[ancestor].members for ancestor in surface.ancestors(name)]
    return {member: value for members in reversed(lines) for member, value in members.items()}


def _new_member(name: str, member: str, now: Member, new: Surface) -> Change:
    item = new.items[name]
    if now.required and new.is_implementable(name):
        return Change(name, "is new and must be implemented", member, frozenset({"implementer"}), is_new_member=True)
    if _is_made_of_fields(item) and now.kind == "field" and now.default is None:
        return Change(name, "is a new field without default", member, frozenset({"constructor"}), is_new_member=True)
    return Change(name, "is new", member, is_addition=True, is_new_member=True)


def _is_made_of_fields(item: Item) -> bool:
    """Report whether plugins create instances of the class by naming its fields."""
    return item.form in ("dataclass", "model") and not item.provided


def _member_changes(name: str, member: str, was: Member, now: Member, new: Surface) -> Iterator[Change]:
    if now.deprecated and not was.deprecated:
        yield Change(name, f"is deprecated: {now.deprecated}", member, is_deprecation=True)
    if (was.kind == "method") != (now.kind == "method"):
        yield Change(name, f"was a {was.kind} and is a {now.kind}", member, breaks=EVERYBODY)
        return
    if now.required and not was.required and new.is_implementable(name):
        yield Change(name, "must now be implemented", member, frozenset({"implementer"}))
    if was.kind == "method":
        if was.text != now.text:
            yield _method_change(name, member, was, now, is_implemented=new.is_implementable(name))
        return
    if was.text != now.text:
        yield Change(name, f"has another type: {now.text or 'unknown'}, before {was.text or 'unknown'}", member)
    if was.default is not None and now.default is None and _is_made_of_fields(new.items[name]):
        yield Change(name, "has no default any more", member, frozenset({"constructor"}))
    elif was.default != now.default:
        yield Change(name, f"has another default: {now.default}, before {was.default}", member)


def _method_change(name: str, member: str, was: Member, now: Member, *, is_implemented: bool) -> Change:
    roles = set[Role]()
    reason = breaks_calls(was.text, now.text)
    if reason:
        roles.add("constructor" if member == "__init__" else "user")
    if is_implemented and member != "__init__":
        implementing = breaks_implementations(was.text, now.text)
        roles |= {"implementer"} if implementing else set()
        reason = reason or implementing
    if not reason and differs_in_types(was.text, now.text):
        reason = "types"
    text = f"has another signature ({reason or 'defaults'}): {now.text}, before {was.text}"
    return Change(name, text, member, frozenset(roles))
