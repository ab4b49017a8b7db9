"""A declared component: its target, its settings, and where it comes from."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import new_class
from typing import Any, TypeVar

from sglang_plug.config import ConfigError, PluginError
from sglang_plug.plugins.installed.discovery import DiscoveredPlugin

from .lifecycle import ComponentLifecycle
from .requirements import remedy, unmet
from .settings import is_settings_class, parse_settings
from .spec import Spec

SpecOfKind = TypeVar("SpecOfKind", bound=Spec)


@dataclass(frozen=True, slots=True)
class Component:
    """A declared component, and the plugin that declared it."""

    spec: Spec
    plugin: DiscoveredPlugin
    raw_settings: Mapping[str, Any]
    """The settings as the user gave them, not parsed yet."""
    lifecycle: ComponentLifecycle = field(default_factory=ComponentLifecycle, compare=False, repr=False)
    """Starts and stops what the target makes."""

    def spec_as(self, kind: type[SpecOfKind]) -> SpecOfKind:
        """Return the spec, which is of the class ``kind``. Raises ``PluginError`` if it is of another one."""
        if not isinstance(self.spec, kind):
            raise PluginError(f"{self} is described by {type(self.spec).__name__}, and {kind.__name__} is needed here")
        return self.spec

    def load(self, base: type | None = None) -> Any:
        """Import the target. The user selected it, so a failure is fatal and attributed.

        Raises ``PluginError`` if the import fails or the target is not a subclass of ``base``.
        """
        if missing := self.unavailable():
            raise PluginError(f"{self} is unavailable: {missing}")
        try:
            target = import_target(self.spec.target)
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"{self} could not be imported from {self.spec.target!r}: {type(error).__name__}: {error}"
            ) from error
        if base is not None and not (isinstance(target, type) and issubclass(target, base)):
            raise PluginError(f"{self}: {self.spec.target!r} must be a subclass of {base.__qualname__}")
        return target

    def settings(self) -> Any:
        """The component's settings object, or ``None`` if it declares none. Raises ``ConfigError``."""
        if self.spec.settings is None:
            if self.raw_settings:
                raise ConfigError(
                    f"{self} has no settings, but --set {self.spec.name}.{min(self.raw_settings)} was given"
                )
            return None
        return parse_settings(self.settings_class(), self.raw_settings, self.spec.name)

    def settings_class(self) -> type:
        """Import the class of the settings, which the spec declares. Raises ``PluginError``."""
        assert self.spec.settings is not None
        try:
            kind = import_target(self.spec.settings)
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"settings of {self} could not be imported from {self.spec.settings!r}: {type(error).__name__}: {error}"
            ) from error
        if not is_settings_class(kind):
            raise PluginError(f"{self}: settings {self.spec.settings!r} must be a dataclass or a msgspec.Struct")
        settings: type = kind
        return settings

    def settings_arguments(self) -> tuple[Any, ...]:
        """The last arguments of the target: its settings, or nothing if it declares none. Raises ``ConfigError``."""
        return () if self.spec.settings is None else (self.settings(),)

    def factory(self, base: type | None = None) -> Callable[..., Any]:
        """``load`` the target as a function that adds its settings, if it declares any, as the last argument."""
        target, settings = self.load(base), self.settings_arguments()
        return (lambda *arguments: target(*arguments, *settings)) if settings else target

    def load_class(self, base: type) -> Any:
        """``load`` a target that is used as a class; its attribute ``settings`` is set if it declares settings."""
        target: type = self.load(base)
        if self.spec.settings is None:
            return target
        names = ("__module__", "__qualname__", "__doc__")
        members = {"settings": self.settings(), **{name: getattr(target, name) for name in names}}
        return new_class(target.__name__, (target,), exec_body=lambda namespace: namespace.update(members))

    def detects(self, subject: Any) -> bool:
        """Report whether the component is available and recognises ``subject``. Raises ``PluginError`` if it fails."""
        detects: str | None = getattr(self.spec, "detects", None)
        if detects is None or self.unavailable():
            return False
        try:
            return bool(import_target(detects)(subject))
        except (Exception, SystemExit) as error:
            raise PluginError(f"{self} failed in {detects!r}: {type(error).__name__}: {error}") from error

    def check(self) -> None:
        """Import the target and read the settings. Raises ``ConfigError`` if either fails."""
        self.load()
        self.settings()

    def unavailable(self) -> str:
        """Return the reason that the component cannot be used here, or an empty string."""
        missing = unmet(self.spec.needs)
        install = remedy(self.spec.needs, self.plugin.distribution) if missing else ""
        return f"{missing} ({install})" if install else missing

    @property
    def key(self) -> str:
        """``kind:name``."""
        return f"{self.spec.kind}:{self.spec.name}"

    def __str__(self) -> str:
        return f"{self.spec.kind} {self.spec.name!r} from {self.plugin.origin} (plugin {self.plugin.name!r})"


def import_target(target: str) -> Any:
    """The object that ``"package.module:attribute"`` names."""
    module, _, attribute = target.partition(":")
    value: Any = importlib.import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part)
    return value
