"""Whose error it is: what a component's own code raises while the server starts names the component."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .config import ConfigError
from .discovery import DISTRIBUTION
from .plugins import Component, PluginError


def _nothing(error: BaseException) -> bool:
    return False


@contextmanager
def attributed(
    component: Component,
    doing: str,
    *,
    among: Sequence[Component] = (),
    passes: Callable[[BaseException], bool] = _nothing,
) -> Iterator[None]:
    """Errors inside become ``PluginError``\\ s that name the component, its distribution and what it was ``doing``.

    A ``ConfigError`` is a refusal with a text of its own: it stays, signed where another distribution than the
    project's own declares the component. What ``passes`` is true of stays as it is. If the error comes out of one of
    ``among``, that is named, too.
    """
    try:
        yield
    except ConfigError as error:
        found = component.found
        if found.distribution != DISTRIBUTION and found.origin not in str(error):
            error.args = (f"{error}\n  (says {component})",)
        raise
    except (Exception, SystemExit) as error:
        if passes(error):
            raise
        raise PluginError(
            f"{component} failed {doing}: {described(error, [one for one in among if one is not component])}"
        ) from error


def described(error: BaseException, components: Sequence[Component]) -> str:
    """``error`` in one line, with those of ``components`` whose code it passed through, the innermost first.

    Looks at the traceback, so that nothing has to be wrapped that runs for every token.
    """
    text = f"{type(error).__name__}: {error}"
    found = _passed(error, components)
    return f"{text} (in {', called from '.join(map(str, found))})" if found else text


def _passed(error: BaseException, components: Sequence[Component]) -> list[Component]:
    found: list[Component] = []
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = frame.f_globals.get("__name__", "")
        targets = {one.spec.target.partition(":")[0]: one for one in components}
        owner = targets.get(module) or next((one for one in components if _is_part(module, one.found.module)), None)
        if owner is not None and owner not in found:
            found.append(owner)
    return found


def _is_part(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def make(component: Component, *arguments: Any, base: type | None = None, contract: type | None = None) -> Any:
    """What the component's target gives for ``arguments``.

    Args:
        component: was selected, so every failure is fatal.
        arguments: for the target.
        base: class that the target must be a subclass of.
        contract: class of what it gives, or the protocol whose members that must have.

    Raises ``PluginError`` if the target raises or gives something else, and the target's own ``ConfigError``.
    """
    target = component.load(base)
    with attributed(component, "to start"):
        found = target(*arguments)
    check_contract(component, found, contract)
    return found


def make_with_settings(component: Component, *, base: type | None = None, contract: type | None = None) -> Any:
    """As ``make``, of a component that takes its settings if it declares any, and nothing else."""
    settings = component.settings()
    return make(component, *(() if settings is None else (settings,)), base=base, contract=contract)


def seeing_problem(component: Component, target: type) -> str | None:
    """What is wrong with what a model says of images; ``None`` if nothing is, or for another kind."""
    if "image" not in getattr(component.spec, "inputs", ()):
        return None
    from .model import Seeing  # torch is there by now

    if issubclass(target, Seeing):
        return None
    return f"{component} declares inputs with 'image', and {target.__name__} is not Seeing; add it as a second base"


def graphs_problem(component: Component, target: type) -> str | None:
    """What is wrong with what an attention backend says of graphs; ``None`` if nothing is, or for another kind."""
    if not getattr(component.spec, "graphs", False):
        return None
    from .attention import GraphCapable  # torch is there by now

    if issubclass(target, GraphCapable):
        return None
    return f"{component}: says graphs=True, but {component.spec.target!r} is not a GraphCapable"


def check_contract(component: Component, found: Any, contract: type | None) -> None:
    """Raise ``PluginError`` unless ``found`` is a ``contract``, or has the members of that protocol."""
    if contract is None:
        return
    where = f"{component}: {component.spec.target!r}"
    if not getattr(contract, "_is_protocol", False):
        if not isinstance(found, contract):
            raise PluginError(f"{where} gave {type(found).__name__} instead of {contract.__qualname__}")
        return
    missing = [name for name in vars(contract) if not name.startswith("_") and not hasattr(found, name)]
    if missing:
        raise PluginError(
            f"{where} gave {type(found).__name__}, which lacks of {contract.__qualname__}: {', '.join(missing)}"
        )
    for name, problem in signature_problems(found, contract):
        raise PluginError(f"{where} gave {type(found).__name__}, whose {name}() {problem}")


def signature_problems(found: Any, contract: type) -> Iterator[tuple[str, str]]:
    """Methods of ``found``, an object or a class, that cannot be called as ``contract`` says, and why."""
    for name, stated in vars(contract).items():
        own = getattr(found, name, None)
        if name.startswith("_") or not inspect.isfunction(stated) or own is stated or not callable(own):
            continue
        _, *parameters = inspect.signature(stated).parameters.values()
        unbound = isinstance(found, type) and inspect.isfunction(inspect.getattr_static(found, name))
        given = [None] * (unbound + sum(one.kind is not one.KEYWORD_ONLY for one in parameters))
        named = dict.fromkeys(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)
        try:
            inspect.signature(own).bind(*given, **named)
        except TypeError as error:
            wanted = ", ".join(one.name for one in parameters)
            yield name, f"cannot be called with ({wanted}): {error}"
        except ValueError:  # written in C, and silent about what it takes
            continue
