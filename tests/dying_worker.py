"""The command line in a worker of torchrun that is killed, with its number of deaths so far:

torchrun --nproc-per-node 2 --max-restarts 2 dying_worker.py train ...
"""

import os
import signal
import sys
from typing import Any

import torch

from annotated_transformer.cli import main

UPDATES = {"0": 5, "1": 4}  # which one is the last, by the number of restarts
RESTARTS, RANK = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]

if __name__ == "__main__":
    update, made = torch.optim.Adam.step, []

    def deadly(self: torch.optim.Adam) -> Any:
        made.append(1)
        if len(made) == UPDATES.get(RESTARTS) and RANK == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return update(self)

    torch.optim.Adam.step = deadly  # type: ignore[assignment,method-assign]
    sys.exit(main())
