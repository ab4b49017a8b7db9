"""The conformance test of adapter formats finds planted faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_plug import AdaptableLayer, Adapter, AdapterRequest, ConfigError, Joinable, LayerAdapter
from sglang_plug.testing import check_adapter_format

LAYERS = (AdaptableLayer(name="one", size_in=8, size_out=6, parts={"one": slice(0, 6)}),)
INPUTS, OUTPUTS = 1 + torch.arange(8.0), 1 + torch.arange(6.0)


class Good(LayerAdapter):
    def before(self, x: Tensor) -> Tensor:
        return x * INPUTS.to(x.dtype)

    def after(self, x: Tensor, y: Tensor) -> None:
        y.mul_(OUTPUTS)


class WritesInput(Good):
    def before(self, x: Tensor) -> Tensor:
        return x.mul_(INPUTS)


class WritesInputAfter(Good):
    def after(self, x: Tensor, y: Tensor) -> None:
        x.zero_()


class OtherShape(Good):
    def before(self, x: Tensor) -> Tensor:
        return x[:, :3]


class Nothing(LayerAdapter):
    def after(self, x: Tensor, y: Tensor) -> None:
        pass


class Mixes(LayerAdapter):
    def after(self, x: Tensor, y: Tensor) -> None:
        y.sub_(y.mean(0))


class Outside(LayerAdapter):
    def after(self, x: Tensor, y: Tensor) -> None:
        y.mul_(OUTPUTS)
        if not y.is_contiguous():
            y.as_strided((1, y.shape[1] + 1), (1, 1), y.storage_offset())[0, -1] = 9


class OnlyWhole(LayerAdapter):
    def after(self, x: Tensor, y: Tensor) -> None:
        if y.is_contiguous():
            y.mul_(OUTPUTS)


class Joined(Joinable):
    def after(self, x: Tensor, y: Tensor) -> None:
        y.add_(1)

    @classmethod
    def join(cls, layers: Any) -> Any:
        return lambda x, y, which: y.add_((which < len(layers))[:, None])


class JoinsAll(Joined):
    @classmethod
    def join(cls, layers: Any) -> Any:
        return lambda x, y, which: y.add_(1)


class JoinsInputs(Joined):
    def before(self, x: Tensor) -> Tensor:
        return x + 1


def reader(make: Callable[[], Any], name: str = "one") -> Callable[..., Any]:
    def read(request: AdapterRequest, settings: Any) -> Adapter | None:
        if any(layer.outputs for layer in request.layers):
            raise ConfigError("several ranks are not supported")
        return Adapter(layers={name: make()}) if request.path.name == "full" else None

    return read


FACTORS = "factors.json"


class Factors(LayerAdapter):
    """An adapter that multiplies outputs by factors from a file."""

    def __init__(self, factors: Tensor) -> None:
        self.factors = factors

    def after(self, x: Tensor, y: Tensor) -> None:
        y.mul_(self.factors)


class Rows(Factors):
    """A faulty adapter that adds the first input, read as if the rows were contiguous."""

    def after(self, x: Tensor, y: Tensor) -> None:
        y.mul_(self.factors).add_(x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset())[:, :1])


class Wide(Factors):
    """A faulty adapter that keeps its tensors in float32."""

    def after(self, x: Tensor, y: Tensor) -> None:
        y.copy_(y @ torch.diag(self.factors.float()))


class FromFile:
    """A reader of a file with factors; each broken reader below changes one thing."""

    kind: type[Factors] = Factors
    errors: tuple[type[Exception], ...] = (ValueError,)

    def __call__(self, request: AdapterRequest, settings: Any) -> Adapter | None:
        if not (request.path / FACTORS).is_file():
            return None
        (layer,) = request.layers
        try:
            numbers = torch.tensor(json.loads((request.path / FACTORS).read_text()))
        except self.errors as error:
            raise ConfigError(f"{FACTORS}: {error}") from error
        return Adapter(layers={"one": self.kind(self.own(numbers, layer).to(request.dtype))}, facts=self.facts(numbers))

    def own(self, numbers: Tensor, layer: AdaptableLayer) -> Tensor:
        return layer.outputs["one"].of(numbers, 0) if layer.outputs else numbers

    def facts(self, numbers: Tensor) -> dict[str, Any]:
        return {"factors": len(numbers)}


class ReadsRows(FromFile):
    kind = Rows


class StaysWide(FromFile):
    kind = Wide


class LetsErrorsPass(FromFile):
    errors = (KeyError,)


class FirstRows(FromFile):
    def own(self, numbers: Tensor, layer: AdaptableLayer) -> Tensor:
        return numbers[: layer.size_out]


class TensorFacts(FromFile):
    def facts(self, numbers: Tensor) -> dict[str, Any]:
        return {"greatest": numbers.max()}


@pytest.fixture
def factors(tmp_path: Path) -> Path:
    (tmp_path / FACTORS).write_text(json.dumps([2.0, 3.0, 4.0, 5.0, 6.0, 7.0]))
    return tmp_path


def test_a_reader_of_a_file_conforms(factors: Path) -> None:
    check_adapter_format(FromFile(), [factors], LAYERS)


@pytest.mark.planted_bug("adapter")
@pytest.mark.parametrize(
    ("read", "message"),
    [
        (ReadsRows(), "another result for an input in a part of a larger tensor"),
        (StaysWide(), "one in bfloat16: raised RuntimeError"),
        (LetsErrorsPass(), "factors.json, damaged, must be refused with ConfigError; it raised"),
        (FirstRows(), "rank 1 of 2 that share its outputs: the result is not the rank's part"),
        (TensorFacts(), "facts must be plain data"),
    ],
)
def test_a_reader_that_breaks_its_contract_is_named(read: FromFile, message: str, factors: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        check_adapter_format(read, [factors], LAYERS)


@pytest.mark.parametrize("kind", [Good, Joined])
def test_a_good_one_conforms(tmp_path: Path, kind: type) -> None:
    check_adapter_format(reader(kind), [tmp_path / "full"] * 2, LAYERS)


@pytest.mark.planted_bug("adapter")
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (WritesInput, "before\\(\\) wrote to its input"),
        (WritesInputAfter, "after\\(\\) wrote to its input"),
        (OtherShape, "before\\(\\) returned torch.float32\\[6, 3\\]"),
        (Nothing, "changes neither input nor product"),
        (Mixes, "a token depends on those it is computed with"),
        (Outside, "after\\(\\) wrote outside the product"),
        (OnlyWhole, "another result in a part of a larger tensor"),
        (JoinsAll, "JoinsAll.join of 1: rows of .* are not as each alone"),
        (JoinsInputs, "must leave inputs as they are"),
        (str, "returned str instead of LayerAdapter for 'one'"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, kind: type, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_adapter_format(reader(kind), [tmp_path / "full"], LAYERS)


def test_folders_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="an empty folder must be answered with None"):
        check_adapter_format(lambda request, settings: Adapter(layers={"one": Good()}), [tmp_path], LAYERS)
    with pytest.raises(AssertionError, match="returned NoneType instead of Adapter"):
        check_adapter_format(reader(Good), [tmp_path], LAYERS)
    with pytest.raises(AssertionError, match="changes 'two', which is not among the layers of the request"):
        check_adapter_format(reader(Good, "two"), [tmp_path / "full"], LAYERS)
