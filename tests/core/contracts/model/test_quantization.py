"""The matrices for which a quantization is asked, and the layers that use its schemes."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sglang_plug import BuildEnv, ConfigError, LinearScheme, Matrix, Model, Quantization, StoredTensor, WeightError
from sglang_plug.contracts.model.kernels import TORCH, Kernels, moe
from sglang_plug.contracts.model.quantization import stored_quantization
from sglang_plug.layers import Embedding, Experts, Linear, MergedColumnParallelLinear, ParallelLMHead, Router


class Small(Model):
    """A model with one layer of each kind that has a matrix."""

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {
        "q": ("qkv", "q"),
        "k": ("qkv", "k"),
        "old": ("out", None),
    }

    def __init__(self, env: BuildEnv, *, tied: bool = False) -> None:
        super().__init__(SimpleNamespace(), env)
        self.embed = Embedding(10, 8)
        self.block = nn.ModuleDict(
            {
                "qkv": MergedColumnParallelLinear(8, {"q": 4, "k": 2}, env, bias=True),
                "out": Linear(6, 8, env),
                "gate": Router(8, 3, 1, env, layer=0),
                "experts": Experts(8, 4, 3, env),
            }
        )
        self.head_ = ParallelLMHead(8, 10, env, tied=self.embed if tied else None)


class Halves:
    """A scheme that stores half of every number, in two tensors: ``halves`` ``[in, out]`` and ``twos``, one for every
    two rows."""

    def __init__(self, *roles: str, stored: bool = False) -> None:
        self.roles, self.stored = roles, stored
        self.matrices: list[Matrix] = []

    def __call__(self, matrix: Matrix) -> LinearScheme | None:
        self.matrices.append(matrix)
        if matrix.role not in self.roles:
            return None
        if not self.stored:
            return LinearScheme(pack=lambda held, bias: Halves.multiply(held["weight"].T / 2, torch.tensor(2.0), bias))
        twos = StoredTensor(shape=(matrix.size_out // 2,), dtype=torch.float32, rows=2, one_per_part=True)
        halves = StoredTensor(shape=(matrix.size_in, matrix.size_out), dtype=torch.int8, axis=1)
        return LinearScheme(pack=self.pack, stored={"halves": halves, "twos": twos})

    def pack(self, held: Mapping[str, Tensor], bias: Tensor | None) -> Any:
        assert held.keys() == {"halves", "twos"}
        return Halves.multiply(held["halves"].float(), held["twos"].repeat_interleave(2), bias)

    @staticmethod
    def multiply(halves: Tensor, twos: Tensor, bias: Tensor | None) -> Any:
        return lambda x: x @ halves * twos + (0 if bias is None else bias)


def small_model(halves: Halves, **options: bool) -> Small:
    return Small(BuildEnv(attention=Mock(), quantization=Quantization(name="halves", scheme=halves)), **options)


def weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    shapes: dict[str, Sequence[int]] = {
        "embed.weight": (10, 8),
        "block.q.weight": (4, 8),
        "block.q.bias": (4,),
        "block.k.weight": (2, 8),
        "block.k.bias": (2,),
        "block.old.weight": (8, 6),
        "block.gate.weight": (3, 8),
        "block.experts.gate_up_proj": (3, 8, 8),
        "block.experts.down_proj": (3, 8, 4),
        "head_.weight": (10, 8),
    }
    return {name: torch.randint(-3, 4, shape).float() for name, shape in shapes.items()}


def test_every_matrix_is_asked_about() -> None:
    halves = Halves("linear")
    small_model(halves).quantize()
    matrices = {
        matrix.name: (matrix.role, matrix.size_in, matrix.size_out, tuple(matrix.checkpoint_names))
        for matrix in halves.matrices
    }
    assert matrices == {
        "block.qkv": ("linear", 8, 6, ("block.q", "block.k")),
        "block.out": ("linear", 6, 8, ("block.out",)),
        "block.gate": ("router", 8, 3, ("block.gate",)),
        "block.experts.gate_up_proj": ("experts", 8, 4, ("block.experts.gate_up_proj",)),
        "block.experts.down_proj": ("experts", 4, 8, ("block.experts.down_proj",)),
        "head_": ("head", 8, 10, ("head_",)),
    }
    assert not any(matrix.unquantized for matrix in halves.matrices)
    assert {matrix.dtype for matrix in halves.matrices} == {torch.float32}


def test_the_names_of_other_checkpoints_are_told() -> None:
    halves = Halves("linear")
    model = small_model(halves)
    model.packed = {**Small.packed, "layer": ("block", None)}  # type: ignore[misc]
    model.prefixes = {"whole.block.": "block."}  # type: ignore[misc]
    model.quantize()
    names = {name: matrix.names_of(name) for matrix in halves.matrices for name in matrix.checkpoint_names}
    assert names["block.q"] == ("block.q", "layer.q", "whole.block.q")
    assert names["block.out"] == (
        *("block.out", "layer.out", "block.old", "layer.old"),
        *("whole.block.out", "whole.block.old"),
    )
    assert names["head_"] == ("head_",)
    (combined,) = (matrix for matrix in halves.matrices if matrix.name == "block.qkv")
    assert combined.names_of(combined.name) == ("block.qkv", "layer.qkv", "whole.block.qkv")


def test_ordinary_weights_are_converted_after_loading() -> None:
    checkpoint = weights()
    model = small_model(Halves("linear"))
    assert model.block["out"].weight.is_meta  # allocated only when the tensors of the scheme are known
    model.quantize()
    model.load_weights(checkpoint.items())
    model.prepare()
    assert sorted(dict(model.named_parameters())) == [
        "block.experts.down_proj.weight",
        "block.experts.gate_up_proj.weight",
        "embed.weight",
    ]
    check(model, checkpoint)


class Live(TorchDispatchMode):
    """Counts the bytes of the tensors that operations created and that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        actual = function(*arguments, **(named or {}))
        for tensor in actual if isinstance(actual, tuple | list) else (actual,):
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":
                self._watch(tensor.untyped_storage())
        return actual

    def _watch(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


class Stack(Model):
    """A model of many equal matrices."""

    def __init__(self, env: BuildEnv, *, count: int, bias: bool = False) -> None:
        super().__init__(SimpleNamespace(), env)
        self.layers = nn.ModuleList(Linear(256, 256, env, bias=bias) for _ in range(count))


def int8_scheme(matrix: Matrix) -> LinearScheme:
    """Return a scheme that stores each number as int8."""

    def pack(held: Mapping[str, Tensor], bias: Tensor | None) -> Any:
        small = held["weight"].to(torch.int8)
        return lambda x: x @ small.to(x.dtype).T

    return LinearScheme(pack=pack)


@pytest.mark.parametrize("quantized", [False, True])
def test_peak_of_loading(quantized: bool) -> None:
    count, matrix = 16, 256 * 256 * 4
    checkpoint = {f"layers.{index}.weight": torch.randint(-3, 4, (256, 256)).float() for index in range(count)}
    quantization = Quantization(name="bytes", scheme=int8_scheme) if quantized else None
    with Live() as live:
        model = Stack(BuildEnv(attention=Mock(), quantization=quantization), count=count)
        model.quantize()
        model.load_weights(checkpoint.items())
        model.prepare()
    kept = count * matrix // (4 if quantized else 1)
    assert live.peak < kept + 2 * matrix
    x = torch.randn(2, 256)
    torch.testing.assert_close(model.layers[3](x), x @ checkpoint["layers.3.weight"].T)


def test_a_layer_is_packed_with_its_last_tensor() -> None:
    model = small_model(Halves("linear"))
    model.quantize()
    checkpoint = weights()
    late = ["block.k.bias", "block.old.weight"]
    order = [name for name in checkpoint if name not in late] + late
    packed: list[bool] = []

    def stream() -> Iterator[tuple[str, Tensor]]:
        for name in order:
            packed.append(model.block["qkv"].weight is None)
            yield name, checkpoint[name]

    model.load_weights(stream())
    assert packed == [False] * (len(order) - 1) + [True]
    assert model.block["out"].weight is None
    model.prepare()
    check(model, checkpoint)


def test_a_tensor_that_comes_again_after_packing_is_refused() -> None:
    model = small_model(Halves("linear"))
    model.quantize()
    checkpoint = list(weights().items())
    again = next(item for item in checkpoint if item[0] == "block.old.weight")
    with pytest.raises(WeightError, match="'block.old.weight' twice: 'block.out.weight' is already loaded"):
        model.load_weights([*checkpoint, again])


def test_converted_weights_that_are_missing_are_named() -> None:
    checkpoint = weights()
    del checkpoint["block.k.weight"]
    model = small_model(Halves("linear"))
    model.quantize()
    with pytest.raises(WeightError, match=r"1 parameters unfilled, first 'block.qkv.weight' \('k' is missing\)"):
        model.load_weights(checkpoint.items())


def test_stored_tensors_are_loaded_part_by_part() -> None:
    checkpoint = weights()
    held = dict(checkpoint)
    for name in ("q", "k", "old"):
        held[f"block.{name}.halves"] = held.pop(f"block.{name}.weight").T.to(torch.int8)
        held[f"block.{name}.twos"] = torch.ones(1)
    model = small_model(Halves("linear", stored=True))
    model.quantize()
    assert model.block["qkv"].weight is None
    model.load_weights(held.items())
    assert model.block["qkv"].twos.tolist() == [1, 1, 1]
    model.prepare()
    check(model, checkpoint)


def test_a_tensor_of_each_part() -> None:
    """A tensor without a dimension for output rows is stored per part; a tensor for all parts is repeated."""

    def scheme(matrix: Matrix) -> LinearScheme | None:
        shape = (len(matrix.parts), 3)
        return LinearScheme(pack=Mock(), stored={"own": StoredTensor(shape=shape, dtype=torch.int32, axis=None)})

    def loaded(checkpoint: Mapping[str, Tensor]) -> list[list[int]]:
        layer = MergedColumnParallelLinear(8, {"q": 4, "k": 2}, BuildEnv(attention=Mock()))
        layer.quantize_weights("qk", ("q", "k"), Quantization(name="own", scheme=scheme))
        for shard, tensor in checkpoint.items():
            layer.load_shard(layer.own, tensor, shard or None)
        return layer.own.tolist()  # type: ignore[no-any-return]

    first, second = torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6])
    assert loaded({"k": second, "q": first}) == [[1, 2, 3], [4, 5, 6]]
    assert loaded({"": first}) == [[1, 2, 3], [1, 2, 3]]
    with pytest.raises(ValueError, match=r"expected shape \(3,\), found \(2,\)"):
        loaded({"q": first[:2]})


def test_an_unexpected_tensor_is_refused() -> None:
    checkpoint = {**weights(), "block.old.extra": torch.zeros(2)}
    model = small_model(Halves("linear"))
    model.env = BuildEnv(
        attention=Mock(),
        quantization=Quantization(
            name="halves",
            scheme=Halves("linear"),
            is_ignored=lambda name, tensor: "extra" in name and not tensor.any(),
        ),
    )
    model.quantize()
    model.load_weights(checkpoint.items())
    model = small_model(Halves("linear"))
    model.quantize()
    with pytest.raises(WeightError, match="no 'block.out.extra'"):
        model.load_weights(checkpoint.items())


def scheme_of_experts(matrix: Matrix) -> LinearScheme | None:
    """Return a scheme for experts with int8 weights and a factor for each row; ``None`` for other matrices."""
    if matrix.role != "experts":
        return None
    return LinearScheme(
        pack=lambda held, bias: lambda x: x @ (held["weight"] * held["factor"][:, None]).T,
        dense=lambda held: held["weight"] * held["factor"][:, None],
        stored={
            "weight": StoredTensor(shape=(matrix.size_out, matrix.size_in), dtype=torch.int8),
            "factor": StoredTensor(shape=(matrix.size_out,), dtype=torch.float32, one_per_part=True),
        },
    )


def quantized_expert_model(kernels: Kernels = TORCH) -> tuple[Small, dict[str, Tensor], dict[str, Tensor]]:
    """Return a model with quantized experts, a checkpoint of it, and the weights that the checkpoint stands for."""
    plain = weights()
    held = {name: tensor for name, tensor in plain.items() if ".experts." not in name}
    for expert in range(3):
        gate, up = plain["block.experts.gate_up_proj"][expert].chunk(2)
        parts = {"gate_proj": gate, "up_proj": up, "down_proj": plain["block.experts.down_proj"][expert]}
        for part, tensor in parts.items():
            held[f"block.experts.{expert}.{part}.weight"] = tensor.to(torch.int8)
            held[f"block.experts.{expert}.{part}.factor"] = torch.full((1 if expert else len(tensor),), 2.0)
    quantization = Quantization(name="whole", scheme=scheme_of_experts)
    model = Small(BuildEnv(attention=Mock(), kernels=kernels, quantization=quantization))
    model.quantize()
    return model, held, plain


OWN_MOE = dataclasses.replace(TORCH, moe=lambda *checkpoint: moe(*checkpoint))


def test_experts_that_are_multiplied_one_by_one_stay_quantized() -> None:
    model, held, plain = quantized_expert_model()
    model.load_weights(reversed(held.items()))
    model.prepare()
    experts = model.block["experts"]
    assert list(experts.named_parameters()) == [] and len(experts.gate_up_proj.products) == 6
    x, chosen, factors = torch.randn(5, 8), torch.tensor([[0, 2], [1, 0], [2, 1], [0, 1], [2, 0]]), torch.rand(5, 2)
    weights = [2 * plain[f"block.experts.{name}_proj"] for name in ("gate_up", "down")]
    # the products are summed in another order; a wrong weight is off by whole numbers
    torch.testing.assert_close(experts(x, chosen, factors), moe(x, *weights, chosen, factors), rtol=1e-4, atol=1e-3)


def test_experts_are_turned_back_as_they_are_loaded(caplog: pytest.LogCaptureFixture) -> None:
    model, held, plain = quantized_expert_model(OWN_MOE)
    model.load_weights(reversed(held.items()))
    model.prepare()
    assert caplog.text.count("dequantized to the model's dtype, which takes 0.0 GiB") == 1
    experts = model.block["experts"]
    assert torch.equal(experts.gate_up_proj.weight, 2 * plain["block.experts.gate_up_proj"])
    assert torch.equal(experts.down_proj.weight, 2 * plain["block.experts.down_proj"])
    assert [name for name, _ in experts.named_parameters()] == ["gate_up_proj.weight", "down_proj.weight"]


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "block.experts.1.up_proj.factor",
            None,
            "unfilled, first 'block.experts.gate_up_proj.factor' .'1.up' is missing",
        ),
        ("block.experts.1.up_proj.factor", torch.ones(3), r"expected shape \(4,\), found \(3,\)"),
        ("block.experts.7.up_proj.weight", torch.ones(4, 8, dtype=torch.int8), "there are 3 experts, counted from 0"),
        ("block.experts.1.up_proj.weight", torch.ones(4, 8), "expected dtype torch.int8, found torch.float32"),
        ("block.experts.gate_up_proj", torch.ones(3, 8, 8, dtype=torch.int8), "expected one by one"),
    ],
)
@pytest.mark.parametrize("kernels", [TORCH, OWN_MOE], ids=["one by one", "together"])
def test_experts_that_do_not_fit(kernels: Kernels, name: str, tensor: Tensor | None, message: str) -> None:
    model, held, _ = quantized_expert_model(kernels)
    if tensor is None:
        del held[name]
    else:
        held[name] = tensor
    with pytest.raises(WeightError, match=message):
        model.load_weights(held.items())


def check(model: Small, checkpoint: Mapping[str, Tensor]) -> None:
    x = torch.randn(3, 8)
    q, k = model.block["qkv"].split(x)
    torch.testing.assert_close(q, x @ checkpoint["block.q.weight"].T + checkpoint["block.q.bias"])
    torch.testing.assert_close(k, x @ checkpoint["block.k.weight"].T + checkpoint["block.k.bias"])
    torch.testing.assert_close(model.block["out"](x[:, :6]), x[:, :6] @ checkpoint["block.old.weight"].T)
    torch.testing.assert_close(model.head_(x), x @ checkpoint["head_.weight"].T)


def test_a_tied_head_is_converted_and_the_embedding_stays() -> None:
    halves = Halves("head")
    model = small_model(halves, tied=True)
    model.quantize()
    head = next(matrix for matrix in halves.matrices if matrix.role == "head")
    assert head.unquantized and (head.size_in, head.size_out) == (8, 10)
    checkpoint = weights()
    model.load_weights((name, tensor) for name, tensor in checkpoint.items() if name != "head_.weight")
    model.prepare()
    x = torch.randn(2, 8)
    torch.testing.assert_close(model.head_(x), x @ checkpoint["embed.weight"].T)
    assert torch.equal(model.embed.weight, checkpoint["embed.weight"])


@pytest.mark.parametrize(
    ("halves", "options", "message"),
    [
        (Halves("head", stored=True), {"tied": True}, "'halves' expects stored tensors of 'head_', which has none"),
        (Halves("experts"), {}, "'halves' has a scheme for 'block.experts.gate_up_proj', but experts cannot be"),
        (Halves(), {}, "'halves' takes none of the 6 matrices of Small that could be quantized"),
    ],
)
def test_schemes_that_cannot_be(halves: Halves, options: dict[str, bool], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small_model(halves, **options).quantize()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block.q.halves": torch.ones(8, 4)}, "'block.q.halves' .* expected dtype torch.int8, found torch.float32"),
        ({"block.q.halves": torch.ones(4, 8, dtype=torch.int8)}, r"expected shape \(8, 4\), found \(4, 8\)"),
        ({"block.gate.weight": torch.ones(3, 8, dtype=torch.int8)}, "'block.gate.weight' .* found torch.int8"),
        ({"block.q.twos": torch.ones(3)}, r"expected shape \(2,\), found \(3,\)"),
        ({"block.q.weight": torch.ones(4, 8)}, "checkpoint has 'block.q.weight' but Small has no 'block.qkv.weight'"),
    ],
)
def test_tensors_that_do_not_fit(change: dict[str, Tensor], message: str) -> None:
    model = small_model(Halves("linear", stored=True))
    model.quantize()
    with pytest.raises(WeightError, match=message):
        model.load_weights(change.items())


def test_where_parts_lie() -> None:
    sizes = (128, 300, 5)
    scales = StoredTensor(shape=(5, 2), dtype=torch.float32, rows=128)
    assert [scales.part_index(part, sizes) for part in range(3)] == [(slice(0, 1),), (slice(1, 4),), (slice(4, 5),)]
    columns = StoredTensor(shape=(8, 433), dtype=torch.int32, axis=1)
    assert columns.part_index(1, sizes) == (slice(None), slice(128, 428))
    assert StoredTensor(shape=(3, 7), dtype=torch.int32, axis=None).part_index(2, sizes) == (2,)


def test_indices_of_a_matrix() -> None:
    checkpoint = {"name": "x", "checkpoint_names": ("x",), "size_in": 8, "size_out": 433, "dtype": torch.float32}
    assert Matrix(**checkpoint).row_block_count(128) == 4 and Matrix(**checkpoint).parts == (433,)
    assert Matrix(**checkpoint, part_sizes=(128, 300, 5)).row_block_count(128) == 5


def test_what_a_checkpoint_says_of_itself() -> None:
    description = {"quant_method": "x"}
    assert stored_quantization(SimpleNamespace()) is None
    assert stored_quantization(SimpleNamespace(quantization_config=None)) is None
    assert stored_quantization(SimpleNamespace(quantization_config=description)) == description
    assert (
        stored_quantization(SimpleNamespace(quantization_config=SimpleNamespace(to_dict=lambda: description)))
        == description
    )
    with pytest.raises(ConfigError, match="quantization_config is not an object, but str"):
        stored_quantization(SimpleNamespace(quantization_config="int4"))


class Mixed:
    """A scheme that stores the first part of a matrix in int8, and the second in 16 bits with a scale for each row."""

    def __call__(self, matrix: Matrix) -> LinearScheme | None:
        if len(matrix.parts) != 2:
            return None
        first, second = matrix.parts
        parts = [
            StoredTensor(shape=(first, matrix.size_in), dtype=torch.int8),
            StoredTensor(shape=(second, matrix.size_in + 1), dtype=torch.int16, inner=1),
        ]
        return LinearScheme(pack=self.pack, stored={"weight": StoredTensor.of_parts(parts)})

    @staticmethod
    def pack(held: Mapping[str, Tensor], bias: Tensor | None) -> Any:
        assert {name: tensor.dtype for name, tensor in held.items()} == {
            "weight.0": torch.int8,
            "weight.1": torch.int16,
        }
        first, second = held["weight.0"].float(), held["weight.1"].float()
        matrix = torch.cat([first, second[:, :-1] * second[:, -1:]])
        return lambda x: x @ matrix.T + (0 if bias is None else bias)


def mixed_checkpoint() -> tuple[dict[str, Tensor], Tensor]:
    """Return a checkpoint, and the combined matrix that it stands for."""
    held = weights()
    plain = torch.cat([held["block.q.weight"], held["block.k.weight"] * 3])
    held["block.q.weight"] = held["block.q.weight"].to(torch.int8)
    scales = torch.full((2, 1), 3, dtype=torch.int16)
    held["block.k.weight"] = torch.cat([held["block.k.weight"].to(torch.int16), scales], dim=1)
    return held, plain


def mixed_model() -> Small:
    model = Small(BuildEnv(attention=Mock(), quantization=Quantization(name="mixed", scheme=Mixed())))
    model.quantize()
    return model


def test_parts_of_a_matrix_may_be_stored_in_different_ways() -> None:
    model, (held, plain) = mixed_model(), mixed_checkpoint()
    model.load_weights(reversed(held.items()))
    model.prepare()
    x = torch.randn(5, 8)
    bias = torch.cat([held["block.q.bias"], held["block.k.bias"]])
    torch.testing.assert_close(model.block["qkv"](x), x @ plain.T + bias)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("block.q.weight", lambda tensor: tensor.to(torch.int16), "expected dtype torch.int8, found torch.int16"),
        ("block.k.weight", lambda tensor: tensor[:, :-1], r"expected shape \(2, 9\), found \(2, 8\)"),
        ("block.q.weight", None, "unfilled, first 'block.qkv.weight'"),
    ],
)
def test_a_part_of_another_form_is_refused(name: str, change: Any, message: str) -> None:
    held, _ = mixed_checkpoint()
    tensor = held.pop(name)
    if change is not None:
        held[name] = change(tensor)
    with pytest.raises(WeightError, match=message):
        mixed_model().load_weights(held.items())


def test_as_many_tensors_as_parts_are_needed() -> None:
    def scheme(matrix: Matrix) -> LinearScheme | None:
        part = StoredTensor(shape=(matrix.size_out, matrix.size_in), dtype=torch.int8)
        return LinearScheme(pack=Mock(), stored={"weight": StoredTensor.of_parts([part])})

    model = Small(BuildEnv(attention=Mock(), quantization=Quantization(name="single", scheme=scheme)))
    with pytest.raises(ConfigError, match="'single' has 1 tensors for 'block.qkv', which has 2 parts"):
        model.quantize()


def test_parts_begin_at_aligned_addresses() -> None:
    parts = [StoredTensor(shape=(3, 5), dtype=dtype) for dtype in (torch.uint8, torch.float32, torch.uint8)]
    stored = StoredTensor.of_parts(parts)
    loaded = torch.zeros(stored.shape, dtype=stored.dtype)
    for index, part in enumerate(parts):
        view = stored.part(loaded, index)
        assert (view.dtype, tuple(view.shape)) == (part.dtype, part.shape)
        assert (view.data_ptr() - loaded.data_ptr()) % 64 == 0
        view.fill_(index + 1)
    assert [stored.part(loaded, index).sum().item() for index in range(3)] == [15, 30, 45]
