"""The exercises on attention (section 3.2): what is right, the cases to try, the usual mistakes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from annotated_transformer.model import attention as package
from lab.exercises.judging import Exercise, Function, exercise, normal


@exercise("3.2.1")
def _attention() -> Exercise:
    def root(q: Tensor, k: Tensor, v: Tensor) -> float:
        return q.size(-1) ** -0.5

    def hide(scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(~mask, -math.inf)

    def variant(
        scale: Function = root,
        dim: int | None = -1,
        hide: Function = hide,
        weigh: Function = lambda alpha, mask: alpha,
    ) -> Function:
        def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
            scores = q @ k.transpose(-2, -1) * scale(q, k, v)
            if mask is not None:
                scores = hide(scores, mask)
            alpha = scores if dim is None else scores.softmax(dim)
            return (alpha if mask is None else weigh(alpha, mask)) @ v

        return attention

    def law(q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> str | None:
        alpha = rest[-1].double()
        if v.shape != (5, 5) or torch.allclose(alpha.sum(-1), torch.ones(3, dtype=torch.float64)):
            return None
        columns = torch.allclose(alpha.sum(-2), torch.ones(5, dtype=torch.float64))
        return f"{one_law}; yours {other_axis if columns else 'do not'}."

    one_law = "The weights of a query must sum to 1 over the keys"
    other_axis = "sum to 1 over the queries"
    draw = normal()
    identity, sizes = torch.eye(5, dtype=torch.float64), ((3, 4), (5, 4), (5, 6))
    mask = torch.tensor([[1, 0, 0, 1, 0], [0, 1, 1, 1, 0], [1, 1, 1, 0, 1]], dtype=torch.bool)
    return Exercise(
        package.scaled_dot_product_attention,
        {
            "with the identity matrix as values": (draw(3, 4), draw(5, 4), identity),
            "without a mask": (draw(3, 4), draw(5, 4), draw(5, 2)),
            "with a mask": (draw(3, 4), draw(5, 4), draw(5, 2), mask),
            "with sentences and heads as leading axes": (
                *(draw(2, 3, *one) for one in sizes),
                mask,
            ),
        },
        {
            f"{one_law}; yours {other_axis}.": variant(dim=-2),
            "The scores are plain dot products: nothing scales them.": variant(lambda q, k, v: 1.0),
            "You scale the scores too much: d_k is the variance of a dot product; "
            "what is its standard deviation?": variant(lambda q, k, v: 1 / q.size(-1)),
            "Your scale makes the scores larger, where they should become smaller.": variant(
                lambda q, k, v: q.size(-1) ** 0.5
            ),
            "Your scale depends on the number of keys; the spread of the scores does not.": variant(
                lambda q, k, v: k.size(-2) ** -0.5
            ),
            "Your scale depends on the width of the values, "
            "which take no part in the scores.": variant(lambda q, k, v: v.size(-1) ** -0.5),
            "Your weights are the scores: some are negative, and they do not sum to 1.": variant(
                dim=None
            ),
            "Your mask is upside down: True means that a query may look.": variant(
                hide=lambda scores, mask: scores.masked_fill(mask, -math.inf)
            ),
            "You mask after the softmax, so that the weights which remain sum to less than "
            "1.": variant(hide=lambda scores, mask: scores, weigh=lambda alpha, mask: alpha * mask),
            "A hidden key still gets weight: a score of 0 is a score like any other.": variant(
                hide=lambda scores, mask: scores * mask
            ),
            "Without a mask it is right; with one, you do not use it.": variant(
                hide=lambda scores, mask: scores
            ),
            "You add the mask to the scores as 0 and 1, which hides nothing.": variant(
                hide=lambda scores, mask: scores + mask
            ),
        },
        law,
    )


@exercise("3.2.2")
def _multi_head() -> Exercise:
    def by_columns(x: Tensor, h: int) -> Tensor:
        return x.unflatten(-1, (h, -1)).transpose(-3, -2)

    def side_by_side(heads: Tensor) -> Tensor:
        return heads.transpose(-3, -2).flatten(-2)

    def variant(
        split: Function = by_columns,
        join: Function = side_by_side,
        scale: Function = lambda x: None,
        inputs: Function = lambda x, memory: (memory, memory),
        all_heads: bool = True,
        last: bool = True,
    ) -> Function:
        def multi_head(
            x: Tensor, memory: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor, h: int
        ) -> Tensor:
            of_keys, of_values = inputs(x, memory)
            projected = x @ W_Q, of_keys @ W_K, of_values @ W_V
            q, k, v = (split(z, h if all_heads else 1) for z in projected)
            heads = join(F.scaled_dot_product_attention(q, k, v, scale=scale(x)))
            return heads @ W_O if last else heads

        return multi_head

    def case(seed: int, D: int, h: int, d_k: int, d_v: int) -> tuple[Any, ...]:
        draw = normal(seed)
        weights = draw(D, h * d_k), draw(D, h * d_k), draw(D, h * d_v), draw(h * d_v, D)
        return draw(2, 3, D), draw(2, 5, D), *(W / math.sqrt(D) for W in weights), h

    return Exercise(
        variant(),
        {
            "with one head": case(0, 6, 1, 6, 6),
            "with three heads": case(1, 6, 3, 2, 2),
            "with heads whose d_k and d_v are not d_model / h": case(2, 6, 2, 5, 4),
        },
        {
            "With one head it is right; "
            "with more, you still attend once, over all columns.": variant(all_heads=False),
            "With one head it is right; with more, your heads are cut out "
            "of the positions instead of the columns: look at the order in which view reads the "
            "numbers.": variant(split=lambda x, h: x.reshape(x.size(0), h, x.size(1), -1)),
            "With one head it is right; "
            "with more, each of your heads takes every h-th column, where head 1 owns "
            "the first d_k.": variant(split=lambda x, h: x.unflatten(-1, (-1, h)).movedim(-1, -3)),
            "The heads are right, but joined in the wrong order: "
            "the axis of the heads must stand beside their columns before the two become "
            "one.": variant(join=lambda heads: heads.reshape(heads.size(0), heads.size(2), -1)),
            "You scale by the width of the model; a head compares vectors "
            "of another width.": variant(scale=lambda x: x.size(-1) ** -0.5),
            "Nothing scales the scores.": variant(scale=lambda x: 1.0),
            "Your keys and values come from x: the memory is not used.": variant(
                inputs=lambda x, memory: (x, x)
            ),
            "The heads are joined, and the last product of the equation is missing.": variant(
                last=False
            ),
        },
    )


@exercise("3.2.3-causal")
def _causal_mask() -> Exercise:
    def right(length: int) -> Tensor:
        return package.causal_mask(length)[0, 0]

    def ones(length: int) -> Tensor:
        return torch.ones(length, length, dtype=torch.bool)

    return Exercise(
        right,
        {"with length 5": (5,), "with length 1": (1,), "with length 8": (8,)},
        {
            "Rows and columns are exchanged: "
            "here a query sees itself and all that follows.": lambda n: ones(n).triu(),
            "Your mask is upside down: True means that a query may look.": lambda n: (
                ~ones(n).tril()
            ),
            "A position does not see itself, so that the first query sees nothing; "
            "the input was shifted right before.": lambda n: ones(n).tril(-1),
            "Every position sees one too many: the token that it has to predict.": lambda n: ones(
                n
            ).tril(1),
            "Every query may look at every key: nothing is hidden.": ones,
            "A query sees itself and nothing else.": lambda n: torch.eye(n, dtype=torch.bool),
            "The triangle is right, but it holds numbers; a mask holds True and False.": lambda n: (
                ones(n).tril().float()
            ),
            "These are numbers to add to the scores; a mask holds True and False.": lambda n: (
                torch.zeros(n, n).masked_fill(~ones(n).tril(), -math.inf)
            ),
            "The triangle is right; "
            "axes for sentences and heads are not asked for here.": package.causal_mask,
        },
    )


@exercise("3.2.3-padding")
def _padding_mask() -> Exercise:
    def real(tokens: Tensor, pad_id: int) -> Tensor:
        return (tokens != pad_id)[:, None, None, :]

    tokens = torch.tensor([[5, 6, 7, 8, 2], [9, 2, 0, 0, 0], [4, 3, 2, 0, 0]])
    other = torch.tensor([[0, 6, 3, 3], [2, 0, 5, 3]])
    return Exercise(
        package.padding_mask,
        {"with pad_id 0": (tokens, 0), "with pad_id 3": (other, 3)},
        {
            "Your mask is upside down: True means that a query may look, "
            "and nobody may look at padding.": lambda tokens, pad_id: ~real(tokens, pad_id),
            "The entries are right, but broadcast against the scores (sentences, "
            "heads, queries, keys) they meet the wrong axes: where are the axes for all heads "
            "and all queries?": lambda tokens, pad_id: tokens != pad_id,
            "You hide queries, which are rows; padding is a property of keys, "
            "which are columns.": lambda tokens, pad_id: (tokens != pad_id)[:, None, :, None],
            "An axis is missing: one stands for all heads, "
            "another for all queries.": lambda tokens, pad_id: (tokens != pad_id)[:, None, :],
            "With pad_id 0 it is right, and so only there: "
            "you do not use the argument.": lambda tokens, pad_id: real(tokens, 0),
            "It is right while no id is below pad_id: you compare by "
            "the wrong relation.": lambda tokens, pad_id: (tokens > pad_id)[:, None, None, :],
            "The entries are right, but they are numbers; "
            "a mask holds True and False.": lambda tokens, pad_id: real(tokens, pad_id).float(),
        },
    )


@exercise("3.2-additive")
def _additive_scores() -> Exercise:
    def all_pairs(q: Tensor, k: Tensor) -> Tensor:
        return q[:, None, :] + k[None, :, :]

    def variant(
        join: Function = all_pairs,
        inner: Function = torch.tanh,
        end: Function = lambda scores: scores,
    ) -> Function:
        def additive_scores(q: Tensor, k: Tensor, W_q: Tensor, W_k: Tensor, v: Tensor) -> Tensor:
            return end(inner(join(q @ W_q, k @ W_k)) @ v)

        return additive_scores

    def case(seed: int, n_q: int, n_k: int, d: int, d_a: int) -> tuple[Tensor, ...]:
        draw = normal(seed)
        return draw(n_q, d), draw(n_k, d), draw(d, d_a), draw(d, d_a), draw(d_a)

    right = variant()
    return Exercise(
        right,
        {
            "with 3 queries and 3 keys": case(0, 3, 3, 5, 4),
            "with 3 queries and 4 keys": case(1, 3, 4, 5, 6),
        },
        {
            "Query 0 meets key 0 only, query 1 key 1 only: every query is to meet every key, "
            "so each side needs an axis along which it is repeated.": variant(lambda q, k: q + k),
            "Rows and columns are exchanged: a row belongs to a query.": variant(
                lambda q, k: all_pairs(k, q)
            ),
            "The hidden layer has lost its activation function.": variant(inner=lambda x: x),
            "The hidden layer has another activation function than the equation.": variant(
                inner=torch.relu
            ),
            "The activation function comes too late, after the last product.": variant(
                inner=lambda x: x, end=torch.tanh
            ),
            "The two matrices have changed places.": lambda q, k, W_q, W_k, v: right(
                q, k, W_k, W_q, v
            ),
            "These are the weights already; the scores were asked for.": variant(
                end=lambda scores: scores.softmax(-1)
            ),
            "You multiply query and key where the equation adds them.": variant(
                lambda q, k: q[:, None, :] * k[None, :, :]
            ),
            "The last vector is not used: you sum the hidden layer "
            "as it is.": lambda q, k, W_q, W_k, v: right(q, k, W_q, W_k, torch.ones_like(v)),
        },
    )
