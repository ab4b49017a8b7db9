"""Predicts how long a step takes, from the steps of the past.

Two linear models with few coefficients, none of them negative:

- a decode step: a constant (weights are read once), a share for each sequence and one for each token of their contexts;
- a step with prompt tokens or drafts: a multiple of the decode step, a share for each of these tokens and one for each
  pair of such a token and a token that it attends to.

They are fitted by least squares. Older steps count less, errors are relative to the duration of a step, and a step that
took much longer than predicted (the machine did something else) counts as a moderately slow one.
"""

from __future__ import annotations

from dataclasses import dataclass

DECODE_MEMORY, PREFILL_MEMORY = 64, 32
"""Number of observed steps after which an earlier one counts for less than half."""
MAX_BASE = 2.0
"""Largest multiple of a decode step that a step with prompt tokens takes besides these tokens. Steps that all have the
same few tokens do not tell the two apart: without the limit, a machine that became slower would seem to leave no time
for prompts, however few of their tokens a step has."""
DISTURBED, DISTURBED_DECODE = 2.0, 1.25
"""A step that took longer than this multiple of its prediction counts as if it had taken this multiple. Decode steps
vary less, and each error in their time is multiplied in the target."""
SLOW_WEIGHT = 0.5
"""Weight of a decode step that took longer than predicted. The machine only ever delays steps: bursts of them must not
be taken for an effect of the contexts, which grow meanwhile."""
SHRINKAGE = 0.05
"""Strength of the ridge penalty on the coefficients of a decode step other than the constant, relative to the observed
steps. It matters where the steps were so alike that the coefficients are uncertain."""
LASTING = 8
"""After so many disturbed steps in a row, the machine has become slower, and they count in full."""
TRUSTED = 8
"""Number of observed steps after which predictions are used to recognise disturbed steps."""
INERTIA = 1e-3
"""Weight of the coefficients so far, relative to that of the observed steps. Steps that are all alike leave the
coefficients undetermined; they then stay near what they were."""

Coefficients = tuple[float, float, float]


@dataclass(slots=True)
class StepWork:
    """The amount of work in a step."""

    decode_rows: int = 0
    """Sequences that decode."""
    decode_context: int = 0
    """Tokens of these sequences together."""
    prefill_tokens: int = 0
    """New tokens of prompts, and of sequences that are computed again."""
    draft_tokens: int = 0
    """Draft tokens after the last tokens of sequences."""
    prefill_pairs: float = 0.0
    """Pairs of a token of a prompt, or of a draft, and a token that it attends to."""

    @property
    def prompt_and_draft_tokens(self) -> int:
        """Number of tokens of prompts and drafts, without those that decode one by one."""
        return self.prefill_tokens + self.draft_tokens

    def add_decode(self, length: int) -> None:
        """Add a sequence of ``length`` tokens that decodes."""
        self.decode_rows += 1
        self.decode_context += length

    def add_prefill(self, start: int, count: int) -> None:
        """Add ``count`` tokens that follow ``start`` others."""
        self.prefill_tokens += count
        self.prefill_pairs += count * (start + 0.5 * count)

    def add_drafts(self, start: int, count: int) -> None:
        """Add ``count`` draft tokens that follow ``start`` others."""
        self.draft_tokens += count
        self.prefill_pairs += count * (start + 0.5 * count)


class LeastSquares:
    """A linear model without negative coefficients, fitted to observations that are forgotten gradually.

    Args:
        prior: the coefficients before anything is observed.
        memory: number of observations after which an earlier one counts for less than half.
        first_limit: largest value of the first coefficient.
        disturbed: a value above this multiple of the expected one counts as this multiple.
        slow_weight: weight of an observation above the expected value; others have 1.
        shrinkage: how much all coefficients but the first are drawn to zero.
    """

    def __init__(
        self,
        prior: tuple[float, ...],
        memory: int,
        *,
        first_limit: float = float("inf"),
        disturbed: float = DISTURBED,
        slow_weight: float = 1.0,
        shrinkage: float = 0.0,
    ) -> None:
        self.coefficients = list(prior)
        self._first_limit, self._disturbed = first_limit, disturbed
        self._slow_weight, self._shrinkage = slow_weight, shrinkage
        self.observed = 0
        self._disturbed_in_a_row = 0
        self._keep = 0.5 ** (1 / memory)
        size = len(prior)
        self._moments = [[0.0] * size for _ in range(size)]
        self._products = [0.0] * size
        self._solved = True

    def predict(self, features: tuple[float, ...]) -> float:
        """Return the value that is expected for ``features``."""
        if not self._solved:
            self._solve()
        return sum(weight * feature for weight, feature in zip(self.coefficients, features, strict=True))

    def observe(self, features: tuple[float, ...], value: float) -> None:
        """Learn that ``features`` led to ``value``, which must be positive."""
        expected, weight = value, 1.0
        if self.observed >= TRUSTED:
            expected = self.predict(features) or value
            limit = self._disturbed * expected
            self._disturbed_in_a_row = self._disturbed_in_a_row + 1 if value > limit else 0
            if self._disturbed_in_a_row < LASTING:
                weight = self._slow_weight if value > expected else 1.0
                value = min(value, limit)
        self.observed += 1
        self._solved = False
        scale = weight / expected**2
        for row, feature in zip(self._moments, features, strict=True):
            for column, other in enumerate(features):
                row[column] = self._keep * row[column] + scale * feature * other
        for column, feature in enumerate(features):
            self._products[column] = self._keep * self._products[column] + scale * feature * value

    def _solve(self) -> None:
        """Fit the coefficients; one that is out of range gets the nearest value, and the others are fitted again."""
        used = [column for column, row in enumerate(self._moments) if row[column] > 0]
        self._fit(used)
        if 0 in used and self.coefficients[0] > self._first_limit:
            self.coefficients[0] = self._first_limit
            self._fit(used[1:], fixed=0)
        self._solved = True

    def _fit(self, used: list[int], fixed: int | None = None) -> None:
        """Fit the coefficients ``used``, given that of ``fixed``; none becomes negative."""
        while used:
            matrix = [[self._moments[row][column] for column in used] for row in used]
            right = [self._products[row] for row in used]
            if fixed is not None:
                right = [self._products[row] - self._moments[row][fixed] * self.coefficients[fixed] for row in used]
            for index, row in enumerate(used):
                inertia = INERTIA * self._moments[row][row]
                matrix[index][index] += inertia + (self._shrinkage * self._moments[row][row] if row else 0.0)
                right[index] += inertia * self.coefficients[row]
            solution = _solution(matrix, right)
            negative = [column for column, value in zip(used, solution, strict=True) if value < 0]
            if not negative:
                for column, value in zip(used, solution, strict=True):
                    self.coefficients[column] = value
                break
            for column in negative:
                self.coefficients[column] = 0.0
            used = [column for column in used if column not in negative]


def _solution(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Return the solution of a system of linear equations with a positive definite matrix (Gauss)."""
    size = len(right)
    for pivot in range(size):
        for row in range(pivot + 1, size):
            factor = matrix[row][pivot] / matrix[pivot][pivot]
            for column in range(pivot, size):
                matrix[row][column] -= factor * matrix[pivot][column]
            right[row] -= factor * right[pivot]
    for row in reversed(range(size)):
        known = sum(matrix[row][column] * right[column] for column in range(row + 1, size))
        right[row] = (right[row] - known) / matrix[row][row]
    return right


class StepTimeModel:
    """Learns how long steps take.

    Args:
        decode: coefficients of decode steps before any is observed, in the order of ``coefficients``.
        prefill: those of steps with prompt tokens or drafts.
    """

    def __init__(self, decode: Coefficients = (0.0, 0.0, 0.0), prefill: Coefficients = (1.0, 0.0, 0.0)) -> None:
        self._decode = LeastSquares(
            decode, DECODE_MEMORY, disturbed=DISTURBED_DECODE, slow_weight=SLOW_WEIGHT, shrinkage=SHRINKAGE
        )
        self._prefill = LeastSquares(prefill, PREFILL_MEMORY, first_limit=MAX_BASE)
        self.largest_prefill = 0
        """Largest number of prompt tokens of an observed step."""

    @property
    def predicts_decode(self) -> bool:
        """True if the duration of decode steps can be predicted."""
        return self._decode.observed > 0

    @property
    def trusts_decode(self) -> bool:
        """True if so many decode steps were observed that a single one says little."""
        return self._decode.observed >= TRUSTED

    @property
    def predicts_prefill(self) -> bool:
        """True if the duration of steps with prompt tokens or drafts can be predicted."""
        return self._prefill.observed > 0

    def observe(self, work: StepWork, seconds: float) -> None:
        """Learn that ``work`` took ``seconds``."""
        if seconds <= 0:
            return
        if not work.prompt_and_draft_tokens:
            self._decode.observe(_decode_features(work.decode_rows, work.decode_context), seconds)
            return
        if self.predicts_decode:
            base = self.decode_seconds(work.decode_rows, work.decode_context)
            self._prefill.observe((base, float(work.prompt_and_draft_tokens), work.prefill_pairs), seconds)
            self.largest_prefill = max(self.largest_prefill, work.prefill_tokens)

    def decode_seconds(self, rows: int, context: int) -> float:
        """Return the expected duration of a decode step of ``rows`` sequences that have ``context`` tokens together."""
        return self._decode.predict(_decode_features(max(1, rows), context))

    def step_seconds(self, work: StepWork) -> float:
        """Return the expected duration of a step."""
        base = self.decode_seconds(work.decode_rows, work.decode_context)
        if not work.prompt_and_draft_tokens:
            return base
        return self._prefill.predict((base, float(work.prompt_and_draft_tokens), work.prefill_pairs))

    def prefill_tokens(self, work: StepWork, start: int, seconds: float) -> float:
        """Return how many tokens that follow ``start`` others fit into a step of ``seconds`` that has ``work``."""
        base = self.decode_seconds(work.decode_rows, work.decode_context)
        seconds_left = seconds - self._prefill.predict((base, float(work.prompt_and_draft_tokens), work.prefill_pairs))
        if seconds_left <= 0:
            return 0.0
        _, for_token, for_pair = self._prefill.coefficients
        linear, square = for_token + for_pair * start, 0.5 * for_pair
        if square <= 0:
            return seconds_left / linear if linear > 0 else float("inf")
        return 2 * seconds_left / (linear + (linear**2 + 4 * square * seconds_left) ** 0.5)

    def coefficients(self) -> dict[str, float]:
        """Return the coefficients in seconds, by what they are for."""
        self._decode.predict((0.0, 0.0, 0.0))
        self._prefill.predict((0.0, 0.0, 0.0))
        step, sequence, context_token = self._decode.coefficients
        multiple, prompt_token, pair = self._prefill.coefficients
        return {
            "decode_step": step,
            "decode_sequence": sequence,
            "decode_context_token": context_token,
            "prefill_base_multiple": multiple,
            "prefill_token": prompt_token,
            "prefill_pair": pair,
        }


def _decode_features(rows: int, context: int) -> tuple[float, ...]:
    return 1.0, float(rows), float(context)
