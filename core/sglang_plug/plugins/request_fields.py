"""The request fields of plugins: their types, their values in a request, and which of them are refused.

Logits processors and step extensions declare them. The API process and the engine process read them in the same way. A
component's ``request_fields`` class is a dataclass or a ``msgspec.Struct`` whose fields all have defaults; each is one
field of a request. Its module must not import torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec import inspect as types

from sglang_plug.config import ConfigError
from sglang_plug.contracts.sampling_params import PROCESSED_PARAMS, RequestFieldError, SamplingParams
from sglang_plug.system.field_errors import field_error

from .registry import Component, PluginError, Plugins, import_target
from .specs import LogitsProcessorSpec, StepExtensionSpec

PROCESSORS = LogitsProcessorSpec.kind
CONTAINERS = (types.UnionType, types.ListType, types.VarTupleType, types.DataclassType, types.StructType)
"""Types whose values may have objects in them."""
SHOWN = 80
"""Maximum number of characters of a request that an error repeats."""


@dataclass(frozen=True, slots=True)
class ComponentRequestFields:
    """The request fields of one component."""

    component: Component
    kind: type
    """A dataclass or a struct."""
    names: tuple[str, ...]

    @classmethod
    def of(cls, component: Component) -> ComponentRequestFields | None:
        """The fields that a component declares; ``None`` if there are none. Raises ``PluginError`` for a bad class."""
        spec = component.spec
        if not isinstance(spec, LogitsProcessorSpec | StepExtensionSpec) or spec.request_fields is None:
            return None
        where = f"{component}: request_fields {spec.request_fields!r}"
        try:
            kind = import_target(spec.request_fields)
        except (Exception, SystemExit) as error:
            raise PluginError(f"{where} could not be imported: {type(error).__name__}: {error}") from error
        if not isinstance(kind, type) or not (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)):
            raise PluginError(f"{where} must be a dataclass or a msgspec.Struct")
        try:
            info = types.type_info(kind)
            _schemas(kind, "{name}")
        except Exception as error:
            raise PluginError(f"{where} has a type that no request can hold: {error}") from error
        assert isinstance(info, types.DataclassType | types.StructType)
        if required := [field.encode_name for field in info.fields if field.required]:
            raise PluginError(f"{where}: {required[0]!r} needs a default, requests may leave it out")
        return cls(component, kind, tuple(field.encode_name for field in info.fields))

    def among(self, values: Mapping[str, Any]) -> Any:
        """Return an instance with those of ``values`` that are its fields. Raises ``RequestFieldError``."""
        return self.read({name: value for name, value in values.items() if name in self.names})

    def read(self, values: Mapping[str, Any]) -> Any:
        """An instance with ``values`` as they were in JSON. Raises ``RequestFieldError`` naming the field."""
        return self.convert(self.kind, values)

    @staticmethod
    def convert(kind: type, values: Mapping[str, Any]) -> Any:
        """An instance of ``kind``, see ``read``."""
        first = next(iter(values), "")
        try:
            if unknown := _unknown(types.type_info(kind), values):
                raise RequestFieldError(unknown, f"{unknown}: there is no such field")
            return msgspec.convert(values, kind, strict=True, str_keys=True)
        except RequestFieldError:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            problem = field_error(error, first)
            raise RequestFieldError(problem.path, str(problem)) from None


@dataclass(frozen=True, slots=True)
class RequestFields:
    """The request fields of all logits processors and step extensions of a server."""

    components: tuple[ComponentRequestFields, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """Field of a component that cannot be used -> why."""
    refused_params: Mapping[str, str] = field(default_factory=dict)
    """Name in ``SamplingParams`` that no processor applies -> why."""
    owners: Mapping[str, ComponentRequestFields] = field(default_factory=dict)
    """Field -> whose it is."""

    @classmethod
    def of(cls, plugins: Plugins, reserved: Iterable[str] = ()) -> RequestFields:
        """Collect the fields that plugins declare. ``reserved`` are fields that bodies have already.

        Raises ``ConfigError`` if two components declare one field, or one declares a reserved field.
        """
        processors, missing_processors = _usable(plugins, PROCESSORS)
        extensions, missing_extensions = _usable(plugins, StepExtensionSpec.kind)
        usable, missing = [*processors, *extensions], [*missing_processors, *missing_extensions]
        known = [fields for candidate in usable if (fields := ComponentRequestFields.of(candidate)) is not None]
        taken = {*reserved, *SamplingParams.__dataclass_fields__}
        owners: dict[str, ComponentRequestFields] = {}
        for fields in known:
            for name in fields.names:
                if name in taken:
                    raise ConfigError(
                        f"{fields.component} declares the request field {name!r}, which exists already; give it "
                        "another name"
                    )
                if (other := owners.get(name)) is not None:
                    raise ConfigError(
                        f"{other.component} and {fields.component} both declare the request field {name!r}; "
                        f"leave one out, for example with --block-plugin {fields.component.key}"
                    )
                owners[name] = fields
        refused = {
            name: why
            for component, why in missing
            for name in _names(component)
            if name not in owners and name not in taken
        }
        return cls(tuple(known), refused, _refused_params(processors, missing_processors), owners)

    @property
    def names(self) -> frozenset[str]:
        """Every field, refused ones included."""
        return frozenset(self.owners) | frozenset(self.refused)

    def check(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of plugins among ``values``, as plain data; ``null`` counts as not given.

        A field whose type is a set has each of its entries once. Raises ``RequestFieldError`` for a wrong value and for
        a field that is refused.
        """
        fields = {name: value for name, value in values.items() if name in self.names and value is not None}
        for name in fields:
            if name in self.refused:
                raise RequestFieldError(name, f"{name}: {self.refused[name]}")
        instances = self.read(fields)
        for name, value in fields.items():
            owner = self.owners[name]
            fields[name] = value = _distinct(value, name, instances[owner.component.key])
            if not _can_be_sent(value):
                raise RequestFieldError(name, f"{name}: a number does not fit 64 bits")
        return fields

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Key of a component -> an instance of its class, for those of which ``values`` has fields.

        Raises ``RequestFieldError`` for a wrong value and for a field that nobody declares.
        """
        parts: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            fields = self.owners.get(name)
            if fields is None:
                why = self.refused.get(name, "no logits processor or step extension declares this field")
                raise RequestFieldError(name[:SHOWN], f"{name[:SHOWN]}: {why}")
            parts.setdefault(fields.component.key, {})[name] = value
        return {key: self.owners[next(iter(part))].read(part) for key, part in parts.items()}

    def without(self, components: Iterable[Component], why: str) -> RequestFields:
        """Return the same with the fields of ``components`` refused, because of ``why``."""
        keys = {component.key for component in components}
        refused = {
            name: f"{fields.component} {why}" for name, fields in self.owners.items() if fields.component.key in keys
        }
        return replace(
            self,
            components=tuple(fields for fields in self.components if fields.component.key not in keys),
            refused={**self.refused, **refused},
            owners={name: fields for name, fields in self.owners.items() if name not in refused},
        )

    def check_params(self, params: SamplingParams) -> None:
        """Raise ``RequestFieldError`` for a parameter that asks for a processor that is not there."""
        for name, why in self.refused_params.items():
            if is_set(params, (name,)):
                raise RequestFieldError(name, f"{name}: {why}")

    def schemas(self, reference: str, taken: frozenset[str]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        """Each field, its JSON schema, and the schemas that this refers to.

        Args:
            reference: how a schema is referred to, with ``{name}`` in it.
            taken: names of other schemas; one of a component with such a name has the component's name before it.
        """
        for fields in self.components:
            parts = _schemas(fields.kind, reference)
            if parts.keys() & taken:
                prefix = "".join(filter(str.isalnum, fields.component.spec.name.title()))
                parts = {prefix + name: schema for name, schema in _schemas(fields.kind, reference, prefix).items()}
            whole = next(schema for name, schema in parts.items() if name.endswith(fields.kind.__name__))
            definitions = {name: schema for name, schema in parts.items() if schema is not whole}
            for name, schema in whole.get("properties", {}).items():
                yield name, schema, definitions


NEUTRAL: Mapping[str, Any] = {name: getattr(SamplingParams(), name) for name in PROCESSED_PARAMS}
"""Parameter -> the value that asks for nothing."""


def is_set(params: SamplingParams, names: Iterable[str]) -> bool:
    """Report whether any of the parameters ``names`` of logits processors asks for something."""
    return any([getattr(params, name) != NEUTRAL[name] for name in names])


def _distinct(value: Any, name: str, instance: Any) -> Any:
    """Return the plain ``value`` of the field ``name``, without repeated entries if ``instance`` has a set there."""
    info = types.type_info(type(instance))
    assert isinstance(info, types.DataclassType | types.StructType)
    attribute = next(field.name for field in info.fields if field.encode_name == name)
    declared = getattr(instance, attribute)
    return msgspec.to_builtins(declared, order="deterministic") if isinstance(declared, set | frozenset) else value


def _can_be_sent(value: Any) -> bool:
    """Report whether the engine process can be sent ``value``, whose numbers JSON does not limit."""
    try:
        msgspec.msgpack.encode(value)
    except OverflowError:
        return False
    return True


def usable_processors(plugins: Plugins) -> list[Component]:
    """The logits processors of a server, in the order in which they run. Raises ``PluginError`` for a clash."""
    return _usable(plugins, PROCESSORS)[0]


def _schemas(kind: type, reference: str, prefix: str = "") -> dict[str, Any]:
    """Name -> JSON schema of a class and of all that it refers to."""
    template = reference.replace("{name}", prefix + "{name}")
    schemas: dict[str, Any] = _with_repeats(msgspec.json.schema_components([kind], ref_template=template)[1])
    return schemas


def _with_repeats(schema: Any) -> Any:
    """Return ``schema`` with sets that may repeat entries, as requests may."""
    match schema:
        case dict():
            return {name: _with_repeats(value) for name, value in schema.items() if name != "uniqueItems"}
        case list():
            return [_with_repeats(value) for value in schema]
        case _:
            return schema


def _usable(plugins: Plugins, kind: str) -> tuple[list[Component], list[tuple[Component, str]]]:
    """Return the components of a kind that can be used, processors in their order; and the others, with the reason."""
    usable: list[Component] = []
    missing = [(candidate, f"{candidate} is blocked (--plugins, --block-plugin)") for candidate in plugins.hidden(kind)]
    for name in plugins.names(kind):
        component = plugins.get(kind, name)
        if reason := component.unavailable():
            missing.append((component, f"{component} is unavailable: {reason}"))
        else:
            usable.append(component)
    return sorted(usable, key=_order), missing


def _order(component: Component) -> tuple[int, str]:
    spec = component.spec
    return spec.order if isinstance(spec, LogitsProcessorSpec) else 0, spec.name


def _refused_params(usable: list[Component], missing: list[tuple[Component, str]]) -> dict[str, str]:
    applied = {name for component in usable for name in _params(component)}
    reasons = {name: why for component, why in missing for name in _params(component)}
    return {
        name: reasons.get(name, "no logits processor of this server applies it")
        for name in PROCESSED_PARAMS
        if name not in applied
    }


def _params(component: Component) -> tuple[str, ...]:
    return component.spec_as(LogitsProcessorSpec).sampling_params


def _names(component: Component) -> tuple[str, ...]:
    """Fields of a component that cannot be used; none if they cannot even be read."""
    try:
        fields = ComponentRequestFields.of(component)
    except PluginError:
        return ()
    return () if fields is None else fields.names


def _unknown(kind: types.Type, value: Any, parent: str = "") -> str:
    """Path of the first key of ``value`` that its type does not have; empty if there is none."""
    if isinstance(kind, types.UnionType):
        objects = [
            item_type for item_type in kind.types if isinstance(item_type, types.DataclassType | types.StructType)
        ]
        return _unknown(objects[0], value, parent) if len(objects) == 1 else ""
    if isinstance(kind, types.ListType | types.VarTupleType) and isinstance(value, list):
        if not isinstance(kind.item_type, CONTAINERS):  # there may be millions of numbers
            return ""
        paths = (_unknown(kind.item_type, item, f"{parent}.{index}") for index, item in enumerate(value))
        return next(filter(None, paths), "")
    if not isinstance(kind, types.DataclassType | types.StructType) or not isinstance(value, Mapping):
        return ""
    known = {field.encode_name: field.type for field in kind.fields}
    for name, inner in value.items():
        path = f"{parent}.{name}" if parent else str(name)
        if name not in known:
            return path[:SHOWN]
        if unknown := _unknown(known[name], inner, path):
            return unknown
    return ""
