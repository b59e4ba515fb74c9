"""Steps as graphs find what steps find. No GPU here: a graph is a trace of a step, with what the host knew frozen."""

import gc

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close
from toys import OPTIONS, random_tokens, small_model, text_pairs, toy_tokenizer, walk

from annotated_transformer import checkpoint, graphs
from annotated_transformer.beam_search import beam_search, greedy_search
from annotated_transformer.config import ConfigError
from annotated_transformer.graphs import GraphedModel
from annotated_transformer.inference import InferenceModel
from annotated_transformer.translation import Translator

pytestmark = pytest.mark.slow


@pytest.fixture
def recorded(monkeypatch):
    """The operations of a step, recorded once on the memory that it read and wrote; buffers are full at 16 tokens."""
    shapes = []

    def record(run):
        trace = make_fx(lambda _: run())(torch.zeros(1))
        logits = trace(torch.zeros(1))
        shapes.append(tuple(logits.shape))
        return lambda: logits.copy_(trace(torch.zeros(1)))

    monkeypatch.setattr(graphs, "_Recorder", lambda device: record)
    monkeypatch.setattr(graphs, "FIRST_CAPACITY", 16)
    return shapes


def graphed(model):
    return GraphedModel(InferenceModel(model))


@pytest.mark.parametrize("changes, padding", [({}, 0), *((changes, 2) for changes in OPTIONS)], ids=str)
def test_recorded_steps_are_the_models_own(changes, padding, recorded):
    model, source = small_model(**changes), random_tokens(1, 3, 7)
    source[1, 7 - padding :] = 0
    made_ready = graphed(model)
    numbers = []
    for _ in range(2):  # the second time from the same recordings
        for ours, expected in zip(walk(made_ready, source), walk(model, source), strict=True):
            assert_close(ours, expected)
        numbers.append(len(recorded))
    assert numbers[0] == numbers[1] < 13


def test_search_finds_the_same_in_batches_one_after_the_other(recorded):
    model = small_model(seed=1)
    made_ready = graphed(model)
    numbers = []
    for n, length in [(8, 9), (3, 20), (8, 9)]:
        source = random_tokens(n, n, length)
        source[2:5, 3:] = 0
        found, expected = beam_search(made_ready, source, 3, n_best=3), beam_search(model, source, 3, n_best=3)
        assert [[h.tokens for h in hs] for hs in found] == [[h.tokens for h in hs] for hs in expected]
        assert_close([h.score for hs in found for h in hs], [h.score for hs in expected for h in hs])
        assert greedy_search(made_ready, source) == greedy_search(model, source)
        numbers.append(len(recorded))
    assert numbers[0] < numbers[1] == numbers[2]  # the shapes of the last batch had all occurred


def test_what_is_written_in_one_search_is_not_read_in_another(recorded):
    model, sources = small_model(), [random_tokens(1, 3, 7), random_tokens(2, 3, 7)]
    made_ready = graphed(model)
    turns = [walk(made_ready, source) for source in sources]
    expected = [walk(model, source) for source in sources]
    for step in zip(*turns, *expected, strict=True):  # two searches, in turns
        assert_close(step[:2], step[2:])


def test_buffers_that_nothing_uses_are_kept_up_to_a_number_of_bytes(recorded, monkeypatch):
    made_ready = graphed(small_model())
    states = [made_ready.start(random_tokens(1, 3, 7)) for _ in range(5)]
    assert made_ready.unused == []
    buffers = [state.buffers for state in states]
    assert buffers[0].n_bytes == 8 * 2 * 4 * (4 * 2 * 16 * 4)  # float64, N layers, 4 buffers of B, h, T and d_k
    monkeypatch.setattr(graphs, "MOST_UNUSED", 3 * buffers[0].n_bytes)
    for state in states:
        state.release()
    assert made_ready.unused == buffers[2:]  # the last to be used
    state = made_ready.start(random_tokens(1, 3, 7))
    assert state.buffers in buffers and len(made_ready.unused) == 2
    del state
    gc.collect()
    assert len(made_ready.unused) == 3


def test_weights_that_are_loaded_count(recorded):
    model, other, source = small_model(), small_model(seed=5), random_tokens(1, 3, 7)
    made_ready = graphed(model)
    before = greedy_search(made_ready, source)
    n_recorded = len(recorded)
    model.load_state_dict(other.state_dict())
    assert greedy_search(made_ready, source) == greedy_search(other, source) != before
    assert len(recorded) == n_recorded


def test_what_a_broken_model_left_in_the_buffers_is_gone(recorded):
    model, source = small_model(), random_tokens(1, 3, 7)
    made_ready, weights = graphed(model), {name: t.clone() for name, t in model.state_dict().items()}
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan)
    state = made_ready.start(source)
    for seed in range(3):
        made_ready.step(random_tokens(seed, 3, 1), state)
    del state
    assert made_ready.unused[0].layers[0][0][:, :, 1:3].isnan().any()  # where the next search has not written yet
    model.load_state_dict(weights)
    assert greedy_search(made_ready, source) == greedy_search(small_model(), source)


def test_a_beam_that_is_wider_than_the_first_buffers(recorded):
    made_ready, model, source = graphed(small_model()), small_model(), random_tokens(1, 2, 3)
    for ours, theirs in zip(*(beam_search(m, source, 100, max_extra=4) for m in (made_ready, model)), strict=True):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]


def test_graphs_of_weights_that_move_are_refused():
    with pytest.raises(ConfigError, match="no copy_halves"):
        GraphedModel(InferenceModel(small_model(), copy_halves=True))


def test_the_logits_of_a_step_stay_as_they_were(recorded):
    made_ready = graphed(small_model())
    state = made_ready.start(random_tokens(1, 3, 7))
    first = made_ready.step(random_tokens(2, 3, 1), state)
    kept = first.clone()
    made_ready.step(random_tokens(3, 3, 1), state)
    assert torch.equal(first, kept)
    state.keep(torch.tensor([], dtype=torch.long))
    assert made_ready.step(random_tokens(2, 0, 1), state).shape == (0, 1, made_ready.config.vocab_size)


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
    translator._searched = graphed(model)  # without a graph, the same steps
    assert translator.translate(sources) == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_replays_what_it_recorded(monkeypatch):
    model = small_model(dtype=torch.float32).cuda()
    for most_unused in (2**32, 0):  # with 0 graphs are destroyed all the time
        monkeypatch.setattr(graphs, "MOST_UNUSED", most_unused)
        made_ready = graphed(model)
        for n, length in [(3, 7), (8, 9), (3, 20), (3, 7), (8, 9)]:
            source = random_tokens(n, n, length).cuda()
            assert greedy_search(made_ready, source) == greedy_search(model, source)
            found, expected = beam_search(made_ready, source), beam_search(model, source)
            assert [h[0].tokens for h in found] == [h[0].tokens for h in expected]
