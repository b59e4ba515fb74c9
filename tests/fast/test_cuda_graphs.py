"""Steps as graphs find what steps find, by the real recorder on a `torch.cuda` that pretends:
there is no GPU here."""

import gc
import random
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from toys import OPTIONS, random_tokens, small_model, text_pairs, toy_tokenizer, walk

from annotated_transformer import checkpoint
from annotated_transformer.config import ConfigError
from annotated_transformer.fast import cuda_graphs as graphs
from annotated_transformer.fast.cuda_graphs import GraphedModel
from annotated_transformer.fast.decoder import FastDecoder
from annotated_transformer.translation.search import beam_search, greedy_search
from annotated_transformer.translation.translator import Translator

pytestmark = pytest.mark.slow


class Graph(TorchDispatchMode):
    """A graph is a list of operations on the memory that they had; `replay` does them again,
    without Python."""

    def __init__(self):
        super().__init__()
        self.operations, self.n_replays = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        assert "_local_scalar_dense" not in str(func), (
            "a number is asked for while the stream is captured"
        )
        found = func(*args, **kwargs)
        old = {
            x.untyped_storage().data_ptr()
            for x in tree_leaves((args, kwargs))
            if isinstance(x, torch.Tensor)
        }
        new = [
            x if x.untyped_storage().data_ptr() not in old else None
            for x in tree_leaves(found)
            if isinstance(x, torch.Tensor)
        ]
        self.operations.append((func, args, kwargs, new))
        return found

    def replay(self):
        self.n_replays += 1
        for func, args, kwargs, new in self.operations:
            found = [x for x in tree_leaves(func(*args, **kwargs)) if isinstance(x, torch.Tensor)]
            for kept, again in zip(new, found, strict=True):
                if kept is not None:
                    kept.copy_(again)


class PretendedCuda:
    """What the recorder asks of `torch.cuda`,
    with a log of the order in which streams run and wait."""

    def __init__(self):
        self.log, self.captured, self.running = [], [], ["main"]
        self.CUDAGraph, self.graph_pool_handle, self.device = Graph, lambda: "pool", nullcontext

    def Stream(self, device):
        return SimpleNamespace(
            name="side", wait_stream=lambda other: self.log.append(f"side waits for {other.name}")
        )

    def current_stream(self, device):
        return SimpleNamespace(
            name="main", wait_stream=lambda other: self.log.append(f"main waits for {other.name}")
        )

    @contextmanager
    def stream(self, stream):
        self.log.append(f"a step on {stream.name}")
        yield

    @contextmanager
    def graph(self, graph, pool=None, stream=None):
        assert not gc.isenabled()
        self.log.append(
            f"recorded on {stream.name if stream else 'another stream'} in "
            f"{pool or 'a pool of its own'}"
        )
        self.captured.append(graph)
        with graph:
            yield

    @property
    def steps(self):
        """The graphs with something in them."""
        return [graph for graph in self.captured if graph.operations]


@pytest.fixture
def cuda(monkeypatch):
    """The real recorder on a pretended `torch.cuda`; buffers are full at 16 tokens."""
    pretended, recorder = PretendedCuda(), graphs.Recorder
    for name in (
        "CUDAGraph", "graph_pool_handle", "device", "Stream", "current_stream", "stream", "graph",
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, getattr(pretended, name))
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
    monkeypatch.setattr(graphs, "Recorder", lambda device: recorder(torch.device("cuda")))
    monkeypatch.setattr(graphs, "FIRST_CAPACITY", 16)
    return pretended


def graphed(model):
    return GraphedModel(FastDecoder(model))


@pytest.mark.parametrize(
    "changes, padding", [({}, 0), *((changes, 2) for changes in OPTIONS)], ids=str
)
def test_recorded_steps_are_the_models_own(changes, padding, cuda):
    model, source = small_model(**changes), random_tokens(1, 3, 7)
    source[1, 7 - padding :] = 0
    decoder = graphed(model)
    numbers = []
    for _ in range(2):  # the second time from the same recordings
        for ours, expected in zip(walk(decoder, source), walk(model, source), strict=True):
            assert_close(ours, expected)
        numbers.append(len(cuda.steps))
    assert numbers[0] == numbers[1] < 7


def test_search_finds_the_same_in_batches_one_after_the_other(cuda):
    model = small_model(seed=1)
    decoder = graphed(model)
    numbers = []
    for n, length in [(8, 9), (3, 70), (8, 9)]:
        source = random_tokens(n, n, length)
        source[2:5, 3:] = 0
        found, expected = (
            beam_search(decoder, source, 3, n_best=3),
            beam_search(model, source, 3, n_best=3),
        )
        assert [[h.tokens for h in hs] for hs in found] == [
            [h.tokens for h in hs] for hs in expected
        ]
        assert_close(
            [h.score for hs in found for h in hs], [h.score for hs in expected for h in hs]
        )
        assert greedy_search(decoder, source) == greedy_search(model, source)
        numbers.append(len(cuda.steps))
    assert numbers[0] < numbers[1] == numbers[2]  # the shapes of the last batch had all occurred


def test_what_is_written_in_one_search_is_not_read_in_another(cuda):
    model, sources = small_model(), [random_tokens(1, 3, 7), random_tokens(2, 3, 7)]
    decoder = graphed(model)
    turns = [walk(decoder, source) for source in sources]
    expected = [walk(model, source) for source in sources]
    for step in zip(*turns, *expected, strict=True):  # two searches, in turns
        assert_close(step[:2], step[2:])


def test_buffers_that_nothing_uses_are_kept_up_to_a_number_of_bytes(cuda, monkeypatch):
    decoder = graphed(small_model())
    states = [decoder.start(random_tokens(1, 3, 7)) for _ in range(5)]
    assert decoder.unused == []
    buffers = [state.buffers for state in states]
    monkeypatch.setattr(graphs, "MOST_UNUSED", 3 * buffers[0].n_bytes)
    for state in states:
        state.release()
    assert decoder.unused == buffers[2:]  # the last to be used
    state = decoder.start(random_tokens(1, 3, 7))
    assert state.buffers in buffers and len(decoder.unused) == 2
    del state
    gc.collect()
    assert len(decoder.unused) == 3


class RandomLogits:
    """The model's steps, with logits that let hypotheses end at random,
    so that beams become narrow."""

    def __init__(self, model):
        self.model, self.config, self.start = model, model.config, model.start
        self.generator = torch.Generator().manual_seed(0)

    def step(self, tokens, state):
        logits = torch.randn(self.model.step(tokens, state).shape, generator=self.generator)
        logits[..., self.config.eos_id] += 1
        return logits


def test_a_file_of_any_length_makes_a_handful_of_graphs(cuda, monkeypatch):
    """300 sentences, two windows, beam 4: to record a graph takes as long as five steps or so,
    so few must do."""
    monkeypatch.setattr(graphs, "FIRST_CAPACITY", 128)
    monkeypatch.setattr(
        Graph, "replay", lambda graph: setattr(graph, "n_replays", graph.n_replays + 1)
    )
    generator = random.Random(1)
    lengths = [min(50, max(1, round(15 * generator.lognormvariate(0, 0.5)))) for _ in range(300)]
    model = small_model(dtype=torch.float32, vocab_size=toy_tokenizer().vocab_size, N=1)
    translator = Translator(model, toy_tokenizer())
    monkeypatch.setattr(
        translator.tokenizer, "encode_batch", lambda lines: [[5] * int(line) for line in lines]
    )
    translator.search_model = RandomLogits(graphed(model))
    list(translator.translate_stream(map(str, lengths), 150, max_extra=4, max_batch_tokens=2048))
    n_replays = sum(graph.n_replays for graph in cuda.steps)
    assert len(cuda.steps) < 6 and n_replays > 50 * len(cuda.steps), (len(cuda.steps), n_replays)


def test_a_step_is_recorded_after_one_that_is_not_and_all_share_a_stream_and_a_pool(cuda):
    """What the current stream wrote is there before the side stream reads it,
    and the other way round."""
    model, source = small_model(), random_tokens(1, 3, 7)
    beam_search(graphed(model), source, 3, max_extra=3)
    recorded = "recorded on side in pool"
    # An empty graph keeps the pool.
    assert cuda.log[0] == recorded and not cuda.captured[0].operations
    one = ["side waits for main", "a step on side", "main waits for side", recorded]
    assert cuda.log[1:] == one * len(cuda.steps) and cuda.steps
    assert gc.isenabled()


def test_weights_that_are_loaded_count(cuda):
    """In graphs that are there already: they find them where the old ones were."""
    model, other, source = small_model(), small_model(seed=5), random_tokens(1, 3, 7)
    decoder = graphed(model)
    before = greedy_search(decoder, source)
    n_recorded = len(cuda.steps)
    model.load_state_dict(other.state_dict())
    assert greedy_search(decoder, source) == greedy_search(other, source) != before
    assert len(cuda.steps) == n_recorded


def test_what_a_broken_model_left_in_the_buffers_is_gone(cuda):
    model, source = small_model(), random_tokens(1, 3, 7)
    decoder, weights = (
        graphed(model),
        {name: t.clone() for name, t in model.state_dict().items()},
    )
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan)
    state = decoder.start(source)
    for seed in range(3):
        decoder.step(random_tokens(seed, 3, 1), state)
    del state
    # There the next search has not written yet.
    assert decoder.unused[0].layers[0][0][:, :, 1:3].isnan().any()
    model.load_state_dict(weights)
    assert greedy_search(decoder, source) == greedy_search(small_model(), source)


def test_a_beam_that_is_wider_than_the_first_buffers(cuda):
    decoder, model, source = graphed(small_model()), small_model(), random_tokens(1, 2, 3)
    for ours, theirs in zip(
        *(beam_search(m, source, 100, max_extra=4) for m in (decoder, model)), strict=True
    ):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]


def test_graphs_of_weights_that_move_are_refused():
    with pytest.raises(ConfigError, match="no keep_float16_copy"):
        GraphedModel(FastDecoder(small_model(), keep_float16_copy=True))


def test_the_logits_of_a_step_stay_as_they_were(cuda):
    decoder = graphed(small_model())
    state = decoder.start(random_tokens(1, 3, 7))
    logits = [decoder.step(random_tokens(seed, 3, 1), state) for seed in (2, 3)]
    kept = [each.clone() for each in logits]
    decoder.step(random_tokens(4, 3, 1), state)
    assert cuda.steps and all(map(torch.equal, logits, kept))
    state.keep(torch.tensor([], dtype=torch.long))
    assert decoder.step(random_tokens(2, 0, 1), state).shape == (
        0,
        1,
        decoder.config.vocab_size,
    )


def test_graphs_are_for_a_gpu(tmp_path):
    tokenizer = toy_tokenizer()
    model = small_model(dtype=torch.float32, vocab_size=tokenizer.vocab_size)
    checkpoint.write_directory(tmp_path, model.config, tokenizer)
    checkpoint.save_weights(tmp_path / "model.safetensors", model)
    with pytest.raises(ConfigError, match="graphs need a GPU"):
        Translator.from_checkpoint(tmp_path, graphs=True)
    translator = Translator(model, tokenizer)
    sources = [source for source, _ in text_pairs(1, 3)]
    expected = translator.translate(sources)
    translator.search_model = graphed(model)  # without a graph, the same steps
    assert translator.translate(sources) == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_replays_what_it_recorded(monkeypatch):
    model = small_model(dtype=torch.float32).cuda()
    for most_unused in (2**32, 0):  # with 0 graphs are destroyed all the time
        monkeypatch.setattr(graphs, "MOST_UNUSED", most_unused)
        decoder = graphed(model)
        for n, length in [(3, 7), (8, 9), (3, 20), (3, 7), (8, 9)]:
            source = random_tokens(n, n, length).cuda()
            assert greedy_search(decoder, source) == greedy_search(model, source)
            found, expected = beam_search(decoder, source), beam_search(model, source)
            assert [h[0].tokens for h in found] == [h[0].tokens for h in expected]
