"""Earlier public names keep working, with a warning that names the current one."""

from __future__ import annotations

import pytest
import torch

import sglang_plug
from sglang_plug import Media, MediaArray, Model
from sglang_plug.renamed import RENAMED


@pytest.mark.parametrize("name", sorted(RENAMED))
def test_an_earlier_name_is_the_current_one_with_a_warning(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"sglang_plug.{name} is now sglang_plug.{RENAMED[name]}"):
        renamed = getattr(sglang_plug, name)
    assert renamed is getattr(sglang_plug, RENAMED[name])
    assert name not in sglang_plug.__all__


def test_earlier_names_of_members_are_the_current_ones_with_a_warning() -> None:
    embeds = MediaArray("float32", (1, 2), bytes(8))
    with pytest.warns(DeprecationWarning, match="Media.of_states is now Media.of_input_embeds"):
        assert Media.of_states(3, embeds) == Media.of_input_embeds(3, embeds)
    model = TextModel()
    with pytest.warns(DeprecationWarning, match="Model.states_width is now Model.input_embeds_width"):
        model.states_width = 8
    assert model.input_embeds_width == 8
    with pytest.warns(DeprecationWarning, match="Model.states_width is now Model.input_embeds_width"):
        assert model.states_width == 8


class TextModel(Model):
    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
