"""Greedy and beam search (section 6.1), over any model that can take one step at a time.

Sequences start with bos and end with eos or at the length limit. A hypothesis y is scored by
log P(y | x) / lp(|y|), lp(n) = ((5 + n) / 6)^alpha (Wu et al. 2016, equation 14), where |y| counts
the eos.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from annotated_transformer.config import DecodeConfig, ModelConfig
from annotated_transformer.data.batching import copied_to
from annotated_transformer.errors import require
from annotated_transformer.fast.packing import without_cudnn_attention
from annotated_transformer.views import ListAsTree


@runtime_checkable
class StepModel(Protocol):
    """A model that search can drive: `Transformer` is one."""

    config: ModelConfig

    def start(self, source: Int[Tensor, "B S"]) -> Any:
        """The state before the first token: B sentences with one hypothesis each.

        `state.reorder(parents)`, with `parents` (B, W), lets hypothesis (b, w) continue what was
        hypothesis (b, parents[b, w]). `state.keep(sentences)` drops all sentences but these.
        """

    def step(self, tokens: Int[Tensor, "B W"], state: Any) -> Float[Tensor, "B W V"]:
        """Logits of the token after `tokens`, the newest of each hypothesis."""


class Hypothesis(NamedTuple):
    """Tokens without bos and eos, the score that ranks them, and log P in nats (eos included).

    >>> Hypothesis(tokens=[7, 5], score=-0.3, log_p=-0.4).tokens
    [7, 5]
    """

    tokens: list[int]
    score: float
    log_p: float


def length_penalty(length: int, alpha: float) -> float:
    """lp(n) = ((5 + n) / 6)^alpha, by which log P is divided."""
    return ((5 + length) / 6) ** alpha


def rerank(found: Iterable[tuple[list[int], float]], alpha: float = 0.6) -> list[Hypothesis]:
    """What another engine found for a sentence, tokens and log P, ranked as `beam_search` ranks it.

    Tokens are without bos and eos, which log P in nats counts. Other engines weigh the length in
    other ways, so ask for all hypotheses that they have, and for log P or what gives it.

    >>> [hypothesis.tokens for hypothesis in rerank([([7], -1.0), ([7, 5], -1.05)])]
    [[7, 5], [7]]
    """
    scored = [
        Hypothesis(tokens, log_p / length_penalty(len(tokens) + 1, alpha), log_p)
        for tokens, log_p in found
    ]
    return ListAsTree(sorted(scored, key=lambda h: -h.score))


def _require_searchable(model: StepModel, source: object) -> None:
    is_training = getattr(model, "training", False)
    require(not is_training, "search needs a model in evaluation mode: call model.eval()")
    rows = tuple(source.shape) if isinstance(source, Tensor) else type(source).__name__
    is_batch = isinstance(source, Tensor) and source.dim() == 2 and not source.is_floating_point()
    require(is_batch, f"source must be a tensor of ids, one row for each sentence, got {rows}")


def _length_limits(model: StepModel, source: Int[Tensor, "B S"], max_extra: int) -> list[int]:
    """The most tokens of each output, eos included: source length + max_extra (section 6.1)."""
    real = (source != model.config.pad_id) & (source != model.config.eos_id)
    limits = (real.sum(dim=1) + max_extra).clamp(min=1)
    if model.config.positions == "learned":
        limits = limits.clamp(max=model.config.max_len)
    return limits.tolist()


@torch.inference_mode()
@without_cudnn_attention()
def greedy_search(
    model: StepModel, source: Int[Tensor, "B S"], max_extra: int = 50
) -> list[list[int]]:
    """The most probable token at every step; for each sentence its ids without bos and eos.

    A sentence leaves the batch when it ends. Raises ConfigError for a model in training mode, and
    for a `source` that is not a tensor of ids with a row for each sentence.

    >>> model, tokenizer = load_model("book/model")
    >>> source = torch.tensor([[*tokenizer.encode("I am hungry."), model.config.eos_id]])
    >>> tokenizer.decode(greedy_search(model, source)[0])
    'Ich habe Hunger.'
    """
    _require_searchable(model, source)
    limits = _length_limits(model, source, max_extra)
    outputs: list[list[int]] = [[] for _ in limits]
    alive = list(range(len(limits)))
    state = model.start(source)
    tokens = source.new_full((len(limits), 1), model.config.bos_id)
    while alive:
        tokens = model.step(tokens, state).argmax(dim=-1)
        going_on = []
        for row, (sentence, token) in enumerate(zip(alive, tokens[:, 0].tolist(), strict=True)):
            if token != model.config.eos_id:
                outputs[sentence].append(token)
                if len(outputs[sentence]) < limits[sentence]:
                    going_on.append(row)
        if len(going_on) < len(alive):
            rows = _on_device(going_on, torch.long, source.device)
            alive = [alive[row] for row in going_on]
            tokens = tokens[rows]
            state.keep(rows)
    return outputs


class _Beam:
    """The search for one sentence: its live hypotheses, best first, and those that have ended."""

    def __init__(self, config: DecodeConfig, limit: int, early_stopping: bool) -> None:
        self.config = config
        self.limit = limit
        self.early_stopping = early_stopping
        self.alive: list[tuple[list[int], float]] = [([], 0.0)]
        self.ended: list[Hypothesis] = []

    def _end(self, tokens: list[int], log_p: float, length: int) -> None:
        score = log_p / length_penalty(length, self.config.alpha)
        self.ended.append(Hypothesis(tokens, score, log_p))

    def extend(self, candidates: list[tuple[int, int, float]], eos_id: int) -> list[int]:
        """Take candidates (parent, token, log P), best first; return the parents of the live ones.

        The beam has `beam_size` places, and a hypothesis that has ended keeps its own: only the
        best beam_size - len(ended) candidates count, whether they end or go on. So nothing that
        ranked among the best is ever dropped, beam 1 is greedy search, and the search is over when
        every place has ended.
        """
        alive: list[tuple[list[int], float]] = []
        parents: list[int] = []
        for parent, token, log_p in candidates[: self.config.beam_size - len(self.ended)]:
            tokens = self.alive[parent][0]
            if token == eos_id:
                self._end(tokens, log_p, len(tokens) + 1)
            elif len(tokens) + 1 == self.limit:
                self._end([*tokens, token], log_p, self.limit)
            else:
                alive.append(([*tokens, token], log_p))
                parents.append(parent)
        self.alive = alive
        if self.early_stopping and self._is_decided():
            self.alive = []
            return []
        return parents

    def _is_decided(self) -> bool:
        """Whether no live hypothesis can still enter the n best.

        Log P never rises as a hypothesis grows, and lp is monotone in the length, so the score that
        it ends with is at most log P / lp at its next length or at the limit, whichever is larger.
        """
        if not self.alive or len(self.ended) < self.config.n_best:
            return False
        nth_best = sorted((h.score for h in self.ended), reverse=True)[self.config.n_best - 1]
        tokens, log_p = self.alive[0]  # the best; the others are as long, and score no higher
        penalties = (length_penalty(n, self.config.alpha) for n in (len(tokens) + 1, self.limit))
        return nth_best >= max(log_p / penalty for penalty in penalties)

    def n_best(self) -> list[Hypothesis]:
        return ListAsTree(sorted(self.ended, key=lambda h: -h.score)[: self.config.n_best])


def beam_search(
    model: StepModel,
    source: Int[Tensor, "B S"],
    beam_size: int = 4,
    alpha: float = 0.6,
    n_best: int = 1,
    max_extra: int = 50,
    early_stopping: bool = True,
) -> list[list[Hypothesis]]:
    """For each sentence its `n_best` hypotheses, best first.

    The defaults are section 6.1's: beam 4, alpha 0.6, at most source length + 50 tokens.
    `early_stopping` ends a sentence once nothing alive can beat its n best, which never changes the
    result; a sentence leaves the batch when it ends. Fewer than `n_best` come back when there are
    no more. The host waits for a GPU once before the first step, and once in each, for the best
    candidates. Raises ConfigError for a beam below 1, an `n_best` outside 1 to beam_size, and where
    `greedy_search` does.

    >>> model, tokenizer = load_model("book/model")
    >>> source = torch.tensor([[*tokenizer.encode("I am hungry."), model.config.eos_id]])
    >>> [tokenizer.decode(h.tokens) for h in beam_search(model, source, n_best=2)[0]]
    ['Ich habe Hunger.', 'Ich bin hungrig.']
    """
    config = DecodeConfig(beam_size, alpha, n_best, max_extra)
    return search_beams(model, source, config, early_stopping)


@torch.inference_mode()
@without_cudnn_attention()
def search_beams(
    model: StepModel, source: Int[Tensor, "B S"], config: DecodeConfig, early_stopping: bool = True
) -> list[list[Hypothesis]]:
    """`beam_search` with its settings as a whole."""
    _require_searchable(model, source)
    beam_size = config.beam_size
    limits = _length_limits(model, source, config.max_extra)
    beams = [_Beam(config, limit, early_stopping) for limit in limits]
    running = list(range(len(beams)))
    state = model.start(source)
    tokens = source.new_full((len(beams), 1), model.config.bos_id)
    log_p_BW = torch.zeros(tokens.shape, device=source.device)
    while running:
        logits_BWV = model.step(tokens, state)
        precision = torch.promote_types(logits_BWV.dtype, torch.float32)
        log_p_BWV = logits_BWV.log_softmax(dim=-1, dtype=precision)
        if beam_size == 1:
            # Of equal logits argmax takes the first, as greedy search does; topk takes any.
            next_token = logits_BWV.argmax(dim=-1, keepdim=True)
            next_log_p = log_p_BWV.gather(-1, next_token)
        else:
            # First of each hypothesis, so that the second topk compares W^2 numbers and not W V. To
            # begin with the largest of each 64 gained too little (LOG.md, "The best candidates").
            next_log_p, next_token = log_p_BWV.topk(min(beam_size, log_p_BWV.size(-1)), dim=-1)
        n_next = next_token.size(-1)
        n_candidates = min(beam_size, next_token[0].numel())
        best_log_p, best = (next_log_p + log_p_BW[:, :, None]).flatten(1).topk(n_candidates, dim=-1)
        best_token = next_token.flatten(1).gather(1, best)
        parents: list[list[int]] = []
        going_on: list[int] = []
        # One tensor, so that the host waits for a GPU once.
        log_p = best_log_p.to(_exact(source.device))
        found = torch.stack([best // n_next, best_token, log_p], dim=-1)
        for row, found_in_row in enumerate(found.tolist()):
            candidates = [(int(i), int(v), p) for i, v, p in found_in_row if p > -math.inf]
            rows = beams[running[row]].extend(candidates, model.config.eos_id)
            if rows:
                parents.append(rows)
                going_on.append(row)
        if len(going_on) < len(running):
            running = [running[row] for row in going_on]
            state.keep(_on_device(going_on, torch.long, source.device))
        if running:
            alive = [beams[i].alive for i in running]
            parents_BW, tokens, log_p_BW = _next_inputs(parents, alive, source.device)
            state.reorder(parents_BW)
            log_p_BW = log_p_BW.to(precision)
    return [beam.n_best() for beam in beams]


def _next_inputs(
    parents: list[list[int]], alive: list[list[tuple[list[int], float]]], device: torch.device
) -> tuple[Int[Tensor, "running W"], Int[Tensor, "running W"], Float[Tensor, "running W"]]:
    """Parents, last tokens and log P of the live hypotheses.

    Where a sentence has fewer than another, the empty places have a log P of minus infinity.
    """
    width = max(map(len, parents))
    rows = []
    for parents_in_row, hypotheses in zip(parents, alive, strict=True):
        continued = zip(parents_in_row, hypotheses, strict=True)
        row = [(i, tokens[-1], log_p) for i, (tokens, log_p) in continued]
        rows.append(row + [(0, 0, -math.inf)] * (width - len(row)))
    parents_BW, tokens, log_p_BW = _on_device(rows, _exact(device), device).unbind(dim=-1)
    return parents_BW.long(), tokens.long(), log_p_BW


def _exact(device: torch.device) -> torch.dtype:
    """For ids beside log P. MPS has no float64, and float32 holds ids up to 2^24 exactly."""
    return torch.float32 if device.type == "mps" else torch.float64


def _on_device(values: list[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    return copied_to(device, torch.tensor(values, dtype=dtype))
