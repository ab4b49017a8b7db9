"""The record of chosen experts."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from sglang_plug import BuildEnv, ConfigError, ForwardBatch, Kernels, Model, RequestError
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.layers import Router
from sglang_plug.testing import check_step_extension
from sglang_plug_backends.expert_recorder.extension import RecordedExperts
from sglang_plug_backends.expert_recorder.recorder import ExpertRecorder
from sglang_plug_backends.expert_recorder.tensor_files import read_columns

ENV = BuildEnv(attention=None)  # type: ignore[arg-type]
LAYERS, EXPERTS, CHOSEN, HIDDEN = (1, 3), 4, 2, 3


class Routers(nn.Module):
    """A model of two routers, as layers 1 and 3."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.routers = [Router(HIDDEN, EXPERTS, CHOSEN, ENV, layer=layer) for layer in LAYERS]
        self.layers = nn.ModuleList(self.routers)
        self.reached, self.generator = len(LAYERS), generator
        for router in self.routers:
            router.weight = nn.Parameter(torch.randn(EXPERTS, HIDDEN, generator=generator))

    def forward(self, batch: ForwardBatch) -> Tensor:
        x = torch.randn(len(batch.input_ids), HIDDEN, generator=self.generator)
        return torch.stack([router.choose(x)[0] for router in self.routers[: self.reached]], dim=1)


class Bench:
    """A model whose chosen experts are recorded."""

    def __init__(self, **options: int) -> None:
        self.model = Routers(torch.Generator().manual_seed(0))
        self.recorder = ExpertRecorder(**options)
        self.recorder.use(self.model)

    @torch.inference_mode()
    def step(self, *lengths: int, layers: int = 2) -> Tensor:
        """Run a step of sequences of these lengths; return the chosen experts, ``[T, layers, k]``."""
        positions = torch.cat([torch.arange(length) for length in lengths])
        nothing = torch.zeros(0, dtype=torch.int64)
        batch = ForwardBatch(positions + 100, positions, nothing, nothing, list(lengths), list(lengths))
        self.model.reached = layers
        chosen: Tensor = self.model(batch)
        return chosen


def counted(chosen: Tensor) -> list[list[int]]:
    return [torch.bincount(chosen[:, row].flatten(), minlength=EXPERTS).tolist() for row in range(len(LAYERS))]


def counts(tensors: dict[str, Tensor]) -> list[list[int]]:
    return tensors["count"].view(len(LAYERS), EXPERTS).tolist()


def dumped(bench: Bench, folder: Path) -> tuple[list[list[str]], dict[str, Tensor]]:
    table, data = bench.recorder.dump(str(folder))["files"]
    assert Path(table).parent == folder and Path(table).name.startswith("expert_distribution_")
    with open(table, newline="") as file:
        return list(csv.reader(file)), torch.load(data, weights_only=True)


@pytest.mark.parametrize("mode", ["stat", "per_token"])
def test_counts_between_start_and_stop(mode: str, tmp_path: Path) -> None:
    bench = Bench()
    bench.step(5)
    bench.recorder.start(mode)
    chosen = [bench.step(7, 1), bench.step(1, 1)]
    bench.recorder.stop()
    bench.step(5)
    bench.recorder.start(mode)
    chosen.append(bench.step(3))
    bench.recorder.stop()
    assert all(router.watcher is None for router in bench.model.routers)
    rows, tensors = dumped(bench, tmp_path / "new" / "folder")
    expected = counted(torch.cat(chosen))
    assert rows[0] == ["layer_id", "expert_id", "count"]
    assert [list(map(int, row)) for row in rows[1:]] == [
        [layer, expert, expected[row][expert]] for row, layer in enumerate(LAYERS) for expert in range(EXPERTS)
    ]
    assert tensors["layers"].tolist() == list(LAYERS)
    assert counts(tensors) == expected
    assert tensors["layer_id"].tolist() == [layer for layer in LAYERS for _ in range(EXPERTS)]
    assert tensors["expert_id"].tolist() == [*range(EXPERTS)] * len(LAYERS)
    assert ("experts" in tensors) == (mode == "per_token")


def test_choices_of_every_token(tmp_path: Path) -> None:
    bench = Bench()
    bench.recorder.start("per_token")
    chosen = [bench.step(3, 2), bench.step(1, 1)]
    _, tensors = dumped(bench, tmp_path)
    assert tensors["experts"].tolist() == torch.cat(chosen).tolist()
    assert tensors["positions"].tolist() == [0, 1, 2, 0, 1, 0, 0]
    assert tensors["input_ids"].tolist() == [100, 101, 102, 100, 101, 100, 100]
    assert tensors["rows"].tolist() == [0, 0, 0, 1, 1, 0, 1]
    assert tensors["steps"].tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert tensors["dropped_tokens"].item() == 0


def test_a_step_that_failed_half_way_has_no_tokens(tmp_path: Path) -> None:
    bench = Bench()
    bench.recorder.start("per_token")
    bench.step(3, layers=1)
    chosen = bench.step(2)
    _, tensors = dumped(bench, tmp_path)
    assert tensors["experts"].tolist() == chosen.tolist()
    assert tensors["steps"].tolist() == [1, 1]


def test_memory_is_bounded_and_counting_goes_on(tmp_path: Path) -> None:
    bench = Bench(max_bytes=5 * len(LAYERS) * CHOSEN * 2)
    bench.recorder.start("per_token")
    chosen = [bench.step(3), bench.step(2), bench.step(4)]
    _, tensors = dumped(bench, tmp_path)
    assert tensors["experts"].tolist() == torch.cat(chosen[:2]).tolist()
    assert tensors["dropped_tokens"].item() == 4
    assert counts(tensors) == counted(torch.cat(chosen))


def test_a_dump_begins_a_new_record(tmp_path: Path) -> None:
    bench = Bench()
    bench.recorder.start()
    bench.step(3)
    dumped(bench, tmp_path)
    chosen = bench.step(2)
    _, tensors = dumped(bench, tmp_path)
    assert counts(tensors) == counted(chosen)
    bench.recorder.stop()
    dumped(bench, tmp_path)
    with pytest.raises(RequestError, match="start recording first"):
        bench.recorder.dump(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 6


def test_refusals(tmp_path: Path) -> None:
    bench = Bench()
    with pytest.raises(RequestError, match="start recording first"):
        bench.recorder.dump(str(tmp_path))
    with pytest.raises(RequestError, match="no recorder mode 'all'; known: stat, per_token"):
        bench.recorder.start("all")
    assert ExpertRecorder().controls() == {}, "there is nothing to record"
    bench.recorder.start("stat")
    with pytest.raises(RequestError, match="a record in mode 'stat' was begun; dump it first"):
        bench.recorder.start("per_token")


def test_a_folder_that_cannot_be_written_keeps_the_record(tmp_path: Path) -> None:
    bench = Bench()
    bench.recorder.start()
    chosen = bench.step(3)
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="cannot be written") as caught:
        bench.recorder.dump(str(tmp_path / "file"))
    assert caught.value.status == 500
    _, tensors = dumped(bench, tmp_path)
    assert counts(tensors) == counted(chosen)


def test_columns_can_be_read_back(tmp_path: Path) -> None:
    bench = Bench()
    bench.recorder.start("per_token")
    bench.step(4)
    table, data = bench.recorder.dump(str(tmp_path))["files"]
    with open(table, newline="") as file:
        assert read_columns(Path(data)) == [tuple(map(int, row)) for row in list(csv.reader(file))[1:]]


class Nasty:
    """An object that would run a function when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("ran",)


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (Nasty(), "cannot read .* as tensors"),
        ([1], "no equally long columns"),
        ({"layer_id": torch.zeros(2, dtype=torch.int64)}, "no equally long columns layer_id, expert_id, count"),
        ({name: torch.zeros(2) for name in ("layer_id", "expert_id", "count")}, "no equally long columns"),
        (
            {name: torch.zeros(n, dtype=torch.int64) for n, name in enumerate(("layer_id", "expert_id", "count"))},
            "no equally long columns",
        ),
    ],
)
def test_other_files_are_refused_and_run_nothing(
    held: object, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.pt"
    torch.save(held, path)
    with pytest.raises(ConfigError, match=words):
        read_columns(path)
    assert capsys.readouterr().out == ""
    path.write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match="cannot read"):
        read_columns(path)


def test_a_record_goes_on_with_the_routers_of_new_weights(tmp_path: Path) -> None:
    bench = Bench()
    old = bench.model
    bench.recorder.start("per_token")
    first = bench.step(3)
    bench.model = Bench().model
    bench.recorder.use(bench.model)
    assert all(router.watcher is None for router in old.routers)
    second = bench.step(2)
    bench.recorder.stop()
    assert all(router.watcher is None for router in bench.model.routers)
    _, tensors = dumped(bench, tmp_path)
    assert counts(tensors) == counted(torch.cat([first, second]))
    assert tensors["experts"].shape[0] == 5


def test_no_step_calls_the_recorder_while_nothing_is_recorded() -> None:
    bench, extension = Bench(), RecordedExperts()
    extension.install(cast(Model, bench.model), Kernels())
    points = extension_points({"expert-recorder": extension})
    assert not points.forward.prepare and not points.forward.before_forward
    assert not points.service.step_done and not points.service.between_steps
    unreadable = SimpleNamespace(input_ids=torch.zeros(2))  # the batch lacks attributes that the recorder needs
    for _ in range(2):
        bench.model(unreadable)
        extension.recorder.start("per_token")
        with pytest.raises(AttributeError):
            bench.model(unreadable)
        extension.recorder.stop()


def test_the_extension_keeps_the_contract() -> None:
    check_step_extension(RecordedExperts())
