"""A checkpoint that is dropped on the page: what it computes, run in Node, and what is refused."""

import json
from pathlib import Path

import pytest
import sentencepiece
import torch
from marian_form import write_marian
from safetensors.torch import load_file, save_file

from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.extras.formats.huggingface import export_checkpoint
from annotated_transformer.extras.formats.importing import import_checkpoint
from annotated_transformer.extras.page.int8_rows import with_int8_rows
from annotated_transformer.extras.page.writing import write_page
from tools.page_engine import NODE, run_engine
from toys import OPTIONS, SHAPES, small_checkpoint, text_pairs

BOOK_MODEL = Path(__file__).parents[3] / "book" / "model"
NONE = {"positions": True, "without": []}
pytestmark = pytest.mark.skipif(not NODE, reason="no node on this machine")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    small_checkpoint(folder / "run")
    return write_page(folder / "run", folder / "page")


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    """A folder of opus-mt's form, which no test changes, and its vocabulary."""
    folder = tmp_path_factory.mktemp("marian") / "opus-mt-en-de"
    return folder, write_marian(folder)[2]


def logits_of(page, folder, source, target):
    jobs = {"do": "logits", "source": source, "target": target, "change": NONE}
    facts, logits = run_engine(page, {"do": "open", "folder": str(folder)}, jobs)
    return facts, torch.tensor(logits, dtype=torch.float64)


@pytest.mark.parametrize("changes", [*SHAPES.values(), *OPTIONS[1:]], ids=str)
def test_a_checkpoint_of_ours_has_the_logits_of_its_page(tmp_path, page, changes):
    stored = small_checkpoint(tmp_path / "own", **changes)
    model = with_int8_rows(stored)
    source, target = [5, 9, 7, 4, 2], [1, 6, 3, 8]
    facts, found = logits_of(page, tmp_path / "own", source, target)
    expected = model(torch.tensor([source]), torch.tensor([target]))[0].detach()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert facts["shares"][-1] == pytest.approx(1) and facts["shares"] == sorted(facts["shares"])
    assert facts["n_parameters"] == sum(one.numel() for one in stored.parameters())


def test_the_books_model_of_16_bits_is_rounded_as_python_rounds_it(tmp_path):
    book = write_page(BOOK_MODEL, tmp_path / "page")
    texts = ["I like tea.", "Where is the station?", "I met Kowalski at 7:45."]
    ask = {"do": "translate", "texts": texts, "settings": {}}
    before, facts, after = run_engine(book, ask, {"do": "open", "folder": str(BOOK_MODEL)}, ask)
    assert before == after
    assert facts["languages"] == ["en", "de"] and facts["doubt"]["unsure_below"] > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_of_16_bits_are_read_as_they_are(tmp_path, page, dtype):
    """All of them: zero, subnormal, the largest; one row each, so that no scale hides another."""
    small_checkpoint(tmp_path / "own")
    path = tmp_path / "own" / "model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(path).items()}
    tiny = torch.finfo(dtype)
    odd = [tiny.smallest_normal / 2, -tiny.max if dtype == torch.float16 else -3e38, 0.0, 1.5]
    name = "encoder.layers.0.feed_forward.W_1.bias"
    tensors[name][:4] = torch.tensor(odd, dtype=dtype)
    save_file(tensors, path)
    open_ = {"do": "open", "folder": str(tmp_path / "own")}
    facts, bias = run_engine(page, open_, {"do": "tensor", "name": name})
    assert "refused" not in facts and bias == tensors[name].double().tolist()


@pytest.mark.parametrize(
    "changes", [{}, {"activation": "relu"}, {"N": 1, "d_model": 24, "h": 3}], ids=str
)
def test_a_marian_model_has_the_logits_of_the_same_model_in_ours(tmp_path, page, changes):
    folder = tmp_path / "opus-mt-en-de"
    model, bias, vocabulary = write_marian(folder, **changes)
    if "activation" in changes:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"activation_function": "relu"}))
    pad = vocabulary["<pad>"]
    source, target = [5, 9, 7, 4, 0], [pad, 6, 3, 8, 11]
    facts, found = logits_of(page, folder, source, target)
    exact = with_int8_rows(model)
    expected = exact(torch.tensor([source]), torch.tensor([target]))[0].detach() + bias
    expected[:, pad] = found[:, pad]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert (found[:, pad] < -9000).all()  # it is never said
    assert facts["languages"] == ["en", "de"]


def test_a_marian_model_that_came_by_us_and_went_out_again_is_the_same(tmp_path, page, marian):
    import_checkpoint(marian[0], tmp_path / "ours")
    again = export_checkpoint(tmp_path / "ours", tmp_path / "again")
    model, tokenizer = load_model(tmp_path / "ours")
    source, target = [*tokenizer.encode("tea bad"), 2], [1, 6, 3, 8, 11]
    facts, found = logits_of(page, again, source, target)
    assert facts["config"]["bos_id"] == 1
    expected = with_int8_rows(model)(torch.tensor([source]), torch.tensor([target]))[0].detach()
    torch.testing.assert_close(found[:, 1:], expected[:, 1:], rtol=1e-9, atol=1e-9)
    encode = {"do": "encode", "texts": ["tea bad"]}
    _, ids = run_engine(page, {"do": "open", "folder": str(again)}, encode)
    assert ids == [source[:-1]]


def test_marians_pieces_are_sentencepieces_and_its_ids_those_of_vocab_json(page, marian):
    folder, vocabulary = marian
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        for side in ("source", "target")
    )
    texts = ["  tea   bad ", "tea éé 12 cab", "\u3000tea\u00a0", "\ufb00ee"]
    texts += [source_text for source_text, _ in text_pairs(1, 50)]
    lists = [
        [vocabulary[piece] for piece in target.encode(text, out_type=str) if piece in vocabulary]
        for _, text in text_pairs(2, 50)
    ]
    opened, ids, decoded = run_engine(
        page,
        {"do": "open", "folder": str(folder)},
        {"do": "encode", "texts": texts},
        {"do": "decode", "lists": lists},
    )
    unknown = vocabulary["<unk>"]
    assert "refused" not in opened
    assert ids == [
        [vocabulary.get(piece, unknown) for piece in source.encode(text, out_type=str)]
        for text in texts
    ]
    by_id = {i: piece for piece, i in vocabulary.items()}
    assert decoded == [target.decode_pieces([by_id[i] for i in one]) for one in lists]
