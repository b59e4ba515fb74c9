"""The exercises on layers (sections 3.1, 3.3 and 4), as in `on_attention`."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from lab.exercises.judging import Exercise, Function, exercise, normal


@exercise("3.1")
def _layer_norm() -> Exercise:
    def right(x: Tensor, gain: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], gain, bias, eps)

    def variant(
        dim: int | tuple[int, ...] = -1,
        root: Function = lambda var, eps: (var + eps).sqrt(),
        end: Function = lambda z, gain, bias: gain * z + bias,
        correction: int = 0,
        center: bool = True,
    ) -> Function:
        def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
            mean = x.mean(dim=dim, keepdim=True)
            var = x.var(dim=dim, keepdim=True, correction=correction)
            return end((x - mean if center else x) / root(var, eps), gain, bias)

        return layer_norm

    draw = normal()
    ones, zeros = torch.ones(7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64)
    equal = torch.full((3, 7), 2.0, dtype=torch.float64)
    return Exercise(
        right,
        {
            "with gain 1 and bias 0": (3 * draw(2, 5, 7) + 1, ones, zeros),
            "with a gain and a bias": (3 * draw(2, 5, 7) + 1, draw(7), draw(7)),
            "where the entries hardly differ": (1e-3 * draw(3, 7) + 2, draw(7), draw(7)),
            "where all entries are equal": (equal, draw(7), draw(7)),
            "with eps 0.5": (draw(3, 7), ones, zeros, 0.5),
        },
        {
            "Your variance divides by one less than the number of entries, "
            "as one does for a sample; these entries are no sample.": variant(correction=1),
            "You normalise over the positions; "
            "each position is to be normalised by itself.": variant(dim=-2),
            "You normalise over the whole tensor; "
            "each position is to be normalised by itself.": variant(dim=(-3, -2, -1)),
            "You normalise over the first axis, so that one sentence changes another.": variant(
                dim=0
            ),
            "Where all entries are equal, you divide 0 by 0: what is eps for?": variant(
                root=lambda var, eps: var.sqrt()
            ),
            "It is right unless the entries hardly differ: "
            "eps is added in the wrong place.": variant(root=lambda var, eps: var.sqrt() + eps),
            "You divide by the variance, whose unit is the square of the unit of x.": variant(
                root=lambda var, eps: var + eps
            ),
            "Your result has a mean: it was never taken away.": variant(center=False),
            "With gain 1 and bias 0 it is right: you use neither.": variant(
                end=lambda z, gain, bias: z
            ),
            "With gain 1 and bias 0 it is right: you do not use the gain.": variant(
                end=lambda z, gain, bias: z + bias
            ),
            "With gain 1 and bias 0 it is right: you do not use the bias.": variant(
                end=lambda z, gain, bias: gain * z
            ),
            "The gain multiplies the bias, too: which of the two comes first?": variant(
                end=lambda z, gain, bias: gain * (z + bias)
            ),
        },
    )


@exercise("3.1-add-norm")
def _add_norm() -> Exercise:
    draw = normal()
    W = draw(6, 6)

    def norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:])

    def sublayer(x: Tensor) -> Tensor:
        return (x @ W).relu()

    return Exercise(
        lambda x, sublayer, norm: norm(x + sublayer(x)),
        {
            "with a sub-layer that returns zeros": (draw(2, 5, 6), torch.zeros_like, norm),
            "with a linear layer and a ReLU": (draw(2, 5, 6), sublayer, norm),
        },
        {
            "You normalise what enters the sub-layer and leave the sum as it is: "
            "that is pre-norm, a later design.": lambda x, sublayer, norm: x + sublayer(norm(x)),
            "You normalise the sub-layer's output and leave the sum "
            "as it is.": lambda x, sublayer, norm: x + norm(sublayer(x)),
            "There is no residual connection: x itself is lost.": lambda x, sublayer, norm: norm(
                sublayer(x)
            ),
            "Nothing is normalised.": lambda x, sublayer, norm: x + sublayer(x),
            "You normalise the two parts; the paper normalises once.": lambda x, sublayer, norm: (
                norm(x) + norm(sublayer(x))
            ),
            "You normalise x alone.": lambda x, sublayer, norm: norm(x) + sublayer(x),
            "You normalise twice: the sub-layer gets x as it is.": lambda x, sublayer, norm: norm(
                x + sublayer(norm(x))
            ),
        },
    )


@exercise("3.3")
def _feed_forward() -> Exercise:
    def variant(
        inner: Function = torch.relu, end: Function = lambda x: x, late: bool = False
    ) -> Function:
        def feed_forward(x: Tensor, W_1: Tensor, b_1: Tensor, W_2: Tensor, b_2: Tensor) -> Tensor:
            return end((inner(x @ W_1) + b_1 if late else inner(x @ W_1 + b_1)) @ W_2 + b_2)

        return feed_forward

    right = variant()
    draw = normal()
    return Exercise(
        right,
        {
            "with one sentence": (draw(5, 4), draw(4, 7), draw(7), draw(7, 4), draw(4)),
            "with a batch": (draw(2, 5, 4), draw(4, 7), draw(7), draw(7, 4), draw(4)),
        },
        {
            "With nothing between them, the two products are one linear map.": variant(lambda x: x),
            "The maximum is taken once too often: the result may be negative.": variant(
                end=torch.relu
            ),
            "The maximum comes too late, after the second product.": variant(
                lambda x: x, end=torch.relu
            ),
            "The first bias comes too late, after the maximum.": variant(late=True),
            "The first bias is missing.": lambda x, W_1, b_1, W_2, b_2: right(
                x, W_1, 0 * b_1, W_2, b_2
            ),
            "The second bias is missing.": lambda x, W_1, b_1, W_2, b_2: right(
                x, W_1, b_1, W_2, 0 * b_2
            ),
            "Both biases are missing.": lambda x, W_1, b_1, W_2, b_2: right(
                x, W_1, 0 * b_1, W_2, 0 * b_2
            ),
            "That is GELU, which later models use; the paper's equation has a maximum.": variant(
                F.gelu
            ),
            "That is another activation function than the paper's.": variant(torch.sigmoid),
            "You keep the negative entries and drop the positive ones.": variant(
                lambda x: x.clamp(max=0)
            ),
        },
    )


@exercise("4")
def _path_length() -> Exercise:
    def contiguous(n: int, k: int) -> int:
        return -(-(n - 1) // (k - 1))

    def growing(n: int, k: int) -> int:
        layers, reach = 0, 1
        while reach < n:
            layers, reach = layers + 1, reach * k
        return layers

    def variant(near: Function = contiguous, far: Function = growing) -> Function:
        return lambda n, k, dilated: far(n, k) if dilated else near(n, k)

    contiguous_cases = [(1, 3), (7, 3), (8, 3), (100, 5)]
    dilated_cases = [(9, 3), (10, 3), (125, 5), (1000, 2)]
    return Exercise(
        variant(),
        {
            **{f"with n {n} and k {k}, contiguous": (n, k, False) for n, k in contiguous_cases},
            **{f"with n {n} and k {k}, dilated": (n, k, True) for n, k in dilated_cases},
        },
        {
            "One layer of width k sees k positions, but a second adds fewer than k: "
            "its window overlaps the first.": variant(lambda n, k: -(-n // k)),
            "Off by one: how many steps are there between the first and the last "
            "of n positions?": variant(lambda n, k: -(-n // (k - 1))),
            "You round down: a layer that is needed in part is needed.": variant(
                lambda n, k: (n - 1) // (k - 1)
            ),
            "Contiguous is right; dilated, you count as if it were contiguous.": variant(
                far=contiguous
            ),
            "Dilated is right; contiguous, you count as if it were dilated.": variant(near=growing),
            "Where n is a power of k, your logarithm lands a little above a whole number: "
            "floats are rounded.": variant(far=lambda n, k: math.ceil(math.log(n) / math.log(k))),
            "Dilated, you round down: a layer that is needed in part is needed.": variant(
                far=lambda n, k: int(math.log(n, k) + 1e-9)
            ),
            "Dilated, you are one too high where n is a power of k: the last position is to be "
            "reached, not passed.": variant(far=lambda n, k: int(math.log(n, k) + 1e-9) + 1),
        },
    )
