"""Programs that time and score. They use the book's lab, which is not installed."""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "book"))
