"""The training loop of chapter 5.2, plain PyTorch: from pairs of ids to the weights that are kept.

It takes the steps that `TrainingRun` takes, and `train` with it, without directory, log, resuming,
GPUs and packing. It is written as on the page: for a column of 80 characters, without annotations.
"""

# mypy: ignore-errors
import copy
import math
import random

import torch
from torch.nn import functional as F

from annotated_transformer import make_batch


# fmt: off
def batches_of(pairs, max_tokens, seed=1):
    """Batches without end, each of sentences of similar length."""
    draw = random.Random(seed)
    while True:                                # an epoch
        shuffled, groups = draw.sample(pairs, len(pairs)), []
        for pair in sorted(shuffled, key=lambda pair: max(map(len, pair))):
            length = max(map(len, pair)) + 1   # with the end mark
            if not groups or (len(groups[-1]) + 1) * length > max_tokens:
                groups.append([])
            groups[-1].append(pair)
        yield from map(make_batch, draw.sample(groups, len(groups)))


def summed_loss(model, batch, eps_ls=0.1):
    """The loss of a batch, in nats, and over how many tokens it is summed."""
    scores = model(batch.source, batch.target_in).transpose(1, 2)
    loss = F.cross_entropy(scores, batch.target_out, label_smoothing=eps_ls,
                           ignore_index=0, reduction="sum")
    return loss, batch.n_tokens


def fit(model, batches, steps, rate, loss_of, validate=None, every=100):
    """Train, keep the weights that validate best, return each step's loss."""
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    losses, lowest, kept = [], math.inf, None
    for step, batch in zip(range(1, steps + 1), batches):
        loss, n = loss_of(model.train(), batch)
        (loss / n).backward()                    # divide once, by real tokens
        adam.param_groups[0]["lr"] = rate(step)  # the first step is step 1
        adam.step()
        adam.zero_grad()
        losses.append(loss.item() / n)
        if validate and step % every == 0:
            score = validate(model.eval())
            if score < lowest:
                lowest, kept = score, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept or model.state_dict())
    model.eval()
    return losses
