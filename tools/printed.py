"""What a cell prints, compared as a reader would: words exactly, decimals closely."""

import re

DECIMAL = re.compile(
    r"(?<![A-Za-z0-9_])[-+]?\d+\.\d*(?:[eE][-+]?\d+)?|(?<![A-Za-z0-9_])[-+]?\d+[eE][-+]?\d+"
)
DEFAULT_RTOL = 1e-3


class Printed(str):
    """Printed text, equal to another where words and integers agree exactly
    and decimals agree closely.

    Close means within `rtol` of the first number or within one unit of the last digit it shows.
    Runs of white space count as one, since a tensor is aligned to its longest number.
    """

    rtol = DEFAULT_RTOL

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        words, other_words = (DECIMAL.sub("#", text).split() for text in (self, other))
        return words == other_words and all(
            map(self._close, DECIMAL.findall(self), DECIMAL.findall(other))
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def _close(self, one: str, two: str) -> bool:
        mantissa, _, exponent = one.lower().partition("e")
        last_digit = float(f"1e{int(exponent or 0) - len(mantissa.partition('.')[2])}")
        return one == two or abs(float(one) - float(two)) <= max(
            self.rtol * abs(float(one)), 1.01 * last_digit
        )
