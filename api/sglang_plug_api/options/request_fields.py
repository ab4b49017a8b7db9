"""The request fields that plugins add to the bodies of all generation routes."""

from __future__ import annotations

from sglang_plug import Plugins
from sglang_plug.plugins.request_fields import RequestFields
from sglang_plug_api.protocol.native import SamplingBody
from sglang_plug_api.protocol.openai import ChatBody, CompletionBody
from sglang_plug_api.protocol.responses import ResponsesBody
from sglang_plug_api.protocol.sampling import SAMPLING

BODIES = (ChatBody, CompletionBody, ResponsesBody, SamplingBody)


def request_fields(plugins: Plugins) -> RequestFields:
    """Collect the request fields of plugins. Raises ``ConfigError`` for a field that is declared twice."""
    reserved = {name for body in BODIES for name in body.model_fields} | set(SAMPLING)
    return RequestFields.of(plugins, reserved)
