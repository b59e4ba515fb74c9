"""Write the page in which a model learns: `python -m lab.training_page --out DIR [--book URL]`."""

import argparse

from lab.training_page.reversal import write_page_beside_pytorch

parser = argparse.ArgumentParser(prog="python -m lab.training_page", description=__doc__)
parser.add_argument("--out", required=True, metavar="DIR", help="directory to write")
parser.add_argument("--book", default="", metavar="URL", help="link views to the chapters here")
args = parser.parse_args()
print(write_page_beside_pytorch(args.out, args.book))
