"""Copy MathJax from the wheel that pip brought into the site's static files,
so that pages load it from beside them.

usage: python -m tools.vendor_mathjax FOLDER
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

SCRIPT = "tex-chtml-full.js"  # the one file that needs no other script at run time, only its fonts
FONTS = "output/chtml/fonts/woff-v2"


def main(folder: Path) -> None:
    """Replace `folder` by MathJax's script, fonts and licence; the wheel is found,
    never imported."""
    spec = importlib.util.find_spec("mathjax")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(
            "vendor_mathjax.py: package django-static-mathjax is missing; run: pip install -r "
            "requirements.txt"
        )
    mathjax = Path(next(iter(spec.submodule_search_locations))) / "static" / "mathjax"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(mathjax / "es5" / FONTS, folder / FONTS)
    shutil.copy(mathjax / "LICENSE", folder)
    shutil.copy(mathjax / "es5" / SCRIPT, folder / f"{SCRIPT}.part")
    # Last, and whole: the Makefile looks for it.
    os.replace(folder / f"{SCRIPT}.part", folder / SCRIPT)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
