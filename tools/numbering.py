"""How figures, tables, exercises and equations are numbered: by the paper's section, "3.2.5".

Pages of the same section (6.1 has two) go on counting. A page that belongs to no section has a
letter. The paper's own three equations keep their numbers wherever they are printed.
"""

import re

SECTIONS = {
    "3_2_masks": "3.2.3",
    "after_the_paper": "A",
    "common_mistakes": "M",
    "errata": "E",
    "on_a_gpu": "G",
    "claims": "H",
    "wmt14": "W",
}
PAPER_EQUATIONS = {"attention": 1, "ffn-equation": 2, "opt-rate": 3}
"""The labels of the paper's equations, and their numbers there."""


def section_of(page: str) -> str:
    """What the numbers of a page begin with; "" for one that has none.

    >>> section_of("3_2_attention"), section_of("0_one_hour"), section_of("claims")
    ('3.2', '0', 'H')
    """
    digits = re.match(r"[0-9]+(?:_[0-9]+)*", page)
    return SECTIONS.get(page) or (digits[0].replace("_", ".") if digits else "")
