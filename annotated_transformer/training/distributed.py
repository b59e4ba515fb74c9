"""Many processes, one run: what the paper's eight GPUs did together (section 5.2).

`torchrun` starts the processes and numbers them; PyTorch joins them. A step has as many batches as
`accumulate` says, whatever the number of processes: each takes its share of them, and the gradient
is that of the mean over the real target tokens of all. So n processes make the run of one, and a
run can go on with another number of them.
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
from torch.nn.parallel import DistributedDataParallel

from annotated_transformer.config import TrainConfig
from annotated_transformer.errors import ConfigError, require
from annotated_transformer.model.transformer import Transformer

T = TypeVar("T")
_wrapped: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
LONGEST_WAIT = timedelta(hours=1)
"""For the others, where one has something to do alone, such as learning a vocabulary."""


@dataclass(frozen=True)
class Processes:
    """The processes of a run as one of them sees them: number `rank` of `n`.

    Alone, the default, nothing is exchanged, and every method gives what it is given. The others
    have to call the same methods in the same order. `restarted` says that torchrun has started the
    processes again, after one of them had failed.
    """

    rank: int = 0
    n: int = 1
    local_rank: int = 0
    restarted: bool = False

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes files and says what there is to say."""
        return self.rank == 0

    def require_divides(self, accumulate: int) -> None:
        """Raise ConfigError unless the batches of a step can be shared out evenly."""
        require(
            accumulate % self.n == 0,
            "accumulate, the batches of a step, must be a multiple of the number of processes, "
            f"got {accumulate} and {self.n}",
        )

    def takes(self, i: int) -> bool:
        """Whether batch number i of a step is one of this process."""
        return i % self.n == self.rank

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Those that this process takes."""
        return items[self.rank :: self.n]

    def share_of_step(self, batches: Sequence[T], loss: nn.Module) -> Iterator[T]:
        """The same of the batches of a step, of which the last one exchanges the gradients.

        What `data_parallel` and `fully_sharded` give is then the mean over the processes of what
        each has added up.
        """
        self.require_divides(len(batches))
        mine = self.share(batches)
        for i, batch in enumerate(mine, 1):
            with _exchanging(loss, i == len(mine)):
                yield batch

    def total(self, numbers: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.n > 1:
            dist.all_reduce(numbers)
        return numbers

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in one process at least."""
        return bool(self.total(torch.tensor(int(flag))))

    def gathered(self, numbers: Tensor) -> list[Tensor]:
        """The tensors of all processes, by rank: on the host, and of one shape."""
        found = [torch.empty_like(numbers) for _ in range(self.n)]
        if self.n > 1:
            dist.all_gather(found, numbers)
        return found if self.n > 1 else [numbers]

    def from_first(self, make: Callable[[], bytes]) -> bytes:
        """What the first process makes, in all of them."""
        data = make() if self.is_first else b""
        if self.n == 1:
            return data
        length = self.total(torch.tensor(len(data)))
        held = torch.zeros(int(length), dtype=torch.uint8)
        if data:
            held = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if len(held):
            dist.broadcast(held, 0)
        return held.numpy().tobytes()

    def require_same(self, digest: str, what: str) -> None:
        """Raise ConfigError, in all processes, unless the digest is the same in all."""
        first = self.from_first(digest.encode)
        others = self.any(first != digest.encode())
        require(not others, f"the processes of a run need the same {what}, and one has another")

    def device(self, name: str) -> str:
        """The device of this process: on a machine with several GPUs one of them."""
        return f"cuda:{self.local_rank}" if name == "cuda" and self.n > 1 else name

    def seed(self, *numbers: int) -> None:
        """Random numbers of its own for each process, such as dropout's.

        The first one goes on with those that it has, as a process that is alone does.
        """
        if not self.is_first:
            torch.manual_seed(random.Random(f"{numbers} {self.rank}").getrandbits(63))


ALONE = Processes()


def require_parallel(config: TrainConfig, processes: Processes, fsdp: bool) -> None:
    """Raise ConfigError for settings that a run of many processes cannot have."""
    processes.require_divides(config.accumulate)
    require(
        not config.bpe_dropout or processes.n == 1,
        "bpe_dropout gives every process another text to share out: it must be 0 for "
        f"{processes.n} processes, got {config.bpe_dropout}",
    )
    require(
        not fsdp or processes.n > 1,
        "--fsdp shares a model out over several processes: start them with torchrun",
    )
    require(not (fsdp and config.compile), "--fsdp and compile do not go together")


@contextmanager
def joined(device: str) -> Iterator[Processes]:
    """The processes that torchrun has started, joined until the end of the block.

    On GPUs gradients go by NCCL; what the host wants to know goes by gloo, so that no GPU has to be
    waited for. Where torchrun has started nothing, the process is alone. Raises ConfigError where a
    machine has fewer GPUs than processes, and where another
    process of the run has gone.
    """
    if not dist.is_torchelastic_launched():
        yield ALONE
        return
    rank, n, local_rank, n_local, restarts = (
        int(os.environ[name])
        for name in (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "TORCHELASTIC_RESTART_COUNT",
        )
    )
    if n == 1:
        yield Processes(restarted=restarts > 0)
        return
    if device == "cuda":
        n_gpus = torch.cuda.device_count()
        require(
            n_local <= n_gpus,
            f"--nproc-per-node must not exceed the number of GPUs, got {n_local} and {n_gpus}",
        )
        torch.cuda.set_device(local_rank)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=LONGEST_WAIT)
    try:
        processes = Processes(rank, n, local_rank)
        yield Processes(rank, n, local_rank, processes.any(restarts > 0))
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            line = str(error).splitlines()[0]
            raise ConfigError(f"process {rank} of {n} has lost another one: {line}") from None
        raise
    finally:
        let_go_of_gradients()
        dist.destroy_process_group()


def let_go_of_gradients() -> None:
    """Take from all that `data_parallel` made what exchanges gradients.

    It holds the group of processes. If it were the last to do so, it would wait, with Python's lock
    in its hands, for a thread of the group that waits for this lock, and the process would hang.
    """
    for module in _wrapped:
        vars(module).pop("logger", None)
        vars(module).pop("reducer", None)


def data_parallel(loss: nn.Module) -> nn.Module:
    """The module whose backward pass gives every process the mean of all gradients (DDP).

    The table of positions is no weight: it grows on its own, so that buffers are left alone.
    """
    known = inspect.signature(DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, bool] = {name: False, "gradient_as_bucket_view": True}
    module = DistributedDataParallel(loss, **options)  # type: ignore[arg-type]
    _wrapped.add(module)
    return module


def fully_sharded(loss: nn.Module, model: Transformer, device: torch.device, n: int) -> nn.Module:
    """The same for a model that one device cannot hold with its gradients and moments (FSDP2).

    Each process keeps a part of every weight. A layer is put together when it is its turn.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (n,))
    for layer in (*model.encoder.layers, *model.decoder.layers):
        fully_shard(layer, mesh=mesh)
    return fully_shard(loss, mesh=mesh)  # type: ignore[return-value]


def _exchanging(loss: nn.Module, is_last: bool) -> AbstractContextManager[Any]:
    if isinstance(loss, DistributedDataParallel):
        return nullcontext() if is_last else loss.no_sync()
    choose: Any = getattr(loss, "set_requires_gradient_sync", None)
    if choose:
        choose(is_last)
    return nullcontext()
