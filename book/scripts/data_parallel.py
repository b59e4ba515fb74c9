"""Data parallelism, with a process for each GPU, here eight:

torchrun --standalone --nproc-per-node 8 book/scripts/data_parallel.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from annotated_transformer import ModelConfig, Transformer, make_batch


class SummedLoss(nn.Module):
    """From a batch to its summed loss: what DDP wraps."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, source, target_in, target_out):
        scores = self.model(source, target_in).transpose(1, 2)
        smoothed = {"label_smoothing": 0.1, "reduction": "sum"}
        return F.cross_entropy(scores, target_out, ignore_index=0, **smoothed)


on_gpu = torch.cuda.is_available()
local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
dist.init_process_group("nccl" if on_gpu else "gloo")
rank, n_processes = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)  # every process draws the same weights
config = ModelConfig.tiny(50, N=1, d_model=32, d_ff=64, p_drop=0.0)
model = Transformer(config).to(device)
loss_of = DistributedDataParallel(SummedLoss(model))

pairs = [([5, 6, 7], [8, 9]), ([5, 6], [10, 11, 12])]
pairs += [([7], [8, 9, 10, 11]), ([9, 5], [6])]
share = make_batch(pairs[rank::n_processes]).to(device)  # sentences of its own
n_tokens = torch.tensor(share.n_tokens, device=device)
dist.all_reduce(n_tokens)  # the tokens of all shares together

loss = loss_of(*share[:3])
(loss * n_processes / n_tokens).backward()  # DDP takes the mean gradient

if rank == 0:
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    whole = make_batch(pairs).to(device)
    (SummedLoss(model)(*whole[:3]) / whole.n_tokens).backward()
    alone = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    equal = torch.allclose(gradient, alone, atol=1e-6)
    print(f"{n_processes} processes, {int(n_tokens)} tokens: the gradient of one batch is {equal}")
dist.destroy_process_group()
