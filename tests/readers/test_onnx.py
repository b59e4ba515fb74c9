"""onnxruntime and transformers.js read what `export --to onnx` writes."""

import pytest
import torch
from exports import (
    BOOK,
    N_SENTENCES,
    checkpoint_of,
    greedy_ids,
    inputs,
    random_configuration,
    same,
    sentences,
    sources,
)
from program import answer, answers, borrow, needs, needs_node
from torch.testing import assert_close

from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.command_line import entry_point as cli
from annotated_transformer.extras.formats.importing import import_checkpoint
from annotated_transformer.extras.formats.onnx import ONNX_FILES, export_checkpoint

pytestmark = [needs("onnx", "onnxruntime"), pytest.mark.slow]
borrow("onnx")


@torch.no_grad()
def test_twenty_random_configurations_compute_the_same(tmp_path, figure):
    models, asked = [], []
    rows = [side.tolist() for side in inputs()]
    for seed in range(20):
        ours, theirs = (tmp_path / f"{name}-{seed}" for name in ("ours", "theirs"))
        models.append(checkpoint_of(ours, seed, **random_configuration(seed)))
        export_checkpoint(ours, theirs)
        asked.append({"folder": theirs, "logits": rows})
    largest = 0.0
    for model, found in zip(models, answers("with_onnxruntime.py", *asked), strict=True):
        expected = model(*inputs())
        for way in ("whole", "steps"):
            logits = torch.tensor(found[way])
            assert_close(logits, expected, atol=1e-5, rtol=0)
            largest = max(largest, float((logits - expected).abs().max()))
        assert found["same"] == [True] * 4 * model.config.N
    figure(f"onnxruntime: logits of 20 random configurations differ by {largest:.1e} at most")


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    out = tmp_path_factory.mktemp("book") / "theirs"
    assert cli.main(["export", str(BOOK), "--to", "onnx", "--out", str(out)]) == 0
    return out


def test_onnxruntime_finds_the_same_ids(book, figure):
    found = answer("with_onnxruntime.py", folder=book, greedy=sources(N_SENTENCES))
    n = same(greedy_ids(N_SENTENCES), found["greedy"])
    figure(f"onnxruntime: greedy ids of {n} of {N_SENTENCES} test sentences are ours")
    assert n == N_SENTENCES


@needs_node("@huggingface/transformers")
def test_transformers_js_finds_the_same_ids(book, figure):
    found = answer("with_transformers_js.cjs", folder=book, texts=sentences(N_SENTENCES), extra=51)
    n = same(greedy_ids(N_SENTENCES), found["greedy"])
    name = f"transformers.js {found['version']}"
    figure(f"{name}: greedy ids of {n} of {N_SENTENCES} test sentences are ours")
    assert found["sources"] == sources(N_SENTENCES)
    assert n == N_SENTENCES


def test_names_and_axes_are_those_that_programs_ask_for(book):
    encoder, decoder = answer("with_onnxruntime.py", folder=book)["axes"]
    model, _ = load_model(BOOK)
    c = model.config
    batch, source = "batch_size", "encoder_sequence_length"
    assert encoder == {
        "input_ids": [batch, source],
        "attention_mask": [batch, source],
        "last_hidden_state": [batch, source, c.d_model],
    }
    caches = {
        f"{when}.{i}.{side}.{part}": (c.h, c.d_k)
        for when in ("past_key_values", "present")
        for i in range(c.N)
        for side in ("decoder", "encoder")
        for part in ("key", "value")
    }
    assert {
        name: (shape[1], shape[3]) for name, shape in decoder.items() if name in caches
    } == caches
    assert {shape[0] for name, shape in decoder.items() if name != "use_cache_branch"} == {batch}
    others = {"encoder_attention_mask", "input_ids", "encoder_hidden_states", "use_cache_branch"}
    assert decoder.keys() - caches == others | {"logits"}
    assert decoder["use_cache_branch"] == [1]


def test_the_folder_is_hugging_faces_too(book, tmp_path):
    assert sorted(path.name for path in (book / "onnx").iterdir()) == sorted(ONNX_FILES)
    import_checkpoint(book, tmp_path / "back")
    (ours, _), (back, _) = load_model(BOOK), load_model(tmp_path / "back")
    assert all(torch.equal(x, back.state_dict()[name]) for name, x in ours.state_dict().items())
    before = {path: path.read_bytes() for path in book.rglob("*") if path.is_file()}
    export_checkpoint(BOOK, book)
    assert before == {path: path.read_bytes() for path in book.rglob("*") if path.is_file()}
