"""Several processes, one run: what the paper's eight GPUs did together (section 5.2).

`torchrun` starts and numbers the processes; PyTorch joins them. A step has `accumulate` batches
whatever the number of processes. Each process computes its share of them, and the gradient is that
of the mean over the real target tokens of all. So n processes make the same run as one, and a run
can be resumed with another number of them.
"""

from __future__ import annotations

import inspect
import os
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from annotated_transformer.config import TrainConfig
from annotated_transformer.errors import ConfigError, require
from annotated_transformer.training.rendezvous import fresh_store, make_group

T = TypeVar("T")
_wrapped: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
LONGEST_WAIT = timedelta(hours=1)
"""How long processes wait for one that works alone, such as rank 0 learning a vocabulary."""


@dataclass(frozen=True)
class Processes:
    """The processes of a run as one of them sees them: number `rank` of `n`.

    With one process, the default, nothing is communicated and every method returns its argument.
    With more, all of them must call the same methods in the same order. `restarted` says that
    torchrun started the processes again after one of them had failed.
    """

    rank: int = 0
    n: int = 1
    local_rank: int = 0
    restarted: bool = False

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes files and messages."""
        return self.rank == 0

    def require_divides(self, accumulate: int) -> None:
        """Raise ConfigError unless the batches of a step divide evenly among the processes."""
        require(
            accumulate % self.n == 0,
            "accumulate, the batches of a step, must be a multiple of the number of processes, "
            f"got {accumulate} and {self.n}",
        )

    def takes(self, i: int) -> bool:
        """Whether this process computes batch number i of a step."""
        return i % self.n == self.rank

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """The items of this process: every n-th, from its rank on."""
        return items[self.rank :: self.n]

    def share_of_step(self, batches: Sequence[T], loss: nn.Module) -> Iterator[T]:
        """This process's batches of a step; DDP exchanges gradients only in the last.

        The gradients are then the mean over the processes of what each accumulated.
        """
        self.require_divides(len(batches))
        mine = self.share(batches)
        for i, batch in enumerate(mine, 1):
            with exchanging(loss, i == len(mine)):
                yield batch

    def total(self, numbers: Tensor) -> Tensor:
        """The sum over all processes, in place (all-reduce)."""
        if self.n > 1:
            dist.all_reduce(numbers)
        return numbers

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in at least one process."""
        return bool(self.total(torch.tensor(int(flag))))

    def wait(self) -> None:
        """Return when all processes have called this (barrier)."""
        self.any(False)

    def gathered(self, numbers: Tensor) -> list[Tensor]:
        """The tensors of all processes by rank, all of one shape and on the host (all-gather)."""
        if self.n == 1:
            return [numbers]
        found = [torch.empty_like(numbers) for _ in range(self.n)]
        dist.all_gather(found, numbers)
        return found

    def from_first(self, make: Callable[[], bytes]) -> bytes:
        """What `make` returns in rank 0, for all processes (broadcast).

        A ConfigError that it raises there is raised in all of them.
        """
        if self.n == 1:
            return make()
        data = b""
        error = None
        if self.is_first:
            try:
                data = make()
            except ConfigError as raised:
                error = raised
        failed = self.any(error is not None)
        data = self._broadcast(str(error).encode() if error else data)
        if failed:
            raise error or ConfigError(data.decode())
        return data

    def _broadcast(self, data: bytes) -> bytes:
        """Rank 0's bytes."""
        length = self.total(torch.tensor(len(data) if self.is_first else 0))
        held = torch.zeros(int(length), dtype=torch.uint8)
        if self.is_first and data:
            held = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if len(held):
            dist.broadcast(held, 0)
        return held.numpy().tobytes()

    def once_per_machine(self, do: Callable[[], T]) -> T | None:
        """Call `do` in one process of each machine; the others wait for it, and get None.

        A ConfigError that `do` raises in one of them is raised in all processes.
        """
        if self.n == 1:
            return do()
        found = None
        error = None
        if self.local_rank == 0:
            try:
                found = do()
            except ConfigError as raised:
                error = raised
        if self.any(error is not None):
            raise error or ConfigError("another process of the run failed: see its message")
        return found

    def require_same(self, digest: str, what: str) -> None:
        """Raise ConfigError in all processes unless all have the same digest."""
        first = self.from_first(digest.encode)
        others = self.any(first != digest.encode())
        require(not others, f"all processes of a run need the same {what}: one has others")

    def device(self, name: str) -> str:
        """The device of this process: of several GPUs, the one with its local rank."""
        return f"cuda:{self.local_rank}" if name == "cuda" and self.n > 1 else name

    def seed(self, *numbers: int) -> None:
        """Give each process random numbers of its own, for dropout above all.

        Rank 0 keeps its generator, as a single process does.
        """
        if not self.is_first:
            torch.manual_seed(random.Random(f"{numbers} {self.rank}").getrandbits(63))


ALONE = Processes()


def require_parallel(config: TrainConfig, processes: Processes) -> None:
    """Raise ConfigError for settings that several processes cannot have."""
    processes.require_divides(config.accumulate)
    require(
        not config.bpe_dropout or processes.n == 1,
        "bpe_dropout draws another encoding in every process: it must be 0 for "
        f"{processes.n} processes, got {config.bpe_dropout}",
    )


def data_parallel(loss: nn.Module) -> nn.Module:
    """The module in DDP, whose backward pass gives every process the mean of all gradients.

    Buffers are not synchronized: the only one, the table of positions, is the same everywhere.
    """
    # Newer versions of PyTorch warn about `broadcast_buffers`, older ones lack its new name.
    known = inspect.signature(DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, bool] = {name: False, "gradient_as_bucket_view": True}
    module = DistributedDataParallel(loss, **options)  # type: ignore[arg-type]
    _wrapped.add(module)
    return module


def exchanging(loss: nn.Module, is_last: bool) -> AbstractContextManager[Any]:
    """Inside the block DDP accumulates gradients; where `is_last`, it exchanges them too."""
    if isinstance(loss, DistributedDataParallel):
        return nullcontext() if is_last else loss.no_sync()
    return nullcontext()


def let_go_of_gradients() -> None:
    """Drop DDP's reducer and logger, which hold the group, before the group is destroyed.

    If theirs were the last reference, the group's destructor would wait, holding the GIL, for a
    gloo thread that needs the GIL: a deadlock.
    """
    for module in _wrapped:
        vars(module).pop("logger", None)
        vars(module).pop("reducer", None)


@contextmanager
def joined(device: str) -> Iterator[Processes]:
    """The processes that torchrun started, joined until the end of the block.

    On GPUs gradients travel by NCCL and the host's own messages by gloo, so that the host waits for
    no GPU. Without torchrun the process is alone. Raises ConfigError where a machine has fewer GPUs
    than processes, and where another process of the run has died.
    """
    if not dist.is_torchelastic_launched():
        yield ALONE
        return
    rank, n, local_rank, restarts = (
        int(os.environ[name])
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT")
    )
    if n == 1:
        yield Processes(restarted=restarts > 0)
        return
    if device == "cuda":
        _take_gpu(local_rank)
    try:
        _join(rank, n, "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
        yield Processes(rank, n, local_rank, Processes(rank, n).any(restarts > 0))
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error).lower():
            line = str(error).splitlines()[0].partition(". ")[0]  # without gloo's advice
            raise ConfigError(f"process {rank} of {n} lost touch with another: {line}") from None
        raise
    finally:
        let_go_of_gradients()
        if dist.is_initialized():
            dist.destroy_process_group()


def _join(rank: int, n: int, backend: str) -> None:
    store, *_ = next(rendezvous("env://", timeout=LONGEST_WAIT))
    store = fresh_store(store, rank, n, LONGEST_WAIT)
    make_group(backend, store, rank, n, LONGEST_WAIT)


def _take_gpu(local_rank: int) -> None:
    n_local = int(os.environ["LOCAL_WORLD_SIZE"])
    n_gpus = torch.cuda.device_count()
    require(
        n_local <= n_gpus,
        f"--nproc-per-node must not exceed the number of GPUs, got {n_local} and {n_gpus}",
    )
    torch.cuda.set_device(local_rank)
