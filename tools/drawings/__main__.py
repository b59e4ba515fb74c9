"""Write book/figures/*.svg of this folder's modules, or check them."""

import argparse
import sys
from collections.abc import Sequence

from tools import drawings
from tools.figures import FIGURES


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=drawings.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 if a drawing is out of date"
    )
    check, stale = parser.parse_args(arguments).check, 0
    for name, text in drawings.files().items():
        path = FIGURES / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if check:
            print(f"book/figures/{name} is not up to date; run: make drawings", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
