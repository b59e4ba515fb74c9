"""`python -m annotated_transformer`: the command line."""

import sys

from annotated_transformer.cli import main

sys.exit(main())
