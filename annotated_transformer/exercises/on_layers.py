"""The exercises on the model around attention (sections 3.1, 3.3 to 3.5, and 4), as in `on_attention`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from annotated_transformer.exercises.judging import Exercise, Function, normal
from annotated_transformer.model.embedding import positional_encoding


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
    return Exercise(
        right,
        {
            "with gain 1 and bias 0": (3 * draw(2, 5, 7) + 1, ones, zeros),
            "with a gain and a bias": (3 * draw(2, 5, 7) + 1, draw(7), draw(7)),
            "where the entries hardly differ": (1e-3 * draw(3, 7) + 2, draw(7), draw(7)),
            "where all entries are equal": (
                torch.full((3, 7), 2.0, dtype=torch.float64),
                draw(7),
                draw(7),
            ),
            "with eps 0.5": (draw(3, 7), ones, zeros, 0.5),
        },
        {
            "Your variance divides by one less than the number of entries, as one does for a sample; these entries are no "
            "sample.": variant(correction=1),
            "You normalise over the positions; each position is to be normalised by itself.": variant(
                dim=-2
            ),
            "You normalise over the whole tensor; each position is to be normalised by itself.": variant(
                dim=(-3, -2, -1)
            ),
            "You normalise over the first axis, so that one sentence changes another.": variant(
                dim=0
            ),
            "Where all entries are equal, you divide 0 by 0: what is eps for?": variant(
                root=lambda var, eps: var.sqrt()
            ),
            "It is right unless the entries hardly differ: eps is added in the wrong place.": variant(
                root=lambda var, eps: var.sqrt() + eps
            ),
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
            "You normalise what enters the sub-layer and leave the sum as it is: that is pre-norm, a later design.": lambda x, sublayer, norm: (
                x + sublayer(norm(x))
            ),
            "You normalise the sub-layer's output and leave the sum as it is.": lambda x, sublayer, norm: (
                x + norm(sublayer(x))
            ),
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


def _embed() -> Exercise:
    def times(factor: Function) -> Function:
        return lambda tokens, E: E[tokens] * factor(*E.shape)

    draw = normal()
    tokens = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    return Exercise(
        times(lambda V, D: math.sqrt(D)),
        {
            "with two sentences": (tokens, draw(11, 6)),
            "with one token": (tokens[0, :1], draw(7, 4)),
        },
        {
            "These are rows of E as they are; section 3.4 does something to them.": times(
                lambda V, D: 1.0
            ),
            "You divide where the paper multiplies.": times(lambda V, D: 1 / math.sqrt(D)),
            "The factor is too large: it is not d_model itself.": times(lambda V, D: D),
            "Your factor depends on the size of the vocabulary; which axis of E is the model's?": times(
                lambda V, D: math.sqrt(V)
            ),
        },
    )


def _angles(
    length: int,
    d_model: int,
    exponent: Function = lambda j: 2 * (j // 2),
    base: float = 10000.0,
    first: int = 0,
) -> Tensor:
    """position / base^(exponent of the column j / d_model), a row for each position."""
    position = torch.arange(first, first + length, dtype=torch.float64)
    return position[:, None] / base ** (
        exponent(torch.arange(d_model, dtype=torch.float64)) / d_model
    )


def _positional_encoding() -> Exercise:
    def right(length: int, d_model: int) -> Tensor:
        return positional_encoding(length, d_model).double()

    def variant(
        even: Function = torch.sin,
        odd: Function = torch.cos,
        halves: bool = False,
        angles: Function = _angles,
    ) -> Function:
        def encoding(length: int, d_model: int) -> Tensor:
            angle = angles(length, d_model)
            sines, cosines = even(angle[:, ::2]), odd(angle[:, 1::2])
            return (
                torch.cat([sines, cosines], dim=1)
                if halves
                else torch.stack([sines, cosines], -1).flatten(1)
            )

        return encoding

    def power(exponent: Function) -> Function:
        return variant(angles=lambda length, d_model: _angles(length, d_model, exponent))

    return Exercise(
        right,
        {
            "with d_model 2": (5, 2),
            "with d_model 6": (7, 6),
            "with 40 positions": (40, 16),
        },
        {
            "Sine and cosine have changed places: what should position 0 look like?": variant(
                torch.cos, torch.sin
            ),
            "The sines fill the first half and the cosines the second; in the formula they take turns.": variant(
                halves=True
            ),
            "Position 0 is missing: you count from 1.": variant(
                angles=lambda n, d: _angles(n, d, first=1)
            ),
            "The wavelengths grow too slowly: does i count the columns, or the pairs of columns?": power(
                lambda j: j // 2
            ),
            "The wavelengths grow too fast: i counts pairs of columns, and you have doubled the column's own number.": power(
                lambda j: 4 * (j // 2)
            ),
            "A sine and the cosine after it share one wavelength; yours have two.": power(
                lambda j: j
            ),
            "A sine and the cosine after it share one wavelength; yours have two, which grow too fast.": power(
                lambda j: 2 * j
            ),
            "The wavelengths end in the wrong place: you raise another number than the paper's to a power.": variant(
                angles=lambda n, d: _angles(n, d, base=1000.0)
            ),
            "There are sines only.": variant(odd=torch.sin),
            "The frequencies grow from column to column; they should fall.": power(
                lambda j: -2 * (j // 2)
            ),
        },
    )


def _rotation() -> Exercise:
    def variant(sign: int = 1, shift: Function = lambda k: k, halves: bool = False) -> Function:
        def rotation(k: int, d_model: int) -> Tensor:
            angle = _angles(2, d_model)[1, ::2] * shift(k)
            pair = torch.arange(d_model // 2)
            i, j = (pair, pair + d_model // 2) if halves else (2 * pair, 2 * pair + 1)
            M = torch.zeros(d_model, d_model, dtype=torch.float64)
            M[i, i] = M[j, j] = angle.cos()
            M[i, j], M[j, i] = sign * angle.sin(), -sign * angle.sin()
            return M

        return rotation

    def law(k: int, d_model: int, M: Tensor) -> str:
        table = positional_encoding(k + 4, d_model).double()
        wrong = [
            position
            for position in range(4)
            if not torch.allclose(M.double() @ table[position], table[position + k], atol=1e-5)
        ]
        where = (
            f"PE[{wrong[0]}] does not lead to PE[{wrong[0] + k}]"
            if wrong
            else "a later position goes astray"
        )
        return f"With d_model {d_model} and k {k}, {where}."

    return Exercise(
        variant(),
        {"with k 0": (0, 6), "with d_model 2": (3, 2), "with d_model 6": (5, 6)},
        {
            "It turns backwards: your matrix leads from PE[pos + k] to PE[pos].": variant(sign=-1),
            "It moves by one position, whatever k is.": variant(shift=lambda k: 1),
            "It fits a table with all sines first and all cosines after; in the paper's they take turns.": variant(
                halves=True
            ),
            "It leaves everything where it is.": lambda k, d_model: torch.eye(
                d_model, dtype=torch.float64
            ),
        },
        law,
    )


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

    contiguous_cases, dilated_cases = (
        [(1, 3), (7, 3), (8, 3), (100, 5)],
        [(9, 3), (10, 3), (125, 5), (1000, 2)],
    )
    return Exercise(
        variant(),
        {
            **{f"with n {n} and k {k}, contiguous": (n, k, False) for n, k in contiguous_cases},
            **{f"with n {n} and k {k}, dilated": (n, k, True) for n, k in dilated_cases},
        },
        {
            "One layer of width k sees k positions, but a second adds fewer than k: its window overlaps the first.": variant(
                lambda n, k: -(-n // k)
            ),
            "Off by one: how many steps are there between the first and the last of n positions?": variant(
                lambda n, k: -(-n // (k - 1))
            ),
            "You round down: a layer that is needed in part is needed.": variant(
                lambda n, k: (n - 1) // (k - 1)
            ),
            "Contiguous is right; dilated, you count as if it were contiguous.": variant(
                far=contiguous
            ),
            "Dilated is right; contiguous, you count as if it were dilated.": variant(near=growing),
            "Where n is a power of k, your logarithm lands a little above a whole number: floats are rounded.": variant(
                far=lambda n, k: math.ceil(math.log(n) / math.log(k))
            ),
            "Dilated, you round down: a layer that is needed in part is needed.": variant(
                far=lambda n, k: int(math.log(n, k) + 1e-9)
            ),
            "Dilated, you are one too high where n is a power of k: the last position is to be reached, not passed.": variant(
                far=lambda n, k: int(math.log(n, k) + 1e-9) + 1
            ),
        },
    )


LAYER_EXERCISES: dict[str, Callable[[], Exercise]] = {
    "3.1": _layer_norm,
    "3.1-add-norm": _add_norm,
    "3.3": _feed_forward,
    "3.4": _embed,
    "3.5": _positional_encoding,
    "3.5-rotation": _rotation,
    "4": _path_length,
}
