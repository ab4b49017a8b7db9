"""The contract between the engine and a model."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sglang_plug.config import ConfigError
from sglang_plug.contracts.model.pooling import Pooling
from sglang_plug.contracts.request import Task
from sglang_plug.contracts.serving.executor import SINGLE_RANK, Collectives
from sglang_plug.contracts.text.media import Media
from sglang_plug.deprecation import warn_deprecated
from sglang_plug.ops.pooling import pooled

from .attention import Attention, AttentionBackend, AttentionShape
from .batch import ForwardBatch, KVScale
from .checkpoint_names import checkpoint_paths, with_other_names
from .kernels import TORCH, Kernels
from .quantization import Quantization
from .recurrent_state import StateShape

logger = logging.getLogger(__name__)

WIDE = frozenset({torch.bfloat16, torch.float16, torch.float32, torch.float64})
"""Dtypes that are converted into each other when weights are loaded."""


class WeightError(ConfigError):
    """A checkpoint does not fit the model; the message names the tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildEnv:
    """Everything that a model may use while it is built."""

    attention: AttentionBackend
    kernels: Kernels = field(default=TORCH)
    quantization: Quantization | None = None
    """The quantization that ``Model.quantize`` asks about each matrix; ``None``: weights stay as they are."""
    context_length: int | None = None
    """Length in tokens of the longest sequence that will be served; ``None``: as long as the checkpoint allows."""
    pooling: Pooling = field(default=Pooling())
    """The way in which pooling tasks turn a prompt's hidden states into one vector."""
    tasks: tuple[Task, ...] = ("generate",)
    """The tasks that will be served; a model may leave out parts that only other tasks need."""
    ranks: Collectives = field(default=SINGLE_RANK)
    """The collective operations of the ranks that share this model; each layer takes its own part from them."""
    shares_tokens: bool = True
    """True if the ranks share the embedding's tokens; then all ranks embed the same tokens in every step."""


class Model(nn.Module):
    """A model as the engine sees it: hidden states for new tokens, and a head over the rows the engine picked.

    Parameter names follow the checkpoint, so the class body is the name map except for ``packed``.
    """

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {}
    """Path component in the checkpoint -> (ours, shard), e.g. ``"q_proj": ("qkv_proj", "q")``; a shard of ``None``
    only renames. A module with a method ``map_weight_name(rest) -> (ours, shard)`` maps the names below its own path
    itself."""
    prefixes: ClassVar[Mapping[str, str]] = {}
    """Prefix of names in some checkpoints -> ours, for ``checkpoint_paths``; ``load_weights`` does not replace it."""
    ignored: ClassVar[tuple[str, ...]] = ()
    """Parts of checkpoint names; tensors whose names contain one are skipped."""
    settings: ClassVar[Any] = None
    """The component's settings, if it declares any."""
    default_pooling: ClassVar[Pooling] = Pooling()
    """The pooling of checkpoints that do not define one."""
    input_embeds_width: int | None = None
    """Width of the input embeddings that a prompt may have instead of tokens. They are inputs of the first layer and
    arrive in ``ForwardBatch.multimodal``. ``None``: prompts may have no input embeddings."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        self.config, self.env = config, env
        self.kv_scales: Mapping[int, KVScale] = {}
        """Scales of an FP8 KV pool by layer; set after loading, if the checkpoint has any."""

    @property
    def states_width(self) -> int | None:
        """Deprecated name of ``input_embeds_width``."""
        warn_deprecated("Model.states_width is now Model.input_embeds_width")
        return self.input_embeds_width

    @states_width.setter
    def states_width(self, width: int | None) -> None:
        warn_deprecated("Model.states_width is now Model.input_embeds_width")
        self.input_embeds_width = width

    @classmethod
    def text_config(cls, config: Any) -> Any:
        """Return the decoder's part of a checkpoint's configuration: vocabulary, heads, longest context."""
        return config

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Return the geometry of the KV pool, from the checkpoint's configuration."""
        config = cls.text_config(config)
        heads = config.num_attention_heads
        return AttentionShape(
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            layers=config.num_hidden_layers,
        )

    @classmethod
    def state_shapes(cls, config: Any) -> Sequence[StateShape]:
        """Return the states that recurrent layers keep of each sequence, in the order of
        ``batch.recurrent.pool.states``.

        Most models have none. A model may have no attention at all: its ``attention_shape`` then has no layers.
        """
        return ()

    @classmethod
    def context_length(cls, config: Any) -> int | None:
        """Return the greatest length of a sequence, for configurations that do not state it in the usual field."""
        return None

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the hidden states of every new token: ``[T, hidden]``."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward(batch)")

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits (or scores) of the rows that the engine picked: ``[rows, hidden]`` to ``[rows,
        vocabulary]``.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define head(hidden)")

    @classmethod
    def pools_whole_prompts(cls, pooling: Pooling) -> bool:
        """Return True if ``pool`` needs more than each prompt's last state.

        The engine then computes each prompt in one step, and takes no part of it from the prefix cache.
        """
        return pooling.mode != "last"

    def pool(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Return embeddings or scores of prompts, ``[B, width]`` float32; by default pooled as ``env.pooling`` says.

        ``hidden`` is ``[T, hidden]``, the states of ``B`` prompts one after the other. Of a prompt that was computed in
        several steps it holds at least the last state.
        """
        return pooled(hidden, lengths, self.env.pooling)

    def quantize(self) -> None:
        """Ask the quantization, if there is one, about every matrix. Called before loading.

        Raises ``ConfigError`` if the quantization supports none of the model's matrices, or not the form in which the
        checkpoint holds one.
        """
        quantization = self.env.quantization
        if quantization is None:
            return
        renamed = replace(
            quantization, scheme=lambda matrix: quantization.scheme(with_other_names(matrix, self.checkpoint_paths))
        )
        quantized = [
            quantize(name, self._checkpoint_names(name, module), renamed)
            for name, module in self.named_modules()
            if (quantize := getattr(module, "quantize_weights", None)) is not None
        ]
        unpacked = sum(getattr(module, "unpacks", 0) for module in self.modules())
        if unpacked:
            logger.warning(
                "The kernels have no quantized MoE: experts are dequantized to the model's dtype, which takes %.1f GiB",
                unpacked / 2**30,
            )
        if not any(quantized):
            raise ConfigError(
                f"quantization {quantization.name!r} takes none of the {len(quantized)} matrices of "
                f"{type(self).__name__} that could be quantized; start without --quantization"
            )

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Fill every parameter from checkpoint tensors, one at a time.

        A layer that ``converts`` its weights allocates memory when its first tensor arrives and packs them when its
        last has arrived, so the unpacked weights of all layers are never in memory together.

        An alias of a tied parameter may be repeated or left out. If the checkpoint has other values for the alias, the
        parameters are untied, as in transformers: the checkpoint takes precedence over its configuration.

        Raises ``WeightError`` if the checkpoint has a tensor that the model has no parameter for, a tensor of another
        shape, or no tensor for one of the parameters.
        """
        parameters = dict(self.named_parameters(remove_duplicate=False))
        keys = {name: id(parameter) for name, parameter in parameters.items()}
        filled: dict[int, set[str]] = {}
        aliases: dict[int, str] = {}
        for name, tensor in weights:
            if any(part in name for part in self.ignored):
                continue
            target, shard = self._map_name(name)
            if target not in keys:
                if self.env.quantization is not None and self.env.quantization.is_ignored(name, tensor):
                    continue
                raise WeightError(f"checkpoint has {name!r} but {type(self).__name__} has no {target!r}")
            if target not in parameters:
                raise WeightError(f"the checkpoint has {name!r} twice: {target!r} is already loaded")
            other = aliases.setdefault(keys[target], target)
            if other != target and _has_other_values(self._layer_of(target), parameters[target], tensor):
                logger.warning("%r and %r are not tied, as the checkpoint has other values for each", other, target)
                parameters[target] = self._untie(target)
                keys[target] = id(parameters[target])
            self._load_tensor(name, target, shard, self._ensure_memory(target, parameters), tensor)
            filled.setdefault(keys[target], set()).add(shard or "")
            for done in self._pack_if_complete(target, lambda name: filled.get(keys[name])):
                del parameters[done]
        short = {
            name: missing for name, key in keys.items() if (missing := self._missing_shards(name, filled.get(key)))
        }
        if short:
            first = min(short)
            raise WeightError(
                f"the checkpoint leaves {len(short)} parameters unfilled, first {first!r} "
                f"({_summarize(short[first])}); "
                "config.json does not fit the weights, or the download is incomplete"
            )

    def whole_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter in checkpoints, by name; a rank may hold only a part of it."""
        shapes = {}
        for name, parameter in self.named_parameters():
            whole_shape = getattr(self.get_submodule(name.rpartition(".")[0]), "whole_shape", None)
            shapes[name] = tuple(parameter.shape) if whole_shape is None else whole_shape(parameter)
        return shapes

    def attention_layer_index(self, path: str) -> int | None:
        """Return the index in the KV pool of the module that checkpoints call ``path``.

        ``None`` if there is no such module, or not exactly one ``Attention`` in it.
        """
        try:
            module = self.get_submodule(self._map_name(path)[0])
        except AttributeError:
            return None
        layers = [submodule.index for submodule in module.modules() if isinstance(submodule, Attention)]
        return layers[0] if len(layers) == 1 else None

    def checkpoint_paths(self, path: str, shards: Collection[str] = ()) -> dict[str, str | None]:
        """Return the names that checkpoints may have for the module ``path``, ours first, by ``packed`` and
        ``prefixes``.

        The value is ``None``, or the one of ``shards`` that the name belongs to.
        """
        return checkpoint_paths(path, self.packed, self.prefixes, shards)

    def prepare(self) -> None:
        """Let every layer bring its weights into the form that its kernels need. Called after loading."""
        for module in self.modules():
            pack = getattr(module, "pack_weights", None)
            if pack is not None:
                pack()

    def _layer_of(self, target: str) -> nn.Module:
        return self.get_submodule(target.rpartition(".")[0])

    def _untie(self, target: str) -> nn.Parameter:
        """Give a parameter that shares its memory with another one memory of its own."""
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        parameter = nn.Parameter(torch.empty_like(getattr(module, name)), requires_grad=False)
        setattr(module, name, parameter)
        return parameter

    def _ensure_memory(self, target: str, parameters: dict[str, nn.Parameter]) -> nn.Parameter:
        """Return the parameter; its layer first allocates memory for it if it has none."""
        if parameters[target].is_meta:
            path, _, name = target.rpartition(".")
            module: Any = self.get_submodule(path)
            module.make_room()
            parameters[target] = getattr(module, name)
        return parameters[target]

    def _pack_if_complete(self, target: str, shards: Callable[[str], set[str] | None]) -> list[str]:
        """Pack the layer of ``target`` if it converts its weights and has all of them; return the parameters it
        dropped.

        ``shards`` returns the shards of a parameter that have arrived.
        """
        path = target.rpartition(".")[0]
        layer: Any = self.get_submodule(path)
        if not getattr(layer, "converts", False):
            return []
        own = [f"{path}.{name}" for name, _ in layer.named_parameters(recurse=False)]
        if any(self._missing_shards(name, shards(name)) for name in own):
            return []
        layer.pack_weights()
        return own

    def _checkpoint_names(self, name: str, module: nn.Module) -> tuple[str, ...]:
        """Return the checkpoint's names of a module, or of each of its shards, as far as ``packed`` tells."""
        path, dot, last = name.rpartition(".")
        shards = getattr(module, "shards", ())
        names = {shard: alias for alias, (ours, shard) in self.packed.items() if ours == last and shard in shards}
        return tuple(f"{path}{dot}{alias}" for alias in names.values()) or (name,)

    def _map_name(self, name: str) -> tuple[str, str | None]:
        """Return the model's name of a checkpoint's tensor, and the shard that the tensor is."""
        parts, path, shard = name.split("."), list[str](), None
        module: Any = self
        for index, part in enumerate(parts):
            map_weight_name = getattr(module, "map_weight_name", None)
            if map_weight_name is not None:
                parameter, shard = map_weight_name(".".join(parts[index:]))
                return ".".join((*path, parameter)), shard
            ours, packed_shard = self.packed.get(part, (part, None))
            path.append(ours)
            shard = shard or packed_shard
            module = getattr(module, ours, None)
        return ".".join(path), shard

    def _load_tensor(self, name: str, target: str, shard: str | None, parameter: Tensor, tensor: Tensor) -> None:
        layer = self.get_submodule(target.rpartition(".")[0])
        load, stored_dtype = getattr(layer, "load_shard", None), getattr(layer, "stored_dtype", None)
        try:
            dtype = parameter.dtype if stored_dtype is None else stored_dtype(parameter, shard)
            if tensor.dtype != dtype and not {tensor.dtype, dtype} <= WIDE:
                raise ValueError(f"expected dtype {dtype}, found {tensor.dtype}")
            if load is not None:
                load(parameter, tensor, shard)
            elif parameter.shape != tensor.shape:
                raise ValueError(f"expected shape {tuple(parameter.shape)}, found {tuple(tensor.shape)}")
            else:
                parameter.copy_(tensor)
        except torch.OutOfMemoryError:
            raise
        except (ValueError, KeyError, RuntimeError) as error:
            raise WeightError(f"checkpoint tensor {name!r} does not fit {target!r}: {error}") from error

    def _missing_shards(self, name: str, shards: set[str] | None) -> list[str]:
        """Return a line for each missing part of a parameter: a shard, or the whole parameter."""
        expected = getattr(self.get_submodule(name.rpartition(".")[0]), "shards", None)
        if not shards:
            return ["no tensor for it"]
        if expected is None or "" in shards:
            return []
        return [f"{shard!r} is missing" for shard in expected if shard not in shards]


def _has_other_values(layer: nn.Module, parameter: Tensor, tensor: Tensor) -> bool:
    """Return True if ``tensor`` has the shape of ``parameter`` in checkpoints, but other values."""
    whole: Any = getattr(layer, "whole_shape", None)
    if tuple(tensor.shape) != (tuple(parameter.shape) if whole is None else whole(parameter)):
        return False
    if parameter.shape != tensor.shape:  # this rank holds only a part
        load: Any = layer.load_shard
        load(own := torch.empty_like(parameter), tensor, None)
        tensor = own
    return not torch.equal(parameter, tensor.to(parameter))


class SupportsImages(ABC):
    """A second base class of models that take images, or similar media, as a part of their prompts."""

    bidirectional_images: ClassVar[bool] = False
    """True if all tokens of an image attend to each other, also to later ones; then no step splits an image."""

    @abstractmethod
    def encode_images(self, media: Sequence[Media]) -> Sequence[Tensor]:
        """Return the embeddings of each of ``media``: ``[count, hidden]`` in the model's dtype.

        A model that adds further embeddings between its layers (``MultimodalInputs.add_deepstack``) returns
        ``[count, n, hidden]``, with these after the first. Called once for each image that a step needs and whose
        embeddings are not cached from an earlier step; the model then finds them in ``ForwardBatch.multimodal``.
        """

    def example(self, tokens: int) -> Media | None:
        """Return an image at the start of a prompt that needs as much memory as any of at most ``tokens`` tokens.

        The memory profiling at start encodes it, and the size of the KV pool follows from the result. ``None``: images
        are not profiled.
        """
        return None

    def mrope_positions(self, media: Sequence[Media], length: int) -> Tensor | None:
        """Return the M-RoPE position ids of a prompt of ``length`` tokens, ``[R, length]`` int64 on the host.

        ``None``: a token's position is its index. Outside of ``media`` all rows are equal; tokens after the prompt
        continue from the greatest position. Raises ``RequestError`` for media that do not fit the model.
        """
        return None


def _summarize(lines: list[str], max_lines: int = 3) -> str:
    return ", ".join(lines[:max_lines]) + (f" and {len(lines) - max_lines} more" if len(lines) > max_lines else "")
