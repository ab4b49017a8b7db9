"""One device: builds the step's tensors, runs the model and the sampler."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from contextlib import nullcontext
from functools import partial
from itertools import accumulate, chain

import torch
from torch import Tensor

from sglang_plug.attention import AttentionBackend
from sglang_plug.batch import ForwardBatch, KVPool
from sglang_plug.model import Model
from sglang_plug.request import LogprobOptions, RequestError, TokenLogprob
from sglang_plug.transfer import Fetched, send, upload

from .adapters import Adapters
from .grammars import NOTHING_MORE, Filling, Grammars, Verdict
from .graphs import Decoded, DecodeGraphs
from .launched import Given, Launched, Postponed
from .logprobs import describe
from .prefill_graphs import PrefillGraphs
from .ranks import Ranks
from .recurrence import StateSteps
from .sampler import Drawn, Sampler, count, takes_likeliest
from .sequence import Sequence
from .shares import Sampled, Share
from .sight import seen
from .tables import tables

HEAD_ROWS = 256
"""Prompt rows whose logits are in memory at once."""
NOTHING_YET = Sampled()
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
        sampler: Sampler | None = None,
        ranks: Ranks | None = None,
        adapters: Adapters | None = None,
        states: StateSteps | None = None,
        prefill_graphs: PrefillGraphs | None = None,
    ) -> None:
        self.model, self.backend, self.kv = model, backend, kv
        self.device, self.page_size, self.grammars, self.graphs = device, page_size, grammars, graphs
        self.sampler = Sampler() if sampler is None else sampler
        self.ranks = ranks
        self.adapters = adapters
        self.states = states
        self.prefill_graphs = prefill_graphs

    @property
    def asynchronous(self) -> bool:
        """True if the device works on its own: a step can be queued there while another one runs."""
        return self.device.type == "cuda"

    def run(self, shares: Ordered[Share]) -> list[Sampled]:
        """Compute the shares' tokens; sample one where a share is complete. One result for each share."""
        launched = self.launch(shares)
        assert isinstance(launched, Launched)
        return launched.results()

    @torch.inference_mode()
    def launch(self, shares: Ordered[Share], before: Launched | None = None) -> Launched | Postponed:
        """Queue a step on the device; waits for it only where prompts report log-probabilities, or are pooled.

        Shares that are ahead follow ``before``, the step queued last, and may take a token from it. If they are
        constrained, their own tokens are chosen once that step is committed.
        """
        complete = _complete(shares)
        sequences = [shares[place].sequence for place in complete]
        postponed = before is not None and any(one.grammar is not None for one in sequences)
        filling = None if postponed else self._fill(sequences)
        given = None if before is None else before.given(shares, self._upload)
        found, results = self._forward(shares, complete, given)
        if found is None:
            return Launched([], None, lambda: results)
        if postponed:
            return Postponed(partial(self._choose_late, found, complete, results))
        return self._choose(found, sequences, complete, filling, results, _ahead(shares, complete), shares)

    def open(self, sequences: Ordered[Sequence]) -> dict[int, Verdict]:
        """What the grammars of new outputs make these begin with, by place in ``sequences``."""
        return {} if self.grammars is None else self.grammars.open(sequences)

    def _forward(
        self, shares: Ordered[Share], complete: Ordered[int], given: Given | None
    ) -> tuple[Tensor | Decoded | None, list[Sampled]]:
        """Queue the forward pass.

        Returns the logits of the shares at ``complete``, or what a replayed graph made of them, or ``None`` if there
        are none of them; and what is known so far of each share.
        """
        if self.states is not None:
            self.states.begin(shares)
        decoded = None if self.graphs is None else self.graphs.run(self.model, shares, given)
        if decoded is not None:
            if self.states is not None:
                self.states.end(shares)
            return decoded, [NOTHING_YET] * len(shares)
        batch = self.build(shares, given)
        if self.ranks is not None:
            self.ranks.step(shares, batch, known=given is None)
        self.backend.plan(batch)
        hidden = self._hidden(shares, batch)
        if self.states is not None:
            self.states.end(shares)
        ends = list(accumulate(batch.query_lens))
        drafted = _drafted(shares)
        own = [end - len(share.drafts) for share, end in zip(shares, ends, strict=True)] if drafted else ends
        results = [self._known_logprobs(hidden, share, end) for share, end in zip(shares, own, strict=True)]
        self._pool(hidden, shares, ends, results)
        if not complete:
            return None, results
        rows = [own[place] - 1 for place in complete]
        if drafted:  # a place is there for each of its rows
            rows = [row for place in dict.fromkeys(complete) for row in range(own[place] - 1, ends[place])]
        return self._head(hidden, rows), results

    def _hidden(self, shares: Ordered[Share], batch: ForwardBatch) -> Tensor:
        """``[T, hidden]`` of a step that is planned; from graphs only until the next step is queued."""
        if self.prefill_graphs is not None and not any(share.sequence.adapter for share in shares):
            found = self.prefill_graphs.run(self.model, batch)
            if found is not None:
                return found
        with nullcontext() if self.adapters is None else self.adapters.computing(shares, batch.query_lens):
            hidden: Tensor = self.model(batch)
        return hidden

    def _head(self, hidden: Tensor, rows: list[int] | slice) -> Tensor:
        """Logits of ``rows`` of the step's hidden states."""
        if self.ranks is not None:
            self.ranks.head(rows)
        if isinstance(rows, slice):
            return self.model.head(hidden[rows])
        return self.model.head(hidden if len(rows) == len(hidden) else hidden[self._upload(rows)])

    def _fill(self, sequences: Ordered[Sequence]) -> Filling | None:
        """Begin to find out what ``sequences`` may take; ``None`` if that is everything."""
        return None if self.grammars is None else self.grammars.start(sequences, asynchronous=self.asynchronous)

    def _upload(self, numbers: list[int]) -> Tensor:
        return upload(numbers, torch.int64, self.device)

    @torch.inference_mode()
    def _choose_late(
        self,
        found: Tensor | Decoded,
        complete: Ordered[int],
        results: list[Sampled],
        shares: Ordered[Share],
    ) -> Launched:
        """Sample for those of the shares at ``complete`` that still want a token, the step before being committed.

        That may have ended sequences, or given them tokens that must follow.
        """
        rows = [row for row, place in enumerate(complete) if shares[place].complete and not shares[place].dropped]
        if not rows:
            return Launched([], None, lambda: results)
        if len(rows) < len(complete):
            found = found.part(rows) if isinstance(found, Decoded) else found[self._upload(rows)]
            complete = [complete[row] for row in rows]
        sequences = [shares[place].sequence for place in complete]
        return self._choose(found, sequences, complete, self._fill(sequences), results, [0] * len(rows))

    def _choose(
        self,
        found: Tensor | Decoded,
        sequences: list[Sequence],
        complete: Ordered[int],
        filling: Filling | None,
        results: list[Sampled],
        ahead: Ordered[int],
        shares: Ordered[Share] = (),
    ) -> Launched:
        """Sample a token for each of ``sequences``, whose places in ``results`` are ``complete``.

        A sequence that has drafts in ``shares`` is there once more for each of them.

        ``found`` are their logits, or what a replayed graph made of them; ``results`` are what is known so far;
        ``ahead``: how many tokens precede the one to sample that the sequence does not have yet.
        """
        allowed = None if filling is None else filling.result()
        if isinstance(found, Decoded) and allowed is None and takes_likeliest(sequences):
            tokens = found.tokens()
            drawn = Drawn(tokens, Fetched.of(tokens), (), None)
        else:
            logits = found.logits() if isinstance(found, Decoded) else found
            drawn = self.sampler.draw(logits, sequences, allowed, ahead=ahead)
        refused = {} if allowed is None else allowed.errors
        drafts = {place: share.drafts for place, share in enumerate(shares) if share.drafts} if _drafted(shares) else {}
        read = partial(self._sampled, drawn, sequences, complete, refused, results, drafts)
        return Launched(sequences, drawn.tokens, read)

    def _sampled(
        self,
        drawn: Drawn,
        sequences: Ordered[Sequence],
        complete: Ordered[int],
        refused: Mapping[int, RequestError],
        results: list[Sampled],
        drafts: Mapping[int, tuple[int, ...]],
    ) -> list[Sampled]:
        """Wait for the tokens of ``sequences``, whose places in ``results`` are ``complete``, and fill these in.

        ``drafts`` are those of a place.
        """
        tokens, logprobs = drawn.read()
        verdicts = {} if self.grammars is None else self.grammars.follow(sequences, tokens)
        for row, (index, token, logprob) in enumerate(zip(complete, tokens, logprobs, strict=True)):
            if drafts and row and complete[row - 1] == index:
                continue  # behind a draft
            verdict = verdicts.get(row, NOTHING_MORE)
            error = refused.get(row, verdict.error)
            if error is not None:
                results[index] = Sampled(error=str(error), status=error.status)
            elif token < 0:
                results[index] = Sampled(error=NOT_FINITE)
            else:
                if verdict.forced:
                    with torch.inference_mode():
                        count(sequences[row], verdict.forced)
                known = results[index]
                results[index] = Sampled(
                    token,
                    logprob,
                    prompt_logprobs=known.prompt_logprobs,
                    forced=verdict.forced,
                    forced_logprobs=known.forced_logprobs,
                    finish=verdict.finish,
                    further=_further(drafts.get(index, ()), tokens[row:], logprobs[row:]) if drafts else (),
                )
        return results

    def _pool(self, hidden: Tensor, shares: Ordered[Share], ends: Ordered[int], results: list[Sampled]) -> None:
        """Fill in the results of pooling tasks whose prompts are complete."""
        done = [place for place, share in enumerate(shares) if share.complete and not _generates(share)]
        if not done:
            return
        counts = [shares[index].count for index in done]
        if len(done) < len(shares):
            hidden = torch.cat([hidden[ends[index] - shares[index].count : ends[index]] for index in done])
        pooled = self.model.pool(hidden, counts)
        values, finite = Fetched.of(pooled, pooled.isfinite().all(-1)).read()
        for index, row, good in zip(done, values.tolist(), finite.tolist(), strict=True):
            results[index] = Sampled(values=tuple(row)) if good else Sampled(error=NOT_FINITE)

    def build(self, shares: Ordered[Share], given: Given | None = None) -> ForwardBatch:
        """The tensors of a step; ``given``, if there, are those of its tokens that only the device knows."""
        starts = [share.start for share in shares]
        drafted = _drafted(shares)
        counts = [share.width if drafted else share.count for share in shares]
        kv_lens = [share.reach if drafted else share.end for share in shares]
        positions = chain.from_iterable(share.positions for share in shares)
        slots = array("q")
        for share, start, end in zip(shares, starts, kv_lens, strict=True):
            slots += share.sequence.slots[start:end]
        return ForwardBatch(
            input_ids=self._input_ids(shares, given),
            positions=self._upload(list(positions)),
            slots=send(torch.frombuffer(slots, dtype=torch.int64), self.device),
            tables=tables([share.sequence.slots for share in shares], kv_lens, self.device),
            query_lens=counts,
            kv_lens=kv_lens,
            page_size=self.page_size,
            kv=self.kv,
            seen=seen(self.model, shares, self.device),
            recurrent=None if self.states is None else self.states.of(shares, counts),
        )

    def _input_ids(self, shares: Ordered[Share], given: Given | None) -> Tensor:
        if given is not None and len(given.places) == sum(share.count for share in shares):
            return given.tokens
        tokens: list[int] = []
        unseen = []
        for share in shares:
            tokens += share.sequence.tokens[share.start : share.end]
            if share.unseen:
                unseen.append(len(tokens))
                tokens.append(0)
            tokens += share.drafts
        ids = self._upload(tokens)
        return ids if given is None else ids.index_copy_(0, self._upload(unseen), given.tokens)

    def _known_logprobs(self, hidden: Tensor, share: Share, end: int) -> Sampled:
        """Of the tokens that this share's hidden states predict and that are there already, as far as they are wanted.

        These are the prompt's, and forced ones. ``end`` is the row after the share's last.
        """
        sequence = share.sequence
        options = sequence.request.logprobs
        if options is None or share.ahead:
            return NOTHING_YET
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
            logprobs = self._head(hidden, slice(row + start, row + stop)).float().log_softmax(-1)
            found += describe(logprobs, sequence.tokens[start:stop], [options] * (stop - start))
        return found


def _complete(shares: Ordered[Share]) -> list[int]:
    """Places of the shares that a token is sampled for, each once, and once more for each of its drafts."""
    found = [place for place, share in enumerate(shares) if share.complete and _generates(share)]
    if not _drafted(shares):
        return found
    return [place for place in found for _ in range(1 + len(shares[place].drafts))]


def _drafted(shares: Ordered[Share]) -> bool:
    """False for almost all steps of almost all servers, which then need not look at each share again and again."""
    return any([share.drafts for share in shares])


def _ahead(shares: Ordered[Share], complete: Ordered[int]) -> list[int]:
    """For each of these tokens, how many precede it that its sequence does not have yet."""
    if not _drafted(shares):
        return [int(shares[place].unseen) for place in complete]
    found: list[int] = []
    for share in shares:
        if share.complete and _generates(share):
            unseen = int(share.unseen)
            found += range(unseen, unseen + 1 + len(share.drafts))
    return found


def _further(
    drafts: tuple[int, ...], tokens: Ordered[int], logprobs: Ordered[TokenLogprob | None]
) -> tuple[tuple[int, TokenLogprob | None], ...]:
    """What follows the first of ``tokens``: each behind a draft that is what was sampled before it."""
    found: list[tuple[int, TokenLogprob | None]] = []
    for place, draft in enumerate(drafts):
        if tokens[place] != draft or tokens[place + 1] < 0:
            break
        found.append((tokens[place + 1], logprobs[place + 1]))
    return tuple(found)


def _generates(share: Share) -> bool:
    return share.sequence.request.task == "generate"
