"""Trains the demo model: corpus, byte-level BPE tokenizer, a small Llama, and the checkpoint directory.

    python train.py --out stage1 --steps 2800 --stop 1200
    python train.py --out stage2 --start stage1 --mix even --steps 1600 --stop 1200 --rate 1.3e-3 --seed 30
    python train.py --out stage3 --start stage2 --mix skills --steps 600 --rate 8e-4 --seed 40
    python train.py --out ../sglang-plug-demo --start stage3 --mix lists --steps 290 --rate 6e-4 --seed 50

The first stage is heavy on facts, the later ones give every skill its share (see mixes.py).
Every random choice comes from --seed, so the same steps give the same model on the same software and machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import chatformat as cf
import corpus
import mixes
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

# Words with the space before them, single digits, runs of marks, and blanks, each on its own.
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_cache": True,
    "dtype": "float32",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": [4, 2],
}
LONG = 4096
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def train_tokenizer(seed: int, documents: int) -> Tokenizer:
    """A byte-level BPE tokenizer with every byte in its alphabet, learnt from some of the corpus."""
    rng = random.Random(seed)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"] - len(cf.MARKER_TOKENS),
        special_tokens=cf.SPECIAL_TOKENS,
        show_progress=False,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    marks = cf.SPECIAL_TOKENS + cf.MARKER_TOKENS

    def texts() -> Iterator[str]:
        for _ in range(documents):
            text = corpus.document(rng)
            for mark in marks:
                text = text.replace(mark, "\n")
            yield text

    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in cf.MARKER_TOKENS])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, out: Path) -> None:
    """tokenizer.json and tokenizer_config.json, the latter with the chat template."""
    tokenizer.save(str(out / "tokenizer.json"))
    extra = [t for t in cf.SPECIAL_TOKENS if t not in (cf.PAD, cf.BOS, cf.IM_END)]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONFIG["max_position_embeddings"],
        "bos_token": cf.BOS,
        "eos_token": cf.IM_END,
        "pad_token": cf.PAD,
        "additional_special_tokens": extra,
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
        "chat_template": cf.chat_template(),
    }
    (out / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


class Packer:
    """Packs documents into token rows with one loss weight per token."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self.tokenizer, self.rng = tokenizer, random.Random(seed)
        ids = tokenizer.token_to_id
        self.start, self.end, self.eot = ids(cf.IM_START), ids(cf.IM_END), ids(cf.EOT)
        self.assistant = tokenizer.encode("assistant").ids[0]
        self.queues: dict[int, list[list[int]]] = {256: [], 512: []}

    def weights(self, row: list[int]) -> list[float]:
        """1 for plain text and what the assistant says, little or nothing for what it is told."""
        prompt_weight = 0.1 if self.rng.random() < 0.3 else 0.0
        out: list[float] = []
        in_chat, speaking, index = False, False, 0
        for index, token in enumerate(row):
            if token == self.start:
                in_chat, speaking = True, index + 1 < len(row) and row[index + 1] == self.assistant
                out.append(0.1)
                skip = 2
            elif in_chat:
                out.append(1.0 if speaking and skip <= 0 else 0.1 if token == self.eot else prompt_weight)
                skip -= 1
                if token == self.end:
                    speaking = False
                elif token == self.eot:
                    in_chat = False
            else:
                out.append(1.0)
        return out

    def _refill(self) -> None:
        for encoding in self.tokenizer.encode_batch([corpus.document(self.rng) for _ in range(512)]):
            self.queues[256 if len(encoding.ids) <= 200 else 512].append(encoding.ids)

    def row(self, length: int) -> list[int]:
        """One packed row of length + 1 tokens that starts with a document."""
        out: list[int] = []
        while len(out) <= length:
            if length == LONG:
                text = corpus.long_document(self.rng, self.rng.choice([2000, 6000, 14000]))
                out += self.tokenizer.encode(text).ids
                continue
            queue = self.queues[length]
            if not queue and length == 512 and self.queues[256]:
                queue = self.queues[256]
            if not queue:
                self._refill()
                continue
            out += queue.pop()
        return out[: length + 1]

    def batch(self, rows: int, length: int) -> Batch:
        """Inputs, targets and target weights."""
        picked = [self.row(length) for _ in range(rows)]
        ids = torch.tensor(picked)
        weights = torch.tensor([self.weights(row) for row in picked])
        return ids[:, :-1], ids[:, 1:], weights[:, 1:]


def batches(packer: Packer, steps: int) -> Iterator[Batch]:
    """Mostly short rows, some longer ones, and now and then one as long as the context."""
    for step in range(steps):
        if step % 24 == 23:
            yield packer.batch(1, LONG)
        elif step % 4 == 3:
            yield packer.batch(6, 512)
        else:
            yield packer.batch(12, 256)


def rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up, then linear decay to a fiftieth."""
    warm = min(150, max(steps // 10, 1))
    if step < warm:
        return peak * (step + 1) / warm
    return peak * max(0.02, 1.0 - (step - warm) / max(steps - warm, 1))


class TokenLoss(torch.autograd.Function):
    """Weighted mean cross entropy whose gradient is worked out in the forward pass, in small blocks."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The loss; logits (bfloat16) are overwritten with their gradient."""
        total, scale = torch.zeros(()), 1.0 / weights.sum()
        for rows in torch.arange(logits.shape[0]).split(64):
            block = slice(int(rows[0]), int(rows[-1]) + 1)
            part, chosen = logits[block].float(), targets[block, None]
            picked = part.gather(1, chosen)[:, 0]
            top = part.amax(dim=1, keepdim=True)
            part = part.sub_(top).exp_()
            norm = part.sum(dim=1, keepdim=True)
            total += ((norm.log() + top)[:, 0] - picked).mul_(weights[block]).sum()
            part = part.div_(norm).scatter_add_(1, chosen, torch.full_like(chosen, -1.0, dtype=part.dtype))
            logits[block] = part.mul_(weights[block, None] * scale)
        ctx.save_for_backward(logits)
        return total * scale

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The stored gradient (the loss is the root of the graph, so its own gradient is 1)."""
        return ctx.saved_tensors[0], None, None


def loss_of(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Weighted cross entropy; positions without weight never reach the output layer."""
    inputs, targets, weights = batch
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
        kept = weights > 0
        logits = model.lm_head(hidden[kept])
    return TokenLoss.apply(logits, targets[kept], weights[kept])


def save_model(model: LlamaForCausalLM, out: Path) -> None:
    """config.json, generation_config.json and the bfloat16 weights, without the tied output layer."""
    state = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(state, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n", encoding="utf-8")
    generation = {
        "bos_token_id": 1,
        "eos_token_id": [4, 2],
        "pad_token_id": 0,
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
    }
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")


def new_model(start: Path | None) -> LlamaForCausalLM:
    """A model with random weights, or with those of the folder ``start``."""
    model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in CONFIG.items() if k != "dtype"})).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.mul_(1 / math.sqrt(2 * CONFIG["num_hidden_layers"]))
    if start is not None:
        weights = load_file(str(start / "model.safetensors"))
        missing = model.load_state_dict({k: v.float() for k, v in weights.items()}, strict=False)
        assert missing.missing_keys in ([], ["lm_head.weight"]) and not missing.unexpected_keys, missing
    return model


def new_optimizer(model: LlamaForCausalLM, rate: float) -> torch.optim.Optimizer:
    """AdamW, where matrices decay and vectors do not."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
        lr=rate,
        betas=(0.9, 0.98),
        fused=True,
    )


def train(options: argparse.Namespace) -> None:
    """The whole training run."""
    started = time.perf_counter()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    if options.start:
        tokenizer = Tokenizer.from_file(str(Path(options.start) / "tokenizer.json"))
    else:
        tokenizer = train_tokenizer(options.seed, options.tokenizer_documents)
    save_tokenizer(tokenizer, out)
    ids = [tokenizer.token_to_id(t) for t in (cf.PAD, cf.BOS, cf.EOT, cf.IM_END)]
    assert ids == [0, 1, 2, 4], ids
    print(f"tokenizer: {tokenizer.get_vocab_size()} tokens, {time.perf_counter() - started:.0f} s", flush=True)

    model = new_model(Path(options.start) if options.start else None)
    mixes.use(options.mix)
    print(f"parameters: {sum(p.numel() for p in model.parameters())}", flush=True)
    optimizer = new_optimizer(model, options.rate)
    packer = Packer(tokenizer, options.seed + 1)
    model.train()
    tokens, recent, stop = 0, [], options.stop or options.steps
    loop_started = time.perf_counter()
    for step, batch in enumerate(itertools.islice(batches(packer, options.steps), stop)):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, options.steps, options.rate)
        loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens += batch[0].numel()
        recent.append(loss.item())
        if (step + 1) % 50 == 0 or step + 1 == stop:
            spent = time.perf_counter() - loop_started
            print(
                f"step {step + 1}/{options.steps} loss {sum(recent) / len(recent):.4f} tokens {tokens} "
                f"{tokens / spent:.0f} tok/s {spent:.0f} s",
                flush=True,
            )
            recent = []
        if (step + 1) % 600 == 0:
            save_model(model, out)
    save_model(model, out)
    print(
        f"done: {stop} steps, {tokens} tokens, {time.perf_counter() - started:.0f} s in all",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument("--out", default=str(Path(__file__).resolve().parent.parent / "sglang-plug-demo"))
    parser.add_argument("--steps", type=int, default=2800)
    parser.add_argument("--stop", type=int, default=0, help="end after so many of the steps")
    parser.add_argument("--start", default="", help="a checkpoint to go on from")
    parser.add_argument("--mix", choices=list(mixes.MIXES), default="facts")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokenizer-documents", type=int, default=40000)
    train(parser.parse_args())
