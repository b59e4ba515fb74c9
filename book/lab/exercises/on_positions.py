"""The exercises on embedding and positions (sections 3.4 and 3.5), as in `on_attention`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from annotated_transformer.model.embedding import positional_encoding
from lab.exercises.judging import Exercise, Function, exercise, normal


@exercise("3.4")
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
            "Your factor depends on the size of the vocabulary; "
            "which axis of E is the model's?": times(lambda V, D: math.sqrt(V)),
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
    column = torch.arange(d_model, dtype=torch.float64)
    return position[:, None] / base ** (exponent(column) / d_model)


@exercise("3.5")
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
            if halves:
                return torch.cat([sines, cosines], dim=1)
            return torch.stack([sines, cosines], -1).flatten(1)

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
            "The sines fill the first half and the cosines the second; "
            "in the formula they take turns.": variant(halves=True),
            "Position 0 is missing: you count from 1.": variant(
                angles=lambda n, d: _angles(n, d, first=1)
            ),
            "The wavelengths grow too slowly: "
            "does i count the columns, or the pairs of columns?": power(lambda j: j // 2),
            "The wavelengths grow too fast: i counts pairs of columns, "
            "and you have doubled the column's own number.": power(lambda j: 4 * (j // 2)),
            "A sine and the cosine after it share one wavelength; yours have two.": power(
                lambda j: j
            ),
            "A sine and the cosine after it share one wavelength; "
            "yours have two, which grow too fast.": power(lambda j: 2 * j),
            "The wavelengths end in the wrong place: you raise another number than the paper's "
            "to a power.": variant(angles=lambda n, d: _angles(n, d, base=1000.0)),
            "There are sines only.": variant(odd=torch.sin),
            "The frequencies grow from column to column; they should fall.": power(
                lambda j: -2 * (j // 2)
            ),
        },
    )


@exercise("3.5-rotation")
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
        where = "a later position goes astray"
        for position in reversed(range(4)):
            there = M.double() @ table[position]
            if not torch.allclose(there, table[position + k], atol=1e-5):
                where = f"PE[{position}] does not lead to PE[{position + k}]"
        return f"With d_model {d_model} and k {k}, {where}."

    return Exercise(
        variant(),
        {"with k 0": (0, 6), "with d_model 2": (3, 2), "with d_model 6": (5, 6)},
        {
            "It turns backwards: your matrix leads from PE[pos + k] to PE[pos].": variant(sign=-1),
            "It moves by one position, whatever k is.": variant(shift=lambda k: 1),
            "It fits a table with all sines first and all cosines after; "
            "in the paper's they take turns.": variant(halves=True),
            "It leaves everything where it is.": lambda k, d_model: torch.eye(
                d_model, dtype=torch.float64
            ),
        },
        law,
    )
