"""The exercises on optimizer and loss (sections 5.3 and 5.4), as in `on_attention`."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from annotated_transformer.training.loss import label_smoothed_cross_entropy
from annotated_transformer.training.optimizer import noam_learning_rate
from lab.exercises.judging import Exercise, Function, exercise, normal


@exercise("5.3")
def _noam() -> Exercise:
    def variant(
        width: Function = lambda d: d**-0.5,
        choose: Function = min,
        rise: Function = lambda w: w**-1.5,
        late: int = 0,
    ) -> Function:
        def noam(step: int, d_model: int, warmup_steps: int) -> float:
            step -= late
            return width(d_model) * choose(step**-0.5, step * rise(warmup_steps))

        return noam

    cases = {f"at step {step}": (step, 512, 4000) for step in (4000, 1, 100, 20_000)}
    return Exercise(
        noam_learning_rate,
        {**cases, "with d_model 64 and 10 warm-up steps": (7, 64, 10)},
        {
            "Your rate at step 4000 is right, at step 1 it is not: "
            "which of the two terms is the smaller?": variant(choose=max),
            "It does not depend on d_model.": variant(lambda d: 1.0),
            "In the paper a wider model gets a smaller rate, in yours a larger one.": variant(
                lambda d: d**0.5
            ),
            "It depends on d_model too strongly: look at the exponent.": variant(lambda d: 1 / d),
            "The rate only falls: where is the warm-up?": variant(choose=lambda fall, rise: fall),
            "The rate only grows: what happens after the warm-up?": variant(
                choose=lambda fall, rise: rise
            ),
            "You add the two terms; one of them is to be chosen.": variant(
                choose=lambda fall, rise: fall + rise
            ),
            "You count steps from 0; the step that comes in is counted from 1.": variant(late=-1),
            "You are one step behind: the first step is 1.": variant(late=1),
            "At the last warm-up step your two terms differ: "
            "look at the exponent of warmup_steps.": variant(rise=lambda w: w**-0.5),
            "At the last warm-up step your two terms differ: "
            "is the power of warmup_steps high enough?": variant(rise=lambda w: 1 / w),
        },
    )


@exercise("5.3-adam")
def _adam_step() -> Exercise:
    def variant(
        correct: Function = lambda beta, step: 1 - beta**step,
        divide: Function = lambda v, eps: v.sqrt() + eps,
        square: Function = torch.square,
        new: Function = lambda beta: 1 - beta,
        swap: bool = False,
        keep: bool = True,
        sign: int = -1,
    ) -> Function:
        def adam_step(
            w: Tensor,
            g: Tensor,
            m: Tensor,
            v: Tensor,
            step: int,
            rate: float,
            beta1: float,
            beta2: float,
            eps: float,
        ) -> tuple[Tensor, Tensor, Tensor]:
            one, two = (beta2, beta1) if swap else (beta1, beta2)
            m, v = one * m + new(one) * g, two * v + new(two) * square(g)
            m_hat, v_hat = m / correct(one, step), v / correct(two, step)
            moments = (m, v) if keep else (m_hat, v_hat)
            return w + sign * rate * m_hat / divide(v_hat, eps), *moments

        return adam_step

    draw = normal()
    zeros = torch.zeros(5, dtype=torch.float64)
    numbers = 0.1, 0.9, 0.98, 1e-2
    return Exercise(
        variant(),
        {
            "at step 1": (draw(5), draw(5), zeros, zeros, 1, *numbers),
            "at step 7": (draw(5), draw(5), 0.3 * draw(5), draw(5) ** 2, 7, *numbers),
            "with a matrix": (draw(2, 3), draw(2, 3), draw(2, 3), draw(2, 3) ** 2, 3, *numbers),
        },
        {
            "The moments are right and the weights are not: moments that begin at 0 are too small "
            "at first, and nothing makes up for it.": variant(lambda beta, step: 1.0),
            "The weights are right, but you return corrected moments; "
            "what the next step continues is not corrected.": variant(keep=False),
            "eps stands under the root.": variant(divide=lambda v, eps: (v + eps).sqrt()),
            "eps is missing.": variant(divide=lambda v, eps: v.sqrt()),
            "You divide by the second moment itself, "
            "whose unit is that of a squared gradient.": variant(divide=lambda v, eps: v + eps),
            "beta1 and beta2 have changed places.": variant(swap=True),
            "Your second moment can become negative: of what is it the mean?": variant(
                square=lambda g: g, divide=lambda v, eps: v.abs().sqrt() + eps
            ),
            "The new gradient enters the mean with its full weight: "
            "the two weights of a mean sum to 1.": variant(new=lambda beta: 1.0),
            "The step goes uphill.": variant(sign=1),
            "Your correction is that of the next step: the first step is 1.": variant(
                lambda beta, step: 1 - beta ** (step + 1)
            ),
        },
    )


@exercise("5.4")
def _smoothed() -> Exercise:
    def variant(
        true: Function = lambda V, eps: 1 - eps + eps / V,
        other: Function = lambda V, eps: eps / V,
        rows: bool = True,
        column: bool = True,
    ) -> Function:
        def smoothed(target: Tensor, V: int, eps: float, pad_id: int) -> Tensor:
            one_hot = F.one_hot(target, V).double()
            q = one_hot * true(V, eps) + (1 - one_hot) * other(V, eps)
            q[..., pad_id] *= column
            return q * (target != pad_id)[..., None] if rows else q

        return smoothed

    def law(target: Tensor, V: int, eps: float, pad_id: int, q: Tensor) -> str | None:
        sums = q.double().sum(-1)
        if bool((q[target == pad_id] != 0).any()):
            return "A position of padding has a row of zeros; yours has not."
        off = (sums - 1).masked_fill(target == pad_id, 0.0).abs().flatten()
        if off.max() > 1e-5:
            sum_there = sums.flatten()[off.argmax()]
            return f"A row must be a distribution; one of yours sums to {sum_there:.4g}."
        return None

    target = torch.tensor([[4, 5, 2, 0, 0], [6, 3, 4, 2, 0]])
    return Exercise(
        variant(),
        {
            "with eps 0": (target, 7, 0.0, 0),
            "with eps 0.1": (target, 7, 0.1, 0),
            "with pad_id 3": (torch.tensor([[0, 8, 1], [5, 3, 3]]), 9, 0.4, 3),
        },
        {
            "A position of padding has a distribution in yours; "
            "it should have a row of zeros.": variant(rows=False),
            "You spread eps over the other tokens; here it is spread over "
            "the whole vocabulary.": variant(lambda V, eps: 1 - eps, lambda V, eps: eps / (V - 1)),
            "You spread eps over all but the true token and padding; here it is spread over the "
            "whole vocabulary.": variant(
                lambda V, eps: 1 - eps, lambda V, eps: eps / (V - 2), column=False
            ),
            "The rows sum to less than 1: the true token gets no share of eps.": variant(
                lambda V, eps: 1 - eps
            ),
            "The rows sum to more than 1: the true token gives nothing away.": variant(
                lambda V, eps: 1.0
            ),
            "Padding gets no share of eps; "
            "here it is a symbol of the vocabulary like the others.": variant(column=False),
            "eps and 1 - eps have changed places.": variant(
                lambda V, eps: eps + (1 - eps) / V, lambda V, eps: (1 - eps) / V
            ),
        },
        law,
    )


@exercise("5.4-loss")
def _smoothed_loss() -> Exercise:
    def right(logits: Tensor, target: Tensor, eps: float, pad_id: int) -> Tensor:
        return label_smoothed_cross_entropy(logits, target, eps, pad_id)[0]

    def variant(
        end: Function = lambda loss, real: loss.sum(),
        share: Function = lambda V, one_hot: 1 / V,
        normalise: Function = lambda logits: logits.log_softmax(-1),
        less: Function = lambda q: 0.0,
        hide: bool = True,
        smooth: bool = True,
    ) -> Function:
        def smoothed_loss(logits: Tensor, target: Tensor, eps: float, pad_id: int) -> Tensor:
            V, real = logits.size(-1), target != pad_id
            one_hot = F.one_hot(target, V).double()
            q = (1 - eps * smooth) * one_hot + eps * smooth * share(V, one_hot)
            loss = -(q * normalise(logits)).sum(-1) - less(q)
            return end(loss * real if hide else loss, real)

        return smoothed_loss

    draw = normal()
    target = torch.tensor([[4, 5, 2, 0, 0], [6, 3, 4, 2, 0]])
    return Exercise(
        right,
        {
            "without smoothing": (draw(1, 5, 7), torch.tensor([[4, 5, 6, 3, 2]]), 0.0, 0),
            "with padding": (draw(2, 5, 7), target, 0.0, 0),
            "with eps 0.1": (draw(2, 5, 7), target, 0.1, 0),
        },
        {
            "That is the mean over the tokens; the sum is asked for.": variant(
                lambda loss, real: loss.sum() / real.sum()
            ),
            "That is the mean over all positions, padding included; the sum is asked for.": variant(
                lambda loss, real: loss.mean()
            ),
            "That is one loss for each position; their sum is asked for.": variant(
                lambda loss, real: loss
            ),
            "Padding adds to your sum.": variant(hide=False),
            "Without smoothing it is right; with it, you do not use eps.": variant(smooth=False),
            "Logits are not log-probabilities: something normalises them first.": variant(
                normalise=lambda logits: logits
            ),
            "Your unit is the bit; nats are asked for.": variant(
                lambda loss, real: loss.sum() / math.log(2)
            ),
            "That is the Kullback-Leibler divergence, which is smaller by the entropy of "
            "the smoothed target.": variant(less=lambda q: -torch.xlogy(q, q).sum(-1)),
            "You spread eps over the other tokens; here it is spread over "
            "the whole vocabulary.": variant(share=lambda V, one_hot: (1 - one_hot) / (V - 1)),
            "The sign is wrong: a loss is not negative.": variant(lambda loss, real: -loss.sum()),
        },
    )
