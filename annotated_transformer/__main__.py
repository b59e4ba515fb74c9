"""`python -m annotated_transformer`: the command line."""

import sys

from annotated_transformer.command_line.entry_point import main

sys.exit(main())
