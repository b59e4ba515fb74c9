"""The page in which a model learns: its engine, run in Node, against PyTorch and its autograd."""

import re
import runpy

import pytest
import torch
from torch.nn import functional as F

from annotated_transformer.decoding.search import greedy_search
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.attention_views.record import record_attention
from annotated_transformer.model.transformer import Transformer
from lab.training_page import reversal
from lab.training_page.page import write_training_page
from lab.training_page.reversal import Generator, draw_word, reversal_batch
from tools.page_engine import NODE, run_training_engine

needs_node = pytest.mark.skipif(not NODE, reason="no node on this machine")
UNEVEN = {"N": 2, "d_model": 18, "d_ff": 11, "h": 3}  # sizes that no tile fills


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    out = tmp_path_factory.mktemp("training") / "page"
    return write_training_page(out, reversal.page_settings(), 1, [1.0, 0.5])


def model_in_python(seed, **sizes):
    """The model that the page begins with, in float64."""
    config = reversal.MODEL.replace(**sizes)
    model = Transformer(config).double()
    reversal.initialize(model, Generator(seed))
    return model


def draw(seed, n, length=0):
    generator = Generator(seed)
    return [draw_word(generator, held_out=False, length=length) for _ in range(n)]


def loss_of(model, words):
    """The loss of these words, whose gradients are then in the parameters."""
    batch = reversal_batch(words)
    logits = model(batch.source, batch.target_in).flatten(0, 1)
    loss = F.cross_entropy(logits, batch.target_out.flatten(), ignore_index=0)
    loss.backward()
    return loss.item()


# Chance from a seed


@needs_node
def test_both_languages_draw_the_same(page):
    for seed in (1, 2**32 - 1):
        (found,) = run_training_engine(page, {"do": "numbers", "seed": seed, "n": 500})
        generator = Generator(seed)
        for uniform, whole, normal in found:
            assert uniform == generator.next() and whole == generator.below(26)
            assert normal == pytest.approx(generator.normal(), abs=1e-14)


def test_the_numbers_look_random():
    """Evenly spread, and none says anything of the next; the bounds are five standard errors."""
    generator, n = Generator(5), 20_000
    draws = torch.tensor([generator.next() for _ in range(n)], dtype=torch.float64)
    normals = torch.tensor([generator.normal() for _ in range(n)], dtype=torch.float64)
    error = 5 / n**0.5
    assert draws.min() >= 0 and draws.max() < 1
    assert abs(draws.mean() - 1 / 2) < error * (1 / 12) ** 0.5
    assert abs(torch.corrcoef(torch.stack([draws[1:], draws[:-1]]))[0, 1]) < error
    assert abs(normals.mean()) < error and abs(normals.var() - 1) < error * 2**0.5


@needs_node
def test_words_are_the_same_and_held_out_words_are_never_trained_on(page):
    job = {"do": "words", "seed": 3, "n": 300}
    of_both = {"heldOut": False, "length": 0}, {"heldOut": True, "length": 8}
    trained, held_out = run_training_engine(page, *({**job, **kind} for kind in of_both))
    generator = Generator(3)
    assert held_out == [draw_word(generator, held_out=True, length=8) for _ in range(300)]
    assert trained == draw(3, 300) and {len(word) for word in trained} == set(range(1, 9))
    assert not {tuple(word) for word in trained} & {tuple(word) for word in held_out}
    share = sum(reversal.is_held_out(word) for word in trained + held_out) / 600
    assert share == 0.5 and not any(map(reversal.is_held_out, trained))


# The model and its gradients


@needs_node
@pytest.mark.parametrize("sizes", [{}, UNEVEN], ids=str)
def test_initial_values_are_those_of_python(page, sizes):
    (found,) = run_training_engine(page, {"do": "initial", "settings": {**sizes, "seed": 4}})
    expected = dict(model_in_python(4, **sizes).named_parameters())
    assert list(found) == list(expected)
    for name, parameter in expected.items():
        values = torch.tensor(found[name], dtype=torch.float64).view_as(parameter)
        torch.testing.assert_close(values, parameter.detach(), rtol=1e-14, atol=1e-14)


def test_they_spread_as_the_packages_own_do():
    ours, theirs = model_in_python(6), Transformer(reversal.MODEL)
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if one.dim() == 1:
            assert torch.equal(one, other.double()), name
        else:
            assert one.std().item() == pytest.approx(other.std().item(), rel=0.1), name


@needs_node
@pytest.mark.parametrize("sizes", [{}, UNEVEN], ids=str)
def test_loss_and_gradients_are_those_of_autograd(page, sizes):
    words = draw(7, 13)
    job = {"do": "gradients", "settings": {**sizes, "seed": 8}, "words": words}
    (found,) = run_training_engine(page, job)
    model = model_in_python(8, **sizes)
    assert found["loss"] == pytest.approx(loss_of(model, words), rel=1e-12)
    for name, parameter in model.named_parameters():
        grad = torch.tensor(found["grads"][name], dtype=torch.float64).view_as(parameter)
        torch.testing.assert_close(grad, parameter.grad, rtol=1e-9, atol=1e-12)
        assert parameter.grad.abs().max() > 0, name


@needs_node
def test_without_positions_it_is_blind_to_order(page):
    word, name = [5, 9, 7, 4], "encoder.layers.0.self_attention.W_V.weight"
    jobs = [
        {"do": "gradients", "settings": {"positions": positions, "seed": 8}, "words": [word]}
        for positions in (False, True)
    ]
    blind, sighted = (answer["grads"][name] for answer in run_training_engine(page, *jobs))
    model = model_in_python(8, positions="none")
    loss_of(model, [word])
    assert blind == pytest.approx(model.get_parameter(name).grad.flatten().tolist())
    assert blind != pytest.approx(sighted)


# Training


@needs_node
def test_the_loss_curve_is_pytorchs(page):
    """Forward, backward, clipping, rate and Adam; a step's sum is told in float32."""
    (found,) = run_training_engine(page, {"do": "losses", "settings": {"seed": 9}, "steps": 40})
    assert found[-1] < found[0] - 0.5
    assert found == pytest.approx(reversal.losses(9, 40), rel=0, abs=1e-6)


@pytest.mark.slow
@needs_node
def test_what_it_says_and_where_it_looks_are_the_models(page):
    """Of a half-trained model: some words are right, and some are not."""
    words = draw(11, 8, length=2) + draw(12, 4, length=1) + draw(13, 8, length=8)
    job = {"do": "after", "settings": {"factor": 0.6}, "steps": 150, "words": words}
    (found,) = run_training_engine(page, job)
    model = Transformer(reversal.MODEL).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.tensor(found["values"][name]).view_as(parameter))
    sources = reversal_batch(words).source
    said = [ids[:8] for ids in greedy_search(model, sources)]
    right = [ids == word[::-1] for ids, word in zip(said, words, strict=True)]
    assert found["says"] == said and found["right"] == right and len(set(right)) == 2
    batch = reversal_batch(words[:1])
    with torch.inference_mode(), record_attention(model) as weights:
        model(batch.source, batch.target_in)
    for kind, name in (
        ("encoder", "encoder.layers.0.self_attention"),
        ("decoder", "decoder.layers.0.self_attention"),
        ("cross", "decoder.layers.0.cross_attention"),
    ):
        for rows, head in zip(found["look"][kind][0], weights[name][0], strict=True):
            for query, (ours, theirs) in enumerate(zip(rows, head, strict=True)):
                n = query + 1 if kind == "decoder" else len(theirs)
                assert ours == pytest.approx(theirs[:n].tolist(), abs=1e-7)


@pytest.mark.slow
@needs_node
def test_it_learns_to_reverse_words_that_it_has_never_seen(page):
    (found,) = run_training_engine(page, {"do": "solve", "settings": {}, "steps": 3000})
    assert found["right"] == found["of"] == 200, found


# The files


def test_the_page_is_small_and_names_no_other_host(page):
    sizes = {path.name: path.stat().st_size for path in page.iterdir()}
    assert set(sizes) == {
        "index.html", "page.css", "training.css", "training.js", "views.js", "parts.js",
        "engine.js", "reference.js",
    }  # fmt: skip
    assert sum(sizes.values()) < 100_000
    text = "".join(path.read_text(encoding="utf-8") for path in page.iterdir())
    addresses = re.findall(r"\b(?:https?:)?//[a-z][\w.-]+\.[a-z]{2,}[^\s\"')\\]*", text)
    assert set(addresses) == {"http://www.w3.org/2000/svg"}


def test_a_checkpoint_is_not_written_over(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="a directory of its own"):
        write_training_page(tmp_path, {}, 1, [])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "training.safetensors").write_bytes(b"precious")
    with pytest.raises(ConfigError, match="holds a training run"):
        reversal.write_page_beside_pytorch(tmp_path / "run")


def test_the_program_writes_the_page_with_pytorchs_losses(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reversal, "losses", lambda seed: [3.25])
    monkeypatch.setattr("sys.argv", ["training_page", "--out", str(tmp_path / "page")])
    runpy.run_module("lab.training_page")
    assert capsys.readouterr().out == f"{tmp_path / 'page'}\n"
    assert '"losses": [3.25]' in (tmp_path / "page" / "reference.js").read_text(encoding="utf-8")
