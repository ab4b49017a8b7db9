"""The request fields of plugins in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from sglang_plug.plugins.request_fields import RequestFields

from .base import ProcessorFieldsBody

REFERENCE = "#/components/schemas/{name}"


def add_processor_fields(schemas: dict[str, Any], fields: RequestFields) -> None:
    """Add the fields to the schema of every body that takes them, and the schemas that they refer to.

    A class that has the name of another schema gets its module before its name.
    """
    bodies = {kind.__name__ for kind in _all_bodies(ProcessorFieldsBody)}
    for name, schema, definitions in fields.schemas(REFERENCE, taken=frozenset(schemas)):
        schemas.update(definitions)
        for body in bodies & schemas.keys():
            schemas[body].setdefault("properties", {})[name] = schema


def _all_bodies(kind: type[ProcessorFieldsBody]) -> set[type[ProcessorFieldsBody]]:
    return {kind}.union(*(_all_bodies(subclass) for subclass in kind.__subclasses__()))
