"""Attribution of errors: exceptions from a component's code during the start name the component."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sglang_plug.config import ConfigError
from sglang_plug.plugins.installed.discovery import DISTRIBUTION
from sglang_plug.system.library_panics import is_error

from .registry import Component, PluginError


def _never(error: BaseException) -> bool:
    return False


@contextmanager
def attributed(
    component: Component,
    doing: str,
    *,
    among: Sequence[Component] = (),
    passes: Callable[[BaseException], bool] = _never,
) -> Iterator[None]:
    """Convert errors inside the context to ``PluginError``\\ s that name the component, its distribution and ``doing``.

    A ``ConfigError`` is a refusal with a text of its own: it is kept, and signed if another distribution than
    sglang-plug declares the component. Errors for which ``passes`` returns true are kept, too. If the error comes out
    of one of ``among``, the message names that component as well.
    """
    try:
        yield
    except ConfigError as error:
        plugin = component.plugin
        if plugin.distribution != DISTRIBUTION and plugin.origin not in str(error):
            error.args = (f"{error}\n  (says {component})",)
        raise
    except BaseException as error:
        if passes(error) or not (is_error(error) or isinstance(error, SystemExit)):
            raise
        raise PluginError(
            f"{component} failed {doing}: {described(error, [other for other in among if other is not component])}"
        ) from error


@contextmanager
def attributed_by_traceback(components: Sequence[Component], doing: str) -> Iterator[None]:
    """Convert errors that the code of one of ``components`` raises inside the context to ``PluginError``\\ s naming it.

    A ``ConfigError`` is a refusal with a text of its own, which is kept.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        owners = _owners_in_traceback(error, components)
        if not owners:
            raise
        raise PluginError(f"{owners[0]} failed {doing}: {described(error, owners[1:])}") from error


def described(error: BaseException, components: Sequence[Component]) -> str:
    """Describe ``error`` in one line, with those of ``components`` whose code it passed through, the innermost first.

    Reads the traceback, so that functions that run for every token need no wrapper.
    """
    text = f"{type(error).__name__}: {error}"
    owners = _owners_in_traceback(error, components)
    return f"{text} (in {', called from '.join(map(str, owners))})" if owners else text


def _owners_in_traceback(error: BaseException, components: Sequence[Component]) -> list[Component]:
    owners: list[Component] = []
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = frame.f_globals.get("__name__", "")
        targets = {component.spec.target.partition(":")[0]: component for component in components}
        owner = targets.get(module) or next(
            (component for component in components if _is_part(module, component.plugin.module)), None
        )
        if owner is not None and owner not in owners:
            owners.append(owner)
    return owners


def _is_part(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def make(
    component: Component,
    *arguments: Any,
    base: type | None = None,
    contract: type | None = None,
    is_used: bool = True,
) -> Any:
    """Call the component's target with ``arguments`` and return the result.

    Args:
        component: was selected, so every failure is fatal.
        arguments: for the target.
        base: class that the target must be a subclass of.
        contract: class of the result, or a protocol whose members it must have.
        is_used: False for a result that is only looked at, and neither started nor stopped.

    An object that has ``on_start`` or ``on_stop`` is noted, see ``Lifecycle``. Raises ``PluginError`` if the target
    raises or returns something else, and the target's own ``ConfigError``.
    """
    target = component.load(base)
    with attributed(component, "to start"):
        made = target(*arguments)
    check_contract(component, made, contract)
    if is_used:
        component.lifecycle.add(component, made)
    return made


def make_with_settings(
    component: Component,
    *arguments: Any,
    base: type | None = None,
    contract: type | None = None,
    is_used: bool = True,
) -> Any:
    """Call ``make`` with the component's settings, if it declares any, as the last argument."""
    arguments = (*arguments, *component.settings_arguments())
    return make(component, *arguments, base=base, contract=contract, is_used=is_used)


def declaration_problem(component: Component, target: type) -> str | None:
    """Return the problem if the class ``target`` lacks what the spec of its component declares, else ``None``."""
    return _images_problem(component, target) or _graphs_problem(component, target)


def _images_problem(component: Component, target: type) -> str | None:
    """Return the problem if a model declares images but does not support them, else ``None``."""
    if "image" not in getattr(component.spec, "inputs", ()):
        return None
    from sglang_plug.contracts.model.model import SupportsImages  # torch is there by now

    if issubclass(target, SupportsImages):
        return None
    return f"{component} declares inputs with 'image': {target.__name__} must have SupportsImages as a second base"


def _graphs_problem(component: Component, target: type) -> str | None:
    """Return the problem if an attention backend declares graphs but is not ``GraphCapable``, else ``None``."""
    if not getattr(component.spec, "graphs", False):
        return None
    from sglang_plug.contracts.model.attention import GraphCapable  # torch is there by now

    if issubclass(target, GraphCapable):
        return None
    return f"{component}: says graphs=True, but {component.spec.target!r} is not a GraphCapable"


def check_contract(component: Component, made: Any, contract: type | None) -> None:
    """Raise ``PluginError`` unless ``made`` is a ``contract``, or has the members of that protocol."""
    if contract is None:
        return
    where = f"{component}: {component.spec.target!r}"
    if not getattr(contract, "_is_protocol", False):
        if not isinstance(made, contract):
            raise PluginError(f"{where} returned {type(made).__name__} instead of {contract.__qualname__}")
        return
    missing = [name for name in vars(contract) if not name.startswith("_") and not hasattr(made, name)]
    if missing:
        raise PluginError(
            f"{where} returned {type(made).__name__}, which lacks these members of {contract.__qualname__}: "
            f"{', '.join(missing)}"
        )
    for name, problem in signature_problems(made, contract):
        raise PluginError(f"{where} returned {type(made).__name__}, whose {name}() {problem}")


def signature_problems(made: Any, contract: type) -> Iterator[tuple[str, str]]:
    """Yield methods of ``made``, an object or a class, that cannot be called as in ``contract``, and the reason."""
    for name, stated in vars(contract).items():
        method = getattr(made, name, None)
        if name.startswith("_") or not inspect.isfunction(stated) or method is stated or not callable(method):
            continue
        _, *parameters = inspect.signature(stated).parameters.values()
        unbound = isinstance(made, type) and inspect.isfunction(inspect.getattr_static(made, name))
        positional = [None] * (unbound + sum(parameter.kind is not parameter.KEYWORD_ONLY for parameter in parameters))
        named = dict.fromkeys(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)
        try:
            inspect.signature(method).bind(*positional, **named)
        except TypeError as error:
            yield name, f"cannot be called with {shown_parameters(stated)}: {error}"
        except ValueError:  # written in C, and silent about what it takes
            continue


def shown_parameters(method: Callable[..., Any]) -> str:
    """Return the parameters of a method as they are written, without ``self`` and types: ``(running, *, within=0)``."""
    _, *parameters = inspect.signature(method).parameters.values()
    return str(inspect.Signature([parameter.replace(annotation=parameter.empty) for parameter in parameters]))
