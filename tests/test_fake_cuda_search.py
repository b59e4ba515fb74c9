"""Search on a pretended GPU: no device is mixed, and the host waits once a step,
for the best candidates."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from annotated_transformer.config import ModelConfig
from annotated_transformer.decoding.search import beam_search, greedy_search
from annotated_transformer.fast.decoder import FastDecoder
from annotated_transformer.model.transformer import Transformer
from fake_cuda import fake_cuda
from toys import SMALL

READY = {"Transformer": lambda model: model, "FastDecoder": FastDecoder}
SEARCHES = {
    "greedy": greedy_search,
    "beam 3": lambda *args: beam_search(*args, beam_size=3, n_best=2),
}


class Steps:
    """A model that notes the shape of each step's tokens."""

    def __init__(self, model):
        self.model, self.config, self.start, self.shapes = model, model.config, model.start, []

    def step(self, tokens, state):
        self.shapes.append(tuple(tokens.shape))
        return self.model.step(tokens, state)


def on_gpu(model, dtype):
    """`model.to("cuda", dtype)`, which fake parameters do not always allow."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach().to("cuda", dtype)))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to("cuda", dtype))
    return model.eval()


def numbers_of_a_search(*limits):
    """The host hears of one sentence's limit after the other, then, in each step,
    only of candidates (0, 0, 0.0)."""
    known = iter(limits)
    return lambda tensor: next(known, 0) if tensor.dtype == torch.long else 0.0


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("ready", READY)
def test_a_search_waits_once_a_step_and_mixes_no_devices(search, ready):
    config = ModelConfig(**{**SMALL, "N": 1, "norm": "pre", "bias": True})
    limits = 7, 9, 8  # further than the first buffers reach
    with fake_cuda(answer=numbers_of_a_search(*limits)) as waits:
        model = Steps(READY[ready](on_gpu(Transformer(config), torch.float16)))
        source = torch.zeros(3, 7, dtype=torch.long).pin_memory().to("cuda", non_blocking=True)
        waits.clear()  # those of the weights' way there
        found = SEARCHES[search](model, source)
    assert len(found) == 3 and [b for b, _ in model.shapes] == [3] * 7 + [2, 1]
    assert waits == ["copy to the host"] * (1 + 9)  # for the limits, then for what each step found


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("ready", READY)
def test_cudnn_attends_in_no_step_of_a_search(search, ready, monkeypatch):
    """It makes a plan for each new length, and a search has a new length in each step."""
    enabled, attention = [], F.scaled_dot_product_attention

    def note(*args, **options):
        enabled.append(torch.backends.cuda.cudnn_sdp_enabled())
        return attention(*args, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", note)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with fake_cuda(answer=numbers_of_a_search(2, 2)):
        model = READY[ready](on_gpu(Transformer(ModelConfig(**{**SMALL, "N": 1})), torch.float16))
        SEARCHES[search](model, torch.zeros(2, 7, dtype=torch.long, device="cuda"))
    assert len(enabled) >= 3 and not any(enabled)
    assert torch.backends.cuda.cudnn_sdp_enabled() == before
