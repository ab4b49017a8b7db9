"""The logits processors of an engine, and the selection of those that a request uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from sglang_plug.contracts.request import Request, RequestError
from sglang_plug.contracts.sampling_params import SamplingParams
from sglang_plug.contracts.serving.logits_processor import LogitsProcessor, ProcessorRequest
from sglang_plug.contracts.text.vocabulary import Vocabulary
from sglang_plug.plugins.attribution import described, make
from sglang_plug.plugins.registry import Component, Plugins
from sglang_plug.plugins.request_fields import ComponentRequestFields, RequestFields, is_set, usable_processors
from sglang_plug.plugins.specs import LogitsProcessorSpec
from sglang_plug.system.library_panics import is_error

ABOUT: Final = "processor_fields"


@dataclass(frozen=True, slots=True, eq=False)
class LoadedProcessor:
    """A logits processor of this engine."""

    component: Component
    processor: LogitsProcessor
    rank: int
    """The processor's position in the order in which processors run."""
    fields: ComponentRequestFields | None
    """The processor's request fields, if it declares any."""
    sampling_params: tuple[str, ...] = ()
    """The parameters that every server knows and that it applies."""

    def is_requested(self, params: SamplingParams, fields: Mapping[str, Any]) -> bool:
        """Report whether a request may use the processor; ``fields`` are those that it sets, by component.

        One that declares neither fields nor parameters may change every output.
        """
        if self.fields is None and not self.sampling_params:
            return True
        return self.component.key in fields or is_set(params, self.sampling_params)

    def describe(self, error: BaseException) -> str:
        """Return ``error`` in one line, naming the component."""
        return f"{self.component} failed: {described(error, ())}"


@dataclass(frozen=True, slots=True, eq=False)
class ProcessorUse:
    """One sequence's use of a logits processor."""

    loaded: LoadedProcessor
    state: Any
    """The result of ``LogitsProcessor.prepare``."""

    @property
    def needs_tokens(self) -> bool:
        """True if the processor depends on the tokens generated so far."""
        return self.loaded.processor.needs_tokens

    def is_done(self, generated: int) -> bool:
        """Report whether the processor no longer changes a sequence with this many output tokens."""
        return self.loaded.processor.is_done(self.state, generated)

    def changes_nothing(self, generated: int) -> bool:
        """Report the same, and False if the processor fails: its error is reported with the batch that has the row."""
        try:
            return self.is_done(generated)
        except BaseException as error:
            if not is_error(error):
                raise
            return False


@dataclass(frozen=True, slots=True)
class LogitsProcessors:
    """Every logits processor of an engine, in the order in which they run."""

    loaded: tuple[LoadedProcessor, ...] = ()
    fields: RequestFields = field(default_factory=RequestFields)

    @classmethod
    def build(
        cls,
        plugins: Plugins,
        fields: RequestFields,
        vocab_size: int,
        device: torch.device,
        vocabulary: Callable[[], Vocabulary | None] = lambda: None,
    ) -> LogitsProcessors:
        """Import and construct the processors. Raises ``ConfigError`` naming a component that cannot be used.

        ``fields`` are those that requests may have; ``vocabulary`` is called if a processor needs it, which takes a
        while.
        """
        own = {declared.component.key: declared for declared in fields.components}
        loaded = []
        for rank, component in enumerate(usable_processors(plugins)):
            target = component.load(LogitsProcessor)
            texts = (vocabulary(),) if getattr(target, "needs_vocabulary", False) else ()
            arguments = component.settings(), vocab_size, device, *texts
            processor: LogitsProcessor = make(component, *arguments, base=LogitsProcessor, contract=LogitsProcessor)
            params = component.spec_as(LogitsProcessorSpec).sampling_params
            loaded.append(LoadedProcessor(component, processor, rank, own.get(component.key), params))
        return cls(tuple(loaded), fields)

    def admit(self, request: Request, *, constrained: bool = False) -> tuple[ProcessorUse, ...]:
        """Return the processors that a request uses, in order.

        ``constrained``: a step extension decides where the output ends. Raises ``RequestError`` if a processor refuses
        the request, and ``RequestFieldError`` for a field with a wrong value.
        """
        params = request.params
        self.fields.check_params(params)
        fields = self.fields.read(params.processor_fields) if params.processor_fields else {}
        uses = []
        for loaded in self.loaded:
            if not loaded.is_requested(params, fields):
                continue
            own = fields.get(loaded.component.key)
            processor_request = ProcessorRequest(
                params=params,
                fields=loaded.fields.read({}) if own is None and loaded.fields is not None else own,
                prompt=request.tokens,
                constrained=constrained,
                reasoning=request.reasoning,
            )
            state = self._prepare(loaded, processor_request)
            if state is not None:
                uses.append(ProcessorUse(loaded, state))
        return tuple(uses)

    @staticmethod
    def _prepare(loaded: LoadedProcessor, request: ProcessorRequest) -> Any:
        try:
            return loaded.processor.prepare(request)
        except ValueError as error:
            raise _field_refusal(loaded, request, str(error)) from None
        except BaseException as error:
            if not is_error(error):
                raise
            raise RequestError(loaded.describe(error), 500) from error


def _field_refusal(loaded: LoadedProcessor, request: ProcessorRequest, text: str) -> RequestError:
    """Return the refusal ``text`` of a processor: about the field that it begins with, else the first one given."""
    declared = () if loaded.fields is None else loaded.fields.names
    requested = [name for name in declared if name in request.params.processor_fields]
    if requested and not text.startswith(tuple(requested)):
        return RequestError(f"{requested[0]}: {text}", about=ABOUT, field=requested[0])
    fields = [name for name in (*declared, *loaded.sampling_params) if text.startswith(name)]
    return RequestError(text, about=ABOUT, field=max(fields, key=len, default=""))
