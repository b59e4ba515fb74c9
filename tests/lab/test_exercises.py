"""What a reader is told about an answer: right ones pass, usual mistakes get a sentence
of their own, none the answer.

The right answers below are written as a reader would write them, without the package.
"""

import copy
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

import pytest
import torch

from annotated_transformer.errors import ConfigError
from lab.exercises import EXERCISES, check
from lab.exercises.judging import Exercise, judge


def layer_norm(x, gain, bias, eps=1e-5):
    centered = x - x.mean(-1, keepdim=True)
    return gain * centered / torch.sqrt((centered**2).mean(-1, keepdim=True) + eps) + bias


def attention(q, k, v, mask=None):
    scores = torch.einsum("...ik,...jk->...ij", q, k) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = torch.where(mask, scores, -1e9)
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return torch.einsum("...ij,...jd->...id", weights, v)


def multi_head(x, memory, W_Q, W_K, W_V, W_O, h):
    projected = zip(
        (x @ W_Q).chunk(h, -1), (memory @ W_K).chunk(h, -1), (memory @ W_V).chunk(h, -1)
    )
    return torch.cat([attention(q, k, v) for q, k, v in projected], -1) @ W_O


def heads_by_view(x, memory, W_Q, W_K, W_V, W_O, h):
    q, k, v = (z.view(z.shape[0], h, z.shape[1], -1) for z in (x @ W_Q, memory @ W_K, memory @ W_V))
    return attention(q, k, v).transpose(1, 2).reshape(*x.shape[:2], -1) @ W_O


def positional_encoding(length, d_model):
    table = torch.zeros(length, d_model)
    for pos in range(length):
        for i in range(d_model // 2):
            angle = pos / 10000 ** (2 * i / d_model)
            table[pos, 2 * i], table[pos, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table


def encoding_with(exponent: Callable[[int], float], transposed: bool = False) -> Callable[..., Any]:
    """Column j has the angle pos / 10000^(exponent(j) / d_model)."""

    def encoding(length, d_model):
        rows = [
            [
                (math.cos if j % 2 else math.sin)(pos / 10000 ** (exponent(j) / d_model))
                for j in range(d_model)
            ]
            for pos in range(length)
        ]
        return torch.tensor(rows)[
            :, [*range(0, d_model, 2), *range(1, d_model, 2)] if transposed else slice(None)
        ]

    return encoding


def rotation(k, d_model):
    blocks = []
    for i in range(0, d_model, 2):
        w = k / 10000 ** (i / d_model)
        blocks.append(torch.tensor([[math.cos(w), math.sin(w)], [-math.sin(w), math.cos(w)]]))
    return torch.block_diag(*blocks)


def path_length(n, k, dilated):
    return next(m for m in count() if (k**m if dilated else 1 + m * (k - 1)) >= n)


def pair_counts(words, weigh=lambda n: n):
    return Counter(
        {
            pair: sum(weigh(n) * list(zip(word, word[1:])).count(pair) for word, n in words.items())
            for word in words
            for pair in zip(word, word[1:])
        }
    )


def most_frequent_pair(words):
    counts = pair_counts(words)
    return sorted(pair for pair in counts if counts[pair] == max(counts.values()))[0]


def merge(word, pair):
    left, *rest = word
    if rest and (left, rest[0]) == pair:
        return (left + rest[0], *(merge(tuple(rest[1:]), pair) if rest[1:] else ()))
    return (left, *(merge(tuple(rest), pair) if rest else ()))


def adam_step(w, g, m, v, step, rate, beta1, beta2, eps):
    """PyTorch's own Adam, its moments put in by hand."""
    weight = torch.nn.Parameter(w.clone())
    weight.grad = g.clone()
    adam = torch.optim.Adam([weight], lr=rate, betas=(beta1, beta2), eps=eps)
    adam.state[weight] = {
        "step": torch.tensor(step - 1.0),
        "exp_avg": m.clone(),
        "exp_avg_sq": v.clone(),
    }
    adam.step()
    return weight, adam.state[weight]["exp_avg"], adam.state[weight]["exp_avg_sq"]


def plain_adam(w, g, m, v, step, rate, beta1, beta2, eps):
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    return w - rate * m / (v.sqrt() + eps), m, v


def adam_eps_inside(w, g, m, v, step, rate, beta1, beta2, eps):
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    return w - rate * m / (1 - beta1**step) / (v / (1 - beta2**step) + eps).sqrt(), m, v


def smoothed(target, V, eps, pad_id):
    q = torch.full((*target.shape, V), eps / V)
    for b, t in torch.cartesian_prod(*map(torch.arange, target.shape)).tolist():
        q[b, t, target[b, t]] += 1 - eps
        q[b, t] *= target[b, t].item() != pad_id
    return q


def smoothed_harvard(target, V, eps, pad_id):
    q = torch.full((*target.shape, V), eps / (V - 2)).scatter(-1, target[..., None], 1 - eps)
    q[..., pad_id] = 0
    return q.masked_fill((target == pad_id)[..., None], 0)


def smoothed_loss(logits, target, eps, pad_id):
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1),
        target.flatten(),
        ignore_index=pad_id,
        label_smoothing=eps,
        reduction="sum",
    )


def beam_step(log_p, scores, beam_size):
    every = [
        (-(log_p[w, t] + scores[w]).item(), w, t)
        for w in range(len(log_p))
        for t in range(log_p.shape[1])
    ]
    best = sorted(every)[:beam_size]
    return (
        torch.tensor([w for _, w, _ in best]),
        torch.tensor([t for _, _, t in best]),
        torch.tensor([-s for s, _, _ in best]),
    )


def beam_without_scores(log_p, scores, beam_size):
    values, index = log_p.flatten().topk(beam_size)
    return index // log_p.shape[1], index % log_p.shape[1], values


def beam_cut_wrongly(log_p, scores, beam_size):
    values, index = (log_p + scores[:, None]).flatten().topk(beam_size)
    return index // len(scores), index % len(scores), values


def n_grams(tokens, n):
    return list(zip(*(tokens[i:] for i in range(n))))


def clipped_precision(hypothesis, reference, n):
    ours, theirs = n_grams(hypothesis, n), n_grams(reference, n)
    return sum(min(ours.count(gram), theirs.count(gram)) for gram in set(ours)) / len(ours)


def linearize(tree):
    if isinstance(tree, str):
        return [tree]
    return [f"({tree[0]}"] + sum(map(linearize, tree[1]), []) + [f"){tree[0]}"]


def without_brackets(tree):
    return (
        [tree]
        if isinstance(tree, str)
        else ["(" + tree[0], *sum(map(without_brackets, tree[1]), []), ")"]
    )


RIGHT = {
    "3.1": layer_norm,
    "3.1-add-norm": lambda x, sublayer, norm: norm(sublayer(x) + x),
    "3.2.1": attention,
    "3.2.2": multi_head,
    "3.2.3-causal": lambda length: torch.arange(length)[:, None] >= torch.arange(length)[None, :],
    "3.2.3-padding": lambda tokens, pad_id: tokens.ne(pad_id).unsqueeze(1).unsqueeze(1),
    "3.2-additive": lambda q, k, W_q, W_k, v: torch.stack(
        [torch.tanh(one @ W_q + k @ W_k) @ v for one in q]
    ),
    "3.3": lambda x, W_1, b_1, W_2, b_2: (x @ W_1 + b_1).clamp(min=0) @ W_2 + b_2,
    "3.4": lambda tokens, E: torch.nn.functional.embedding(tokens, E) * E.shape[1] ** 0.5,
    "3.5": positional_encoding,
    "3.5-rotation": rotation,
    "4": path_length,
    "5.1-pair": most_frequent_pair,
    "5.1-merge": merge,
    "5.1-shift": lambda target, bos_id, eos_id: ([bos_id] + target, target + [eos_id]),
    "5.3": lambda step, d_model, warmup_steps: (
        (step / warmup_steps if step < warmup_steps else math.sqrt(warmup_steps / step))
        / math.sqrt(d_model * warmup_steps)
    ),
    "5.3-adam": adam_step,
    "5.4": smoothed,
    "5.4-loss": smoothed_loss,
    "6.1-average": lambda weights: {
        name: sum(w[name] for w in weights) / len(weights) for name in weights[0]
    },
    "6.1-penalty": lambda length, alpha: math.exp(alpha * (math.log(5 + length) - math.log(6))),
    "6.1-beam": beam_step,
    "6.1-bleu": clipped_precision,
    "6.1-cost": lambda hours, n_gpus, flops_per_s: hours * 60 * 60 * n_gpus * flops_per_s,
    "6.3": linearize,
}

# Exercise, a usual wrong answer, words of its diagnosis.
WRONG: list[tuple[str, Callable[..., Any], str]] = [
    (
        "3.1",
        lambda x, gain, bias, eps=1e-5: (
            gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps) + bias
        ),
        "one less than the number",
    ),
    (
        "3.1",
        lambda x, gain, bias, eps=1e-5: (
            gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True, correction=0) + eps)
            + bias
        ),
        "wrong place",
    ),
    (
        "3.1",
        lambda x, gain, bias, eps=1e-5: (
            layer_norm(x.transpose(-2, -1), 1, 0, eps).transpose(-2, -1) * gain + bias
        ),
        "over the positions",
    ),
    (
        "3.1",
        lambda x, gain, bias, eps=1e-5: layer_norm(x, 1, 0, 0) * gain + bias,
        "what is eps for",
    ),
    ("3.1", lambda x, gain, bias: layer_norm(x, gain, bias), "raises TypeError"),
    ("3.1-add-norm", lambda x, sublayer, norm: x + sublayer(norm(x)), "pre-norm"),
    ("3.1-add-norm", lambda x, sublayer, norm: norm(sublayer(x)), "no residual"),
    (
        "3.2.1",
        lambda q, k, v, mask=None: attention(q * math.sqrt(q.shape[-1]), k, v, mask),
        "nothing scales",
    ),
    (
        "3.2.1",
        lambda q, k, v, mask=None: attention(q / math.sqrt(q.shape[-1]), k, v, mask),
        "too much",
    ),
    (
        "3.2.1",
        lambda q, k, v, mask=None: (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-2) @ v,
        "over the queries",
    ),
    (
        "3.2.1",
        lambda q, k, v, mask=None: attention(q, k, v, None if mask is None else ~mask),
        "upside down",
    ),
    ("3.2.1", lambda q, k, v, mask=None: attention(q, k, v), "you do not use it"),
    (
        "3.2.1",
        lambda q, k, v, mask=None: (q @ k.mT).sigmoid() @ v,
        "sum to 1 over the keys; yours do not",
    ),
    ("3.2.1", lambda q, k, v, mask=None: attention(q, k, v[..., :1], mask), "shape"),
    ("3.2.2", heads_by_view, "cut out of the positions"),
    ("3.2.2", lambda x, memory, *rest: multi_head(x, x, *rest), "memory is not used"),
    (
        "3.2.2",
        lambda x, memory, W_Q, W_K, W_V, W_O, h: multi_head(
            x, memory, W_Q, W_K, W_V, torch.eye(len(W_O)), h
        ),
        "raises RuntimeError",
    ),
    (
        "3.2.2",
        lambda x, memory, W_Q, W_K, W_V, W_O, h: multi_head(x, memory, W_Q, W_K, W_V, W_O, 1),
        "attend once",
    ),
    ("3.2.3-causal", lambda length: torch.ones(length, length).bool().triu(), "Rows and columns"),
    ("3.2.3-causal", lambda length: torch.ones(length, length).tril(), "holds numbers"),
    ("3.2.3-causal", lambda length: torch.ones(length, length).bool().triu(1), "upside down"),
    (
        "3.2.3-causal",
        lambda length: torch.ones(length, length).bool().tril(-1),
        "does not see itself",
    ),
    ("3.2.3-padding", lambda tokens, pad_id: tokens == pad_id, "shape (3, 1, 1, 5)"),
    ("3.2.3-padding", lambda tokens, pad_id: tokens != pad_id, "broadcast"),
    ("3.2.3-padding", lambda tokens, pad_id: (tokens == pad_id)[:, None, None], "upside down"),
    ("3.2.3-padding", lambda tokens, pad_id: (tokens > 0)[:, None, None], "only there"),
    (
        "3.2-additive",
        lambda q, k, W_q, W_k, v: torch.tanh(q @ W_q + k @ W_k) @ v,
        "Query 0 meets key 0 only",
    ),
    (
        "3.2-additive",
        lambda q, k, W_q, W_k, v: torch.tanh((q @ W_q)[None] + (k @ W_k)[:, None]) @ v,
        "exchanged",
    ),
    ("3.3", lambda x, W_1, b_1, W_2, b_2: (x @ W_1 + b_1) @ W_2 + b_2, "one linear map"),
    (
        "3.3",
        lambda x, W_1, b_1, W_2, b_2: ((x @ W_1 + b_1).relu() @ W_2 + b_2).relu(),
        "once too often",
    ),
    (
        "3.3",
        lambda x, W_1, b_1, W_2, b_2: (x @ W_1.T + b_1).relu() @ W_2 + b_2,
        "raises RuntimeError",
    ),
    ("3.4", lambda tokens, E: E[tokens], "as they are"),
    ("3.4", lambda tokens, E: E[tokens] * math.sqrt(len(E)), "size of the vocabulary"),
    ("3.5", encoding_with(lambda j: j // 2), "too slowly"),
    ("3.5", encoding_with(lambda j: 2 * j), "which grow too fast"),
    ("3.5", encoding_with(lambda j: 4 * (j // 2)), "doubled"),
    ("3.5", encoding_with(lambda j: 2 * (j // 2), transposed=True), "first half"),
    ("3.5", lambda length, d_model: positional_encoding(length + 1, d_model)[1:], "from 1"),
    ("3.5-rotation", lambda k, d_model: rotation(-k, d_model), "backwards"),
    ("3.5-rotation", lambda k, d_model: rotation(1, d_model), "whatever k is"),
    ("3.5-rotation", lambda k, d_model: 2 * rotation(k, d_model), "PE[0] does not lead to PE[0]"),
    (
        "4",
        lambda n, k, dilated: (
            math.ceil(math.log(n) / math.log(k)) if dilated else math.ceil((n - 1) / (k - 1))
        ),
        "floats are rounded",
    ),
    ("4", lambda n, k, dilated: path_length(n, k, False), "as if it were contiguous"),
    (
        "4",
        lambda n, k, dilated: path_length(n, k, dilated) if dilated else math.ceil(n / k),
        "overlaps",
    ),
    (
        "5.1-pair",
        lambda words: min(pair_counts(words, bool).items(), key=lambda item: (-item[1], item[0]))[
            0
        ],
        "each word once",
    ),
    ("5.1-pair", lambda words: pair_counts(words).most_common(1)[0][0], "met first"),
    ("5.1-pair", lambda words: "".join(most_frequent_pair(words)), "glued"),
    ("5.1-merge", lambda word, pair: list(merge(word, pair)), "in a list"),
    (
        "5.1-merge",
        lambda word, pair: tuple(" ".join(word).replace(" ".join(pair), "".join(pair)).split(" ")),
        "only ends like",
    ),
    (
        "5.1-shift",
        lambda target, bos_id, eos_id: (target + [eos_id], [bos_id] + target),
        "changed places",
    ),
    (
        "5.1-shift",
        lambda target, bos_id, eos_id: ([bos_id] + target[:-1], target),
        "Nobody learns to stop",
    ),
    (
        "5.1-shift",
        lambda target, bos_id, eos_id: (target.insert(0, bos_id), target),
        "changes its argument target",
    ),
    (
        "5.3",
        lambda step, d_model, w: d_model**-0.5 * max(step**-0.5, step * w**-1.5),
        "which of the two terms",
    ),
    ("5.3", lambda step, d_model, w: min(step**-0.5, step * w**-1.5), "depend on d_model"),
    (
        "5.3",
        lambda step, d_model, w: d_model**-0.5 * min((step + 1) ** -0.5, (step + 1) * w**-1.5),
        "from 0",
    ),
    ("5.3-adam", plain_adam, "nothing makes up for it"),
    ("5.3-adam", adam_eps_inside, "under the root"),
    ("5.3-adam", lambda w, g, m, v, *rest: (w.sub_(g), m, v), "changes its argument w"),
    ("5.4", smoothed_harvard, "true token and padding"),
    (
        "5.4",
        lambda target, V, eps, pad_id: smoothed(target, V, eps, -1),
        "padding has a distribution",
    ),
    ("5.4", lambda target, V, eps, pad_id: smoothed(target, V, eps, pad_id) * 0.5, "sums to 0.5"),
    (
        "5.4-loss",
        lambda logits, target, eps, pad_id: torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), target.flatten(), ignore_index=pad_id, label_smoothing=eps
        ),
        "mean over the tokens",
    ),
    (
        "5.4-loss",
        lambda logits, target, eps, pad_id: smoothed_loss(logits, target, eps, -1),
        "Padding adds",
    ),
    (
        "6.1-average",
        lambda weights: {name: sum(w[name] for w in weights) for name in weights[0]},
        "the sum",
    ),
    ("6.1-average", lambda weights: weights[-1], "last of the models"),
    ("6.1-average", lambda weights: [w["W"] for w in weights], "must be a dict"),
    ("6.1-penalty", lambda length, alpha: ((6 + length) / 6) ** alpha, "of length 1 is to be 1"),
    ("6.1-penalty", lambda length, alpha: (6 / (5 + length)) ** alpha, "turned round"),
    ("6.1-beam", beam_without_scores, "next tokens only"),
    ("6.1-beam", beam_cut_wrongly, "cut by the beam"),
    (
        "6.1-bleu",
        lambda hypothesis, reference, n: (
            sum(gram in n_grams(reference, n) for gram in n_grams(hypothesis, n))
            / len(n_grams(hypothesis, n))
        ),
        "repeated seven times",
    ),
    (
        "6.1-bleu",
        lambda hypothesis, reference, n: clipped_precision(reference, hypothesis, n),
        "recall",
    ),
    ("6.1-cost", lambda hours, n_gpus, flops_per_s: hours * n_gpus * flops_per_s, "per second"),
    ("6.1-cost", lambda hours, n_gpus, flops_per_s: hours * 3600 * flops_per_s, "one of the GPUs"),
    ("6.3", without_brackets, "bare"),
    ("6.3", lambda tree: " ".join(linearize(tree)), "one string"),
]


@cache
def task(exercise: str) -> Exercise:
    return EXERCISES[exercise]()


each_exercise = pytest.mark.parametrize("exercise", EXERCISES)
each_wrong = pytest.mark.parametrize(
    ("exercise", "answer", "words"),
    WRONG,
    ids=[f"{exercise}: {words}" for exercise, _, words in WRONG],
)


@each_exercise
def test_an_answer_without_the_package_is_right(
    exercise: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(exercise, RIGHT[exercise]) is None
    assert capsys.readouterr().out == f"{exercise}: right.\n"


@pytest.mark.slow
@each_wrong
def test_a_usual_mistake_is_named(
    exercise: str, answer: Callable[..., Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(exercise, answer)
    line, rest = capsys.readouterr().out.split("\n", 1)
    assert line.startswith(f"{exercise}: not yet. ") and words in line and rest == ""


@pytest.mark.slow
@each_exercise
def test_there_are_two_mistakes_to_each_exercise(exercise: str) -> None:
    sentences = {judge(task(exercise), answer) for other, answer, _ in WRONG if other == exercise}
    assert len(sentences) >= 2 and None not in sentences


@pytest.mark.slow
@each_exercise
def test_each_known_mistake_has_its_own_sentence(exercise: str) -> None:
    known = task(exercise).mistakes
    assert {sentence: judge(task(exercise), wrong) for sentence, wrong in known.items()} == {
        s: s for s in known
    }


@pytest.mark.slow
@each_exercise
def test_a_diagnosis_is_a_sentence_and_not_the_answer(exercise: str) -> None:
    """Our sentences hold no code or formula, and what is said of a strange answer holds
    no number of the right one."""
    for sentence in task(exercise).mistakes:
        assert sentence[0].isupper() or sentence.startswith(("eps", "alpha", "beta1"))
        assert sentence[-1] in ".?" and "\n" not in sentence
        assert not re.search(
            r"\*\*|==|!=|\w\(|torch|tril|arange|sqrt|unsqueeze|None| / [0-9(]", sentence
        ), sentence
    for arguments in task(exercise).cases.values():
        result = task(exercise).right(*copy.deepcopy(arguments))
        for strange in (
            lambda *_: object(),
            lambda *_: 123.456,
            lambda *_, result=result: spoiled(result),
        ):
            diagnosis = judge(task(exercise), strange)
            assert diagnosis and not any(number in diagnosis for number in decimals(result)), (
                diagnosis
            )


def spoiled(result: Any) -> Any:
    """Something of the same kind, with other contents."""
    if isinstance(result, torch.Tensor):
        return ~result if result.dtype == torch.bool else result + 1
    if isinstance(result, dict):
        return {name: spoiled(part) for name, part in result.items()}
    if isinstance(result, (list, tuple)):
        return type(result)(map(spoiled, result))
    return result + (" and more" if isinstance(result, str) else 1)


def decimals(result: Any) -> list[str]:
    if isinstance(result, torch.Tensor):
        result = result.flatten().tolist()
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        return [number for part in result for number in decimals(part)]
    return [f"{result:.4f}"] if isinstance(result, float) and round(result, 4) % 1 else []


def test_what_fails_in_an_answer_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(step: int, d_model: int, warmup_steps: int) -> float:
        raise ValueError("a line.\nand another")

    check("5.3", broken)
    line = "5.3: not yet. At step 4000, your function raises ValueError: a line.\n"
    assert capsys.readouterr().out == line
    check("3.2.1", lambda q, k, v, mask=None: q @ k)
    line, rest = capsys.readouterr().out.split("\n", 1)
    assert line.startswith(
        "3.2.1: not yet. With the identity matrix as values, your function raises RuntimeError: "
    )
    assert rest == ""


def test_ctrl_c_is_not_an_answer() -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("5.3", interrupted)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (3.5, "Hand over the function itself, without calling it; this is a float."),
        (
            None,
            "Hand over the function itself, without calling it; this is nothing (is there a "
            "return?).",
        ),
        (lambda *_: None, "the result must be a tensor, yours is nothing (is there a return?)"),
        (lambda *_: [1.0], "the result must be a tensor, yours is a list"),
        (lambda length: torch.ones(length), "the result must have shape (5, 5), yours has (5,)"),
    ],
)
def test_types_and_shapes_come_first(answer: Any, words: str) -> None:
    assert words in (judge(task("3.2.3-causal"), answer) or "")


def test_one_mistake_is_named_although_there_is_a_second() -> None:
    """Neither the scale nor the mask: the first case that fails tells about the scale."""
    answer: Callable[..., Any] = lambda q, k, v, mask=None: (q @ k.mT).softmax(-1) @ v  # noqa: E731
    assert "nothing scales" in (judge(task("3.2.1"), answer) or "")


def test_what_is_right_is_said_beside_what_is_wrong() -> None:
    def without_batch(x, W_1, b_1, W_2, b_2):
        return RIGHT["3.3"](x, W_1, b_1, W_2, b_2) if x.dim() == 2 else 7 * x

    assert judge(task("3.3"), without_batch) == (
        "With a batch, the result has the right shape and wrong numbers (with one sentence, it is "
        "right)."
    )


def test_an_answer_may_be_a_module_with_gradients() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, tokens: torch.Tensor, E: torch.Tensor) -> torch.Tensor:
            return E.clone().requires_grad_()[tokens] * math.sqrt(E.size(1))

    assert judge(task("3.4"), Scaled()) is None


def test_an_unknown_exercise_is_refused_by_a_list_of_the_known() -> None:
    with pytest.raises(
        ConfigError, match=r"no exercise '3.9'; there are 3.1, 3.1-add-norm, 3.2-additive, 3.2.1"
    ):
        check("3.9", print)


@pytest.mark.slow
def test_a_check_prints_its_line_and_leaves_random_numbers_alone() -> None:
    """In a process of its own, since the shape checks of this one draw
    random numbers themselves."""
    code = """
import random, torch
from lab.exercises import EXERCISES, check
states = random.getstate(), torch.get_rng_state()
check('6.1-cost', lambda hours, n_gpus, flops_per_s: hours * 3600 * n_gpus * flops_per_s)
check('3.4', lambda tokens, E: E[tokens])
for exercise in EXERCISES.values():
    exercise()
assert random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "6.1-cost: right.",
        "3.4: not yet. These are rows of E as they are; section 3.4 does something to them.",
    ]
    assert done.stderr == ""
