"""Imported by a program that was started by its path, `python benchmarks/NAME.py`: it goes on as
the module benchmarks.NAME, which finds the packages beside it."""

import os
import sys
from pathlib import Path

module = f"benchmarks.{Path(sys.argv[0]).stem}"
os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])
