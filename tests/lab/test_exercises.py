"""What a reader is told about an answer: right ones pass, usual mistakes get a sentence
of their own, none the answer.

The right answers below are written as a reader would write them, without the package.
"""

import copy
import math
import re
from collections import Counter
from functools import cache
from itertools import count, product

import pytest
import torch

from annotated_transformer.errors import ConfigError
from lab.exercises import EXERCISES, check
from lab.exercises.judging import judge
from toys import printed_by


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
    heads = zip(*(z.chunk(h, -1) for z in (x @ W_Q, memory @ W_K, memory @ W_V)))
    return torch.cat([attention(q, k, v) for q, k, v in heads], -1) @ W_O


def heads_by_view(x, memory, W_Q, W_K, W_V, W_O, h):
    q, k, v = (z.view(z.shape[0], h, z.shape[1], -1) for z in (x @ W_Q, memory @ W_K, memory @ W_V))
    return attention(q, k, v).transpose(1, 2).reshape(*x.shape[:2], -1) @ W_O


def encoding_with(exponent):
    """Column j has the angle pos / 10000^(exponent(j) / d_model)."""

    def encoding(length, d_model):
        rates = torch.tensor([10000 ** (-exponent(j) / d_model) for j in range(d_model)])
        angles = torch.arange(length)[:, None] * rates
        return torch.where(torch.arange(d_model) % 2 == 0, angles.sin(), angles.cos())

    return encoding


positional_encoding = encoding_with(lambda j: j - j % 2)


def rotation(k, d_model):
    blocks = []
    for i in range(0, d_model, 2):
        w = k / 10000 ** (i / d_model)
        blocks.append(torch.tensor([[math.cos(w), math.sin(w)], [-math.sin(w), math.cos(w)]]))
    return torch.block_diag(*blocks)


def path_length(n, k, dilated):
    return next(m for m in count() if (k**m if dilated else 1 + m * (k - 1)) >= n)


def pair_counts(words, weigh=lambda n: n):
    counts = Counter()
    for word, n in words.items():
        for pair in zip(word, word[1:]):
            counts[pair] += weigh(n)
    return counts


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


def smoothed_loss(logits, target, eps, pad_id, reduction="sum"):
    of_tokens = logits.flatten(0, 1), target.flatten()
    settings = {"ignore_index": pad_id, "label_smoothing": eps, "reduction": reduction}
    return torch.nn.functional.cross_entropy(*of_tokens, **settings)


def beam_step(log_p, scores, beam_size):
    places = product(*map(range, log_p.shape))
    best = sorted((-(log_p[w, t] + scores[w]).item(), w, t) for w, t in places)[:beam_size]
    negative, w, t = map(torch.tensor, zip(*best))
    return w, t, -negative


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
    return [")" if token.startswith(")") else token for token in linearize(tree)]


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

# By exercise: words of a diagnosis, and a usual wrong answer that gets it.
WRONG = {
    "3.1": {
        "one less than the number": lambda x, gain, bias, eps=1e-5: (
            gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps) + bias
        ),
        "wrong place": lambda x, gain, bias, eps=1e-5: (
            gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True, correction=0) + eps)
            + bias
        ),
        "over the positions": lambda x, gain, bias, eps=1e-5: (
            layer_norm(x.transpose(-2, -1), 1, 0, eps).transpose(-2, -1) * gain + bias
        ),
        "what is eps for": lambda x, gain, bias, eps=1e-5: layer_norm(x, 1, 0, 0) * gain + bias,
        "raises TypeError": lambda x, gain, bias: layer_norm(x, gain, bias),
    },
    "3.1-add-norm": {
        "pre-norm": lambda x, sublayer, norm: x + sublayer(norm(x)),
        "no residual": lambda x, sublayer, norm: norm(sublayer(x)),
    },
    "3.2.1": {
        "nothing scales": lambda q, *rest: attention(q * math.sqrt(q.shape[-1]), *rest),
        "too much": lambda q, *rest: attention(q / math.sqrt(q.shape[-1]), *rest),
        "over the queries": lambda q, k, v, mask=None: (
            (q @ k.mT / k.shape[-1] ** 0.5).softmax(-2) @ v
        ),
        "upside down": lambda q, k, v, mask=None: attention(
            q, k, v, None if mask is None else ~mask
        ),
        "you do not use it": lambda q, k, v, mask=None: attention(q, k, v),
        "sum to 1 over the keys; yours do not": lambda q, k, v, mask=None: (q @ k.mT).sigmoid() @ v,
        "shape": lambda q, k, v, mask=None: attention(q, k, v[..., :1], mask),
    },
    "3.2.2": {
        "cut out of the positions": heads_by_view,
        "memory is not used": lambda x, memory, *rest: multi_head(x, x, *rest),
        "raises RuntimeError": lambda *given: multi_head(*given[:5], torch.eye(12), given[6]),
        "attend once": lambda *given: multi_head(*given[:6], 1),
    },
    "3.2.3-causal": {
        "Rows and columns": lambda length: torch.ones(length, length).bool().triu(),
        "holds numbers": lambda length: torch.ones(length, length).tril(),
        "upside down": lambda length: torch.ones(length, length).bool().triu(1),
        "does not see itself": lambda length: torch.ones(length, length).bool().tril(-1),
    },
    "3.2.3-padding": {
        "shape (3, 1, 1, 5)": lambda tokens, pad_id: tokens == pad_id,
        "broadcast": lambda tokens, pad_id: tokens != pad_id,
        "upside down": lambda tokens, pad_id: (tokens == pad_id)[:, None, None],
        "only there": lambda tokens, pad_id: (tokens > 0)[:, None, None],
    },
    "3.2-additive": {
        "Query 0 meets key 0 only": lambda q, k, W_q, W_k, v: torch.tanh(q @ W_q + k @ W_k) @ v,
        "exchanged": lambda q, k, W_q, W_k, v: torch.tanh((q @ W_q)[None] + (k @ W_k)[:, None]) @ v,
    },
    "3.3": {
        "one linear map": lambda x, W_1, b_1, W_2, b_2: (x @ W_1 + b_1) @ W_2 + b_2,
        "once too often": lambda x, W_1, b_1, W_2, b_2: ((x @ W_1 + b_1).relu() @ W_2 + b_2).relu(),
        "raises RuntimeError": lambda x, W_1, b_1, W_2, b_2: (x @ W_1.T + b_1).relu() @ W_2 + b_2,
    },
    "3.4": {
        "as they are": lambda tokens, E: E[tokens],
        "size of the vocabulary": lambda tokens, E: E[tokens] * math.sqrt(len(E)),
    },
    "3.5": {
        "too slowly": encoding_with(lambda j: j // 2),
        "which grow too fast": encoding_with(lambda j: 2 * j),
        "doubled": encoding_with(lambda j: 4 * (j // 2)),
        "first half": lambda length, d_model: torch.cat(
            [positional_encoding(length, d_model)[:, i::2] for i in (0, 1)], -1
        ),
        "from 1": lambda length, d_model: positional_encoding(length + 1, d_model)[1:],
    },
    "3.5-rotation": {
        "backwards": lambda k, d_model: rotation(-k, d_model),
        "whatever k is": lambda k, d_model: rotation(1, d_model),
        "PE[0] does not lead to PE[0]": lambda k, d_model: 2 * rotation(k, d_model),
    },
    "4": {
        "floats are rounded": lambda n, k, dilated: (
            math.ceil(math.log(n) / math.log(k)) if dilated else math.ceil((n - 1) / (k - 1))
        ),
        "as if it were contiguous": lambda n, k, dilated: path_length(n, k, False),
        "overlaps": lambda n, k, dilated: path_length(n, k, True) if dilated else math.ceil(n / k),
    },
    "5.1-pair": {
        "each word once": lambda words: min(
            pair_counts(words, bool).items(), key=lambda item: (-item[1], item[0])
        )[0],
        "met first": lambda words: pair_counts(words).most_common(1)[0][0],
        "glued": lambda words: "".join(most_frequent_pair(words)),
    },
    "5.1-merge": {
        "in a list": lambda word, pair: list(merge(word, pair)),
        "only ends like": lambda word, pair: tuple(
            " ".join(word).replace(" ".join(pair), "".join(pair)).split(" ")
        ),
    },
    "5.1-shift": {
        "changed places": lambda target, bos_id, eos_id: (target + [eos_id], [bos_id] + target),
        "Nobody learns to stop": lambda target, bos_id, eos_id: ([bos_id] + target[:-1], target),
        "changes its argument target": lambda target, bos_id, eos_id: (
            target.insert(0, bos_id),
            target,
        ),
    },
    "5.3": {
        "which of the two terms": lambda step, d_model, w: (
            d_model**-0.5 * max(step**-0.5, step * w**-1.5)
        ),
        "depend on d_model": lambda step, d_model, w: min(step**-0.5, step * w**-1.5),
        "from 0": lambda step, *sizes: RIGHT["5.3"](step + 1, *sizes),
    },
    "5.3-adam": {
        "nothing makes up for it": plain_adam,
        "under the root": adam_eps_inside,
        "changes its argument w": lambda w, g, m, v, *rest: (w.sub_(g), m, v),
    },
    "5.4": {
        "true token and padding": smoothed_harvard,
        "padding has a distribution": lambda target, V, eps, pad_id: smoothed(target, V, eps, -1),
        "sums to 0.5": lambda target, V, eps, pad_id: smoothed(target, V, eps, pad_id) * 0.5,
    },
    "5.4-loss": {
        "mean over the tokens": lambda *given: smoothed_loss(*given, "mean"),
        "Padding adds": lambda logits, target, eps, pad_id: smoothed_loss(logits, target, eps, -1),
    },
    "6.1-average": {
        "the sum": lambda weights: {name: sum(w[name] for w in weights) for name in weights[0]},
        "last of the models": lambda weights: weights[-1],
        "must be a dict": lambda weights: [w["W"] for w in weights],
    },
    "6.1-penalty": {
        "of length 1 is to be 1": lambda length, alpha: ((6 + length) / 6) ** alpha,
        "turned round": lambda length, alpha: (6 / (5 + length)) ** alpha,
    },
    "6.1-beam": {"next tokens only": beam_without_scores, "cut by the beam": beam_cut_wrongly},
    "6.1-bleu": {
        "repeated seven times": lambda hypothesis, reference, n: (
            sum(gram in n_grams(reference, n) for gram in n_grams(hypothesis, n))
            / len(n_grams(hypothesis, n))
        ),
        "recall": lambda hypothesis, reference, n: clipped_precision(reference, hypothesis, n),
    },
    "6.1-cost": {
        "per second": lambda hours, n_gpus, flops_per_s: hours * n_gpus * flops_per_s,
        "one of the GPUs": lambda hours, n_gpus, flops_per_s: hours * 3600 * flops_per_s,
    },
    "6.3": {"bare": without_brackets, "one string": lambda tree: " ".join(linearize(tree))},
}


@cache
def task(exercise):
    return EXERCISES[exercise]()


each_exercise = pytest.mark.parametrize("exercise", EXERCISES)


@each_exercise
def test_an_answer_without_the_package_is_right(exercise, capsys):
    assert check(exercise, RIGHT[exercise])
    assert capsys.readouterr().out == f"{exercise}: right.\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exercise", "words"), [(exercise, words) for exercise in WRONG for words in WRONG[exercise]]
)
def test_a_usual_mistake_is_named(exercise, words, capsys):
    check(exercise, WRONG[exercise][words])
    line, rest = capsys.readouterr().out.split("\n", 1)
    assert line.startswith(f"{exercise}: not yet. ") and words in line and rest == ""


@pytest.mark.slow
@each_exercise
def test_each_known_mistake_has_its_own_sentence(exercise):
    for sentence, wrong in task(exercise).mistakes.items():
        assert judge(task(exercise), wrong) == sentence


@pytest.mark.slow
@each_exercise
def test_a_diagnosis_is_a_sentence_and_not_the_answer(exercise):
    """Our sentences hold no code or formula, and what is said of a strange answer holds
    no number of the right one."""
    for sentence in task(exercise).mistakes:
        assert re.match("[A-Z]|eps|alpha|beta1", sentence)
        assert sentence[-1] in ".?" and "\n" not in sentence
        assert not re.search(
            r"\*\*|==|!=|\w\(|torch|tril|arange|sqrt|unsqueeze|None| / [0-9(]", sentence
        ), sentence
    for arguments in task(exercise).cases.values():
        result = task(exercise).right(*copy.deepcopy(arguments))
        for strange in (object(), 123.456, spoiled(result)):
            diagnosis = judge(task(exercise), lambda *_, strange=strange: strange)
            assert diagnosis
            assert not [number for number in decimals(result) if number in diagnosis], diagnosis


def spoiled(result):
    """Something of the same kind, with other contents."""
    if isinstance(result, torch.Tensor):
        return ~result if result.dtype == torch.bool else result + 1
    if isinstance(result, dict):
        return {name: spoiled(part) for name, part in result.items()}
    if isinstance(result, (list, tuple)):
        return type(result)(map(spoiled, result))
    return result + (" and more" if isinstance(result, str) else 1)


def decimals(result):
    if isinstance(result, torch.Tensor):
        result = result.flatten().tolist()
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        return [number for part in result for number in decimals(part)]
    return [f"{result:.4f}"] if isinstance(result, float) and round(result, 4) % 1 else []


def test_what_fails_in_an_answer_is_told_in_one_line(capsys):
    def broken(step, d_model, warmup_steps):
        raise ValueError("a line.\nand another")

    check("5.3", broken)
    line = "5.3: not yet. At step 4000, your function raises ValueError: a line.\n"
    assert capsys.readouterr().out == line
    check("3.2.1", lambda q, k, v, mask=None: q @ k)
    line, rest = capsys.readouterr().out.split("\n", 1)
    case = "With the identity matrix as values"
    assert line.startswith(f"3.2.1: not yet. {case}, your function raises RuntimeError: ")
    assert rest == ""


def test_ctrl_c_is_not_an_answer():
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("5.3", interrupted)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (3.5, "Hand over the function itself, without calling it; this is a float."),
        (None, "function itself, without calling it; this is nothing (is there a return?)."),
        (lambda *_: None, "the result must be a tensor, yours is nothing (is there a return?)"),
        (lambda *_: [1.0], "the result must be a tensor, yours is a list"),
        (lambda length: torch.ones(length), "the result must have shape (5, 5), yours has (5,)"),
    ],
)
def test_types_and_shapes_come_first(answer, words):
    assert words in (judge(task("3.2.3-causal"), answer) or "")


def test_one_mistake_is_named_although_there_is_a_second():
    """Neither the scale nor the mask: the first case that fails tells about the scale."""
    diagnosis = judge(task("3.2.1"), lambda q, k, v, mask=None: (q @ k.mT).softmax(-1) @ v)
    assert "nothing scales" in diagnosis


def test_what_is_right_is_said_beside_what_is_wrong():
    def without_batch(x, W_1, b_1, W_2, b_2):
        return RIGHT["3.3"](x, W_1, b_1, W_2, b_2) if x.dim() == 2 else 7 * x

    wrong = "With a batch, the result has the right shape and wrong numbers"
    assert judge(task("3.3"), without_batch) == f"{wrong} (with one sentence, it is right)."


def test_an_answer_may_be_a_module_with_gradients():
    class Scaled(torch.nn.Module):
        def forward(self, tokens, E):
            return E.clone().requires_grad_()[tokens] * math.sqrt(E.size(1))

    assert judge(task("3.4"), Scaled()) is None


def test_an_unknown_exercise_is_refused_by_a_list_of_the_known():
    known = "3.1, 3.1-add-norm, 3.2-additive, 3.2.1"
    with pytest.raises(ConfigError, match=f"no exercise '3.9'; there are {known}"):
        check("3.9", print)


@pytest.mark.slow
def test_a_check_prints_its_line_and_leaves_random_numbers_alone():
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
    assert printed_by(code).splitlines() == [
        "6.1-cost: right.",
        "3.4: not yet. These are rows of E as they are; section 3.4 does something to them.",
    ]


def test_a_verdict_is_returned_and_shows_nothing_of_its_own(capsys):
    """A cell that ends with `check` shows its one line alone."""
    right, wrong = check("3.2.1", attention), check("3.2.1", lambda q, k, v, mask=None: v)
    assert right and not wrong and wrong.diagnosis and right.exercise == "3.2.1"
    assert capsys.readouterr().out == f"{right}\n{wrong}\n"
    assert wrong._ipython_display_() is None and capsys.readouterr().out == ""
    with pytest.raises(AssertionError, match=r"3\.2\.1: not yet\. "):
        check("3.2.1", lambda q, k, v, mask=None: v, strict=True)
    assert check("3.2.1", attention, strict=True)


def test_check_lists_its_exercises_and_asks_for_an_answer():
    assert check() == sorted(EXERCISES)
    with pytest.raises(ConfigError, match=r"give your function too: check\('3.3', function\)"):
        check("3.3")
