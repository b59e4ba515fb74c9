"""The command line in a worker of torchrun that is killed, with its number of deaths so far:

torchrun --nproc-per-node 2 --max-restarts 2 dying_worker.py train ... --out DIRECTORY

After a death the worker that died joins the others late, so that the other one looks for it where
it was before. DIRECTORY.1 and DIRECTORY.2 say that it does.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from annotated_transformer.command_line.entry_point import main

UPDATES = {"0": 5, "1": 4}  # which one is the last, by the number of restarts
RESTARTS, RANK = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
LOOKS = Path(f"{sys.argv[sys.argv.index('--out') + 1]}.{RESTARTS}")

if __name__ == "__main__":
    update, join, made = torch.optim.Adam.step, dist.init_process_group, []

    def deadly(self: torch.optim.Adam) -> Any:
        made.append(1)
        if len(made) == UPDATES.get(RESTARTS) and RANK == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return update(self)

    def late(*args: Any, **kwargs: Any) -> None:
        if RESTARTS != "0" and RANK == "0":
            LOOKS.touch()
        elif RESTARTS != "0":
            while not LOOKS.exists():
                time.sleep(0.01)
            time.sleep(1)
        join(*args, **kwargs)

    torch.optim.Adam.step = deadly  # type: ignore[assignment,method-assign]
    dist.init_process_group = late  # type: ignore[assignment]
    sys.exit(main())
