"""One device: builds the step's tensors, runs the model and the sampler."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Ordered
from dataclasses import replace
from itertools import accumulate, chain

import torch
from torch import Tensor

from sglang_plug.attention import AttentionBackend
from sglang_plug.batch import ForwardBatch, KVPool
from sglang_plug.model import Model
from sglang_plug.request import LogprobOptions, TokenLogprob

from .grammars import Filling, Grammars, Verdict
from .graphs import Decoded, DecodeGraphs
from .sampler import count, describe, sample, takes_likeliest
from .scheduler import Sampled, Share
from .sequence import Sequence

HEAD_ROWS = 256
"""Prompt rows whose logits are in memory at once."""
NO_VERDICT = Verdict()
NOT_FINITE = "the model produced logits that are not finite (NaN or infinity)"


class Runner:
    """Runs steps. Holds the model, its backend and the KV pool, and nothing of any request."""

    def __init__(
        self,
        model: Model,
        backend: AttentionBackend,
        kv: KVPool | None,
        *,
        device: torch.device,
        page_size: int,
        grammars: Grammars | None = None,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self.model, self.backend, self.kv = model, backend, kv
        self.device, self.page_size, self.grammars, self.graphs = device, page_size, grammars, graphs

    @torch.inference_mode()
    def run(self, shares: Ordered[Share]) -> list[Sampled]:
        """Compute the shares' tokens; sample one where a share is complete. One result for each share."""
        complete = [
            index for index, share in enumerate(shares) if share.complete and share.sequence.request.task == "generate"
        ]
        sequences = [shares[index].sequence for index in complete]
        filling = None if self.grammars is None else self.grammars.start(sequences)
        decoded = None if self.graphs is None else self.graphs.run(self.model, shares)
        if decoded is not None:
            results = [Sampled()] * len(shares)
            self._choose(decoded, sequences, complete, filling, results)
            return results
        batch = self.build(shares)
        self.backend.plan(batch)
        hidden = self.model(batch)  # [T, hidden]
        ends = list(accumulate(batch.query_lens))
        results = [self._known_logprobs(hidden, share, end) for share, end in zip(shares, ends, strict=True)]
        self._pool(hidden, shares, ends, results)
        if not complete:
            return results
        rows = [ends[index] - 1 for index in complete]
        last = hidden if len(rows) == len(hidden) else hidden[torch.tensor(rows, device=self.device)]
        self._choose(self.model.head(last), sequences, complete, filling, results)
        return results

    def open(self, sequences: Ordered[Sequence]) -> dict[int, Verdict]:
        """What the grammars of new outputs make these begin with, by place in ``sequences``."""
        return {} if self.grammars is None else self.grammars.open(sequences)

    def _choose(
        self,
        found: Tensor | Decoded,
        sequences: Ordered[Sequence],
        complete: Ordered[int],
        filling: Filling | None,
        results: list[Sampled],
    ) -> None:
        """Sample a token for each of ``sequences``, whose places in ``results`` are ``complete``.

        ``found`` are their logits, or what a replayed graph made of them.
        """
        allowed = None if filling is None else filling.result()
        logprobs: list[TokenLogprob | None]
        if isinstance(found, Decoded) and allowed is None and takes_likeliest(sequences):
            tokens, logprobs = found.tokens(), [None] * len(sequences)
        else:
            tokens, logprobs = sample(found.logits() if isinstance(found, Decoded) else found, sequences, allowed)
        refused = {} if allowed is None else allowed.errors
        verdicts = {} if self.grammars is None else self.grammars.follow(sequences, tokens)
        for row, (index, token, logprob) in enumerate(zip(complete, tokens, logprobs, strict=True)):
            verdict = verdicts.get(row, NO_VERDICT)
            error = refused.get(row, verdict.error)
            if error is not None:
                results[index] = Sampled(error=error, status=400)
            elif token < 0:
                results[index] = Sampled(error=NOT_FINITE)
            else:
                count(sequences[row], verdict.forced)
                results[index] = replace(
                    results[index], token=token, logprob=logprob, finish=verdict.finish, forced=verdict.forced
                )

    def _pool(self, hidden: Tensor, shares: Ordered[Share], ends: Ordered[int], results: list[Sampled]) -> None:
        """Fill in the results of pooling tasks whose prompts are complete."""
        done = [
            index for index, share in enumerate(shares) if share.complete and share.sequence.request.task != "generate"
        ]
        if not done:
            return
        counts = [shares[index].count for index in done]
        if len(done) < len(shares):
            hidden = torch.cat([hidden[ends[index] - shares[index].count : ends[index]] for index in done])
        values = self.model.pool(hidden, counts)
        finite = values.isfinite().all(-1).tolist()
        for index, row, good in zip(done, values.tolist(), finite, strict=True):
            results[index] = Sampled(values=tuple(row)) if good else Sampled(error=NOT_FINITE)

    def build(self, shares: Ordered[Share]) -> ForwardBatch:
        """The tensors of a step."""
        starts = [share.sequence.computed for share in shares]
        counts = [share.count for share in shares]
        kv_lens = [start + count for start, count in zip(starts, counts, strict=True)]
        tokens = chain.from_iterable(
            share.sequence.tokens[start:end] for share, start, end in zip(shares, starts, kv_lens, strict=True)
        )
        positions = chain.from_iterable(map(range, starts, kv_lens))
        longest = max(kv_lens)
        tables, slots = array("q"), array("q")
        for share, start, end in zip(shares, starts, kv_lens, strict=True):
            own = share.sequence.slots
            tables += own[:end]
            tables.frombytes(bytes(8 * (longest - end)))
            slots += own[start:end]
        return ForwardBatch(
            input_ids=torch.tensor(list(tokens), dtype=torch.int64).to(self.device),
            positions=torch.tensor(list(positions), dtype=torch.int64).to(self.device),
            slots=torch.frombuffer(slots, dtype=torch.int64).to(self.device),
            tables=torch.frombuffer(tables, dtype=torch.int64).view(len(shares), longest).to(self.device),
            query_lens=counts,
            kv_lens=kv_lens,
            page_size=self.page_size,
            kv=self.kv,
        )

    def _known_logprobs(self, hidden: Tensor, share: Share, end: int) -> Sampled:
        """Of the tokens that this share's hidden states predict and that are there already, as far as they are wanted.

        These are the prompt's, and forced ones. ``end`` is the row after the share's last.
        """
        sequence = share.sequence
        options = sequence.request.logprobs
        if options is None:
            return Sampled()
        prompt: list[TokenLogprob] = []
        if options.start >= 0:
            wanted = options.start + len(sequence.prompt_logprobs)
            if wanted == 0:
                prompt.append(TokenLogprob(sequence.tokens[0], None))
                wanted = 1
            prompt += self._logprobs(hidden, share, end, wanted, sequence.prompt_len)
        wanted = sequence.told + len(sequence.forced_logprobs)
        forced = self._logprobs(hidden, share, end, wanted, len(sequence.tokens))
        return Sampled(prompt_logprobs=tuple(prompt), forced_logprobs=tuple(forced))

    def _logprobs(self, hidden: Tensor, share: Share, end: int, first: int, last: int) -> list[TokenLogprob]:
        """Of the tokens from ``first`` to before ``last``, as far as this share predicts them.

        The state at position ``p`` predicts the token at ``p + 1``.
        """
        sequence, options = share.sequence, share.sequence.request.logprobs or LogprobOptions()
        last = min(sequence.computed + share.count + 1, last)
        row = end - share.count - sequence.computed - 1  # hidden row of the state that predicts position p: row + p
        found: list[TokenLogprob] = []
        for start in range(first, last, HEAD_ROWS):
            stop = min(start + HEAD_ROWS, last)
            logprobs = self.model.head(hidden[row + start : row + stop]).float().log_softmax(-1)
            found += describe(logprobs, sequence.tokens[start:stop], [options] * (stop - start))
        return found
