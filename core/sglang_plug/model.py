"""The contract between the engine and a model."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .attention import Attention, AttentionBackend, AttentionShape
from .batch import ForwardBatch, KVScale
from .config import ConfigError
from .executor import ALONE, Collectives
from .kernels import TORCH, Kernels
from .media import Media
from .policy import Pooling
from .quantization import Quantization
from .recurrent import StateShape
from .specs import Task
from .transfer import upload

logger = logging.getLogger(__name__)

WIDE = frozenset({torch.bfloat16, torch.float16, torch.float32, torch.float64})
"""Dtypes that are converted into each other when weights are loaded."""


class WeightError(ConfigError):
    """A checkpoint does not fit the model; the message names the tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildEnv:
    """Everything a model may ask of its surroundings while it is being built."""

    attention: AttentionBackend
    kernels: Kernels = field(default=TORCH)
    quantization: Quantization | None = None
    """Who may keep matrices in fewer bits; ``Model.quantize`` asks."""
    context_length: int | None = None
    """Tokens of the longest sequence that will be served; ``None``: as many as the checkpoint allows."""
    pooling: Pooling = field(default=Pooling())
    """For pooling tasks: how a prompt's hidden states become one vector."""
    tasks: tuple[Task, ...] = ("generate",)
    """What will be served: what only other tasks need may be left out."""
    ranks: Collectives = field(default=ALONE)
    """What this rank computes together with others; layers know which part of them is its own."""
    shares_tokens: bool = True
    """Whether ranks share the embedding's tokens: then all embed the same ones, in every step."""


class Model(nn.Module):
    """A model as the engine sees it: hidden states for new tokens, and a head over the rows the engine picked.

    Parameter names follow the checkpoint, so the class body is the name map except for ``packed``.
    """

    packed: ClassVar[Mapping[str, tuple[str, str | None]]] = {}
    """Path component in the checkpoint -> (ours, shard), e.g. ``"q_proj": ("qkv_proj", "q")``; a shard of ``None``
    is only another name. A module with ``place(rest) -> (ours, shard)`` maps what follows its own path itself."""
    ignored: ClassVar[tuple[str, ...]] = ()
    """Parts of checkpoint names that carry nothing we need."""
    default_pooling: ClassVar[Pooling] = Pooling()
    """For checkpoints that do not say."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__()
        self.config, self.env = config, env
        self.states_width: int | None = None
        """Width of the states that prompts may have instead of tokens: inputs of the first layer, which come as
        ``ForwardBatch.seen``. ``None``: they may have none."""
        self.kv_scales: Mapping[int, KVScale] = {}
        """By layer, how much a unit of an FP8 KV pool counts; set after loading, if the checkpoint says."""

    @classmethod
    def text_config(cls, config: Any) -> Any:
        """The part of a checkpoint's configuration that describes the decoder: vocabulary, heads, longest context."""
        return config

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Geometry of the KV pool, from the checkpoint's configuration."""
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
        """What its recurrent layers keep of each sequence, in the order of ``batch.recurrent.pool.states``; most models
        have none. A model may have no attention at all: its ``attention_shape`` then has no layers."""
        return ()

    @classmethod
    def context_length(cls, config: Any) -> int | None:
        """Most tokens of a sequence, for models whose configuration does not tell in the usual field."""
        return None

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Hidden states of every new token: ``[T, hidden]``."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward(batch)")

    def head(self, hidden: Tensor) -> Tensor:
        """Logits (or scores) of the rows the engine picked: ``[rows, hidden]`` to ``[rows, vocabulary]``."""
        raise NotImplementedError(f"{type(self).__name__} does not define head(hidden)")

    @classmethod
    def pools_whole_prompts(cls, pooling: Pooling) -> bool:
        """True if ``pool`` needs more than each prompt's last state: then no prompt is cut or taken from the cache."""
        return pooling.mode != "last"

    def pool(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """Embeddings or scores of prompts, ``[B, width]`` float32.

        ``hidden`` is ``[T, hidden]``, the states of ``B`` prompts one after the other; of those whose prompts may
        be cut it has at least the last. By default as ``env.pooling`` says.
        """
        return pooled(hidden, lengths, self.env.pooling)

    def controls(self) -> Mapping[str, Callable[..., Any]]:
        """Control calls that this model adds to the engine's: name -> function of keyword arguments, which returns
        plain data. A name the engine has already is an error."""
        return {}

    def quantize(self) -> None:
        """Before loading: ask the quantization, if there is one, about every matrix.

        Raises ``ConfigError`` if it can do nothing for this model, or not what the checkpoint asks for.
        """
        quantization = self.env.quantization
        if quantization is None:
            return
        found = [
            quantize(name, self._checkpoint_names(name, module), quantization)
            for name, module in self.named_modules()
            if (quantize := getattr(module, "quantize_weights", None)) is not None
        ]
        unpacked = sum(getattr(module, "unpacks", 0) for module in self.modules())
        if unpacked:
            logger.warning(
                "Experts of the quantized checkpoint are turned back into ordinary weights, which take %.1f GiB",
                unpacked / 2**30,
            )
        if not any(found):
            raise ConfigError(
                f"quantization {quantization.name!r} takes none of the {len(found)} matrices of {type(self).__name__} "
                "that could be quantized; start without --quantization"
            )

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Fill every parameter from checkpoint tensors, one at a time.

        A layer that ``converts`` what it loads gets memory when its first tensor comes, and is packed with its last:
        never are all of them in memory as they were loaded.

        Raises ``WeightError`` if the checkpoint has a tensor we have no place for, one of another shape, or
        leaves a parameter unfilled. An alias of a tied parameter may be repeated or left out; where it has other values
        the parameters are tied no longer, as in transformers: the checkpoint is right, and its configuration is not.
        """
        parameters = dict(self.named_parameters(remove_duplicate=False))
        keys = {name: id(parameter) for name, parameter in parameters.items()}
        filled: dict[int, set[str]] = {}
        aliases: dict[int, str] = {}
        for name, tensor in weights:
            if any(part in name for part in self.ignored):
                continue
            target, shard = self._place(name)
            if target not in keys:
                if self.env.quantization is not None and self.env.quantization.dispensable(name, tensor):
                    continue
                raise WeightError(f"checkpoint has {name!r} but {type(self).__name__} has no {target!r}")
            if target not in parameters:
                raise WeightError(f"checkpoint has {name!r} twice, or too late: {target!r} is packed already")
            other = aliases.setdefault(keys[target], target)
            if other != target and _differ(self._layer_of(target), parameters[target], tensor):
                logger.warning("%r and %r are not tied, as the checkpoint has other values for each", other, target)
                parameters[target] = self._untied(target)
                keys[target] = id(parameters[target])
            self._copy(name, target, shard, self._with_memory(target, parameters), tensor)
            filled.setdefault(keys[target], set()).add(shard or "")
            for done in self._converted(target, lambda name: filled.get(keys[name])):
                del parameters[done]
        short = {name: missing for name, key in keys.items() if (missing := self._missing(name, filled.get(key)))}
        if short:
            first = min(short)
            raise WeightError(
                f"checkpoint leaves {len(short)} parameters unfilled, first {first!r} ({_some(short[first])})"
            )

    def whole_shapes(self) -> dict[str, tuple[int, ...]]:
        """What checkpoints hold for each parameter, by its name: more than this rank has of what ranks share."""
        found = {}
        for name, parameter in self.named_parameters():
            whole = getattr(self.get_submodule(name.rpartition(".")[0]), "whole_shape", None)
            found[name] = tuple(parameter.shape) if whole is None else whole(parameter)
        return found

    def attending_layer(self, path: str) -> int | None:
        """The layer of the KV pool that belongs to the module that checkpoints call ``path``.

        ``None`` if there is no such module, or not exactly one ``Attention`` in it.
        """
        try:
            module = self.get_submodule(self._place(path)[0])
        except AttributeError:
            return None
        layers = [one.index for one in module.modules() if isinstance(one, Attention)]
        return layers[0] if len(layers) == 1 else None

    def prepare(self) -> None:
        """After loading: let every layer bring its weights into the form its kernels want."""
        for module in self.modules():
            pack = getattr(module, "pack_weights", None)
            if pack is not None:
                pack()

    def _layer_of(self, target: str) -> nn.Module:
        return self.get_submodule(target.rpartition(".")[0])

    def _untied(self, target: str) -> nn.Parameter:
        """A parameter that has shared its memory with another one gets its own."""
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        found = nn.Parameter(torch.empty_like(getattr(module, name)), requires_grad=False)
        setattr(module, name, found)
        return found

    def _with_memory(self, target: str, parameters: dict[str, nn.Parameter]) -> nn.Parameter:
        """The parameter, whose layer is told to make room for it if it has none."""
        if parameters[target].is_meta:
            path, _, name = target.rpartition(".")
            module: Any = self.get_submodule(path)
            module.make_room()
            parameters[target] = getattr(module, name)
        return parameters[target]

    def _converted(self, target: str, shards: Callable[[str], set[str] | None]) -> list[str]:
        """Pack the layer of ``target`` if it converts and has all of its tensors; the parameters it then dropped.

        ``shards`` tells what of a parameter has arrived.
        """
        path = target.rpartition(".")[0]
        layer: Any = self.get_submodule(path)
        if not getattr(layer, "converts", False):
            return []
        own = [f"{path}.{name}" for name, _ in layer.named_parameters(recurse=False)]
        if any(self._missing(name, shards(name)) for name in own):
            return []
        layer.pack_weights()
        return own

    def _checkpoint_names(self, name: str, module: nn.Module) -> tuple[str, ...]:
        """What checkpoints call a module, or each of its shards, as far as ``packed`` tells."""
        path, dot, last = name.rpartition(".")
        shards = getattr(module, "shards", ())
        names = {shard: alias for alias, (ours, shard) in self.packed.items() if ours == last and shard in shards}
        return tuple(f"{path}{dot}{alias}" for alias in names.values()) or (name,)

    def _place(self, name: str) -> tuple[str, str | None]:
        """Our name of a checkpoint's tensor, and the shard it is."""
        parts, path, shard = name.split("."), list[str](), None
        module: Any = self
        for index, part in enumerate(parts):
            place = getattr(module, "place", None)
            if place is not None:
                rest, shard = place(".".join(parts[index:]))
                return ".".join((*path, rest)), shard
            ours, found = self.packed.get(part, (part, None))
            path.append(ours)
            shard = shard or found
            module = getattr(module, ours, None)
        return ".".join(path), shard

    def _copy(self, name: str, target: str, shard: str | None, parameter: Tensor, tensor: Tensor) -> None:
        load = getattr(self.get_submodule(target.rpartition(".")[0]), "load_shard", None)
        try:
            if tensor.dtype != parameter.dtype and not {tensor.dtype, parameter.dtype} <= WIDE:
                raise ValueError(f"expected dtype {parameter.dtype}, found {tensor.dtype}")
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

    def _missing(self, name: str, shards: set[str] | None) -> list[str]:
        """What of a parameter did not arrive: shards, or the whole of it."""
        expected = getattr(self.get_submodule(name.rpartition(".")[0]), "shards", None)
        if not shards:
            return ["no tensor for it"]
        if expected is None or "" in shards:
            return []
        return [f"{shard!r} is missing" for shard in expected if shard not in shards]


def _differ(layer: nn.Module, parameter: Tensor, tensor: Tensor) -> bool:
    """True if ``tensor`` could be what ``parameter`` of ``layer`` was filled with, and is not."""
    whole: Any = getattr(layer, "whole_shape", None)
    if tuple(tensor.shape) != (tuple(parameter.shape) if whole is None else whole(parameter)):
        return False
    if parameter.shape != tensor.shape:  # of which this rank has a part
        load: Any = layer.load_shard
        load(own := torch.empty_like(parameter), tensor, None)
        tensor = own
    return not torch.equal(parameter, tensor.to(parameter))


class Seeing(ABC):
    """A second base of models that see images, or the like, in the place of some of a prompt's tokens."""

    sees_whole: ClassVar[bool] = False
    """Whether the tokens of an image see all of it, those that come later too: then no step cuts one."""

    @abstractmethod
    def see(self, media: Sequence[Media]) -> Sequence[Tensor]:
        """The states that stand for each of ``media`` instead of embeddings: ``[count, hidden]`` in the model's dtype.

        A model that adds further states between its layers (``Seen.onto``) gives ``[count, n, hidden]``, these behind
        the first. Called once for what a step needs and nobody has kept; ``ForwardBatch.seen`` then has them.
        """

    def example(self, tokens: int) -> Media | None:
        """An image at the start of a prompt that takes as much memory as any of at most ``tokens`` places.

        Looking at it is part of the trial at start, of which follows how much memory the KV pool may have. ``None``:
        it is not tried.
        """
        return None

    def coordinates(self, media: Sequence[Media], length: int) -> Tensor | None:
        """Positions of the tokens of a prompt of ``length``, ``[R, length]`` int64 on the host.

        ``None``: each token's place. Outside of ``media`` all rows are equal; tokens after the prompt go on from the
        greatest position. Raises ``RequestError`` for media that the model cannot have been given.
        """
        return None


def _some(lines: list[str], most: int = 3) -> str:
    return ", ".join(lines[:most]) + (f" and {len(lines) - most} more" if len(lines) > most else "")


def pooled(hidden: Tensor, lengths: Sequence[int], pooling: Pooling) -> Tensor:
    """``[T, hidden]`` of prompts of ``lengths`` to one float32 vector each, ``[B, hidden]``."""
    ends = list(accumulate(lengths))
    match pooling.mode:
        case "last":
            found = _rows(hidden, [end - 1 for end in ends])
        case "cls":
            found = _rows(hidden, [end - length for end, length in zip(ends, lengths, strict=True)])
        case mode:
            found = torch.stack([_merged(part.float(), mode) for part in hidden.split_with_sizes(list(lengths))])
    for one in pooling.projections:
        found = torch.nn.functional.linear(found, one.weight, one.bias)
        found = found if one.activation is None else one.activation(found)
    return torch.nn.functional.normalize(found, dim=-1) if pooling.normalize else found


def _merged(states: Tensor, mode: str) -> Tensor:
    """``[n, hidden]`` to ``[hidden]``."""
    match mode:
        case "max":
            return states.amax(0)
        case "mean_sqrt_len":
            return states.sum(0) / len(states) ** 0.5
        case "weighted_mean":
            weights = torch.arange(1, len(states) + 1, dtype=torch.float32, device=states.device)
            return weights @ states / weights.sum()
    return states.mean(0)


def _rows(hidden: Tensor, rows: Sequence[int]) -> Tensor:
    return hidden.index_select(0, upload(rows, torch.int64, hidden.device)).float()
