"""The verb `new` of the command line: its arguments, and what it does."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from annotated_transformer.errors import PROGRAM
from annotated_transformer.files import shown


def add_new(verbs: Any) -> None:
    """Add the verb and its arguments to a parser's verbs."""
    summary = "make a translator, a report and a page of a file of sentence pairs"
    verb = verbs.add_parser(
        "new",
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}. Run it again to go on where it stopped.",
        epilog=f"example: {PROGRAM} new mine.tsv --out mine",
    )
    verb.set_defaults(run=new)
    verb.add_argument("pairs", help="UTF-8, plain or .gz: on each line a source, a tab, a target")
    verb.add_argument("--out", required=True, metavar="DIR", help="directory to write")
    verb.add_argument("--book", default="", metavar="URL", help="link to the chapters here")
    verb.add_argument("--quiet", action="store_true", help="no progress bar")


def new(args: Namespace) -> None:
    """Make all that `making.make` makes, and print where it is."""
    from annotated_transformer.from_pairs.making import make

    for path in make(args.pairs, args.out, progress=not args.quiet, book=args.book):
        print(shown(path))
