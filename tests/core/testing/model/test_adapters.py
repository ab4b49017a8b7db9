"""The kit for formats of adapters finds what is wrong with one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_plug import AdaptableLayer, Adapter, Joinable, LayerAdapter
from sglang_plug.testing import check_adapter_format

LAYERS = (AdaptableLayer(name="one", size_in=8, size_out=6, parts={"one": slice(0, 6)}),)
INPUTS, OUTPUTS = 1 + torch.arange(8.0), 1 + torch.arange(6.0)


class Good(LayerAdapter):
    def before(self, x: Tensor) -> Tensor:
        return x * INPUTS

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


class Beside(LayerAdapter):
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
    return lambda request, settings: Adapter(layers={name: make()}) if request.path.name == "full" else None


@pytest.mark.parametrize("kind", [Good, Joined])
def test_a_good_one_conforms(tmp_path: Path, kind: type) -> None:
    check_adapter_format(reader(kind), [tmp_path / "full"] * 2, LAYERS)


@pytest.mark.planted_bug("adapter")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (WritesInput, "before\\(\\) wrote to its input"),
        (WritesInputAfter, "after\\(\\) wrote to its input"),
        (OtherShape, "before\\(\\) gave torch.float32\\[6, 3\\]"),
        (Nothing, "changes neither input nor product"),
        (Mixes, "a token depends on those it is computed with"),
        (Beside, "after\\(\\) wrote beside the product"),
        (OnlyWhole, "another result in a part of a larger tensor"),
        (JoinsAll, "JoinsAll.join of 1: rows of .* are not as each alone"),
        (JoinsInputs, "must leave inputs as they are"),
        (str, "gave str instead of LayerAdapter for 'one'"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, kind: type, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_adapter_format(reader(kind), [tmp_path / "full"], LAYERS)


def test_folders_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="an empty folder must be answered with None"):
        check_adapter_format(lambda request, settings: Adapter(layers={"one": Good()}), [tmp_path], LAYERS)
    with pytest.raises(AssertionError, match="gave NoneType instead of Adapter"):
        check_adapter_format(reader(Good), [tmp_path], LAYERS)
    with pytest.raises(AssertionError, match="changes 'two', which is no layer"):
        check_adapter_format(reader(Good, "two"), [tmp_path / "full"], LAYERS)
