"""Random models in the form of opus-mt and wmt19, made by transformers, become ours."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from program import PYTHON, answer, borrow, needs
from torch.testing import assert_close

from annotated_transformer.checkpoint.averaging import average_checkpoints
from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.command_line import entry_point as cli
from annotated_transformer.config import DecodeConfig
from annotated_transformer.data import corpus
from annotated_transformer.data.batching import pad_source
from annotated_transformer.decoding.search import greedy_search
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.attention_views.report import attention_report
from annotated_transformer.extras.formats import argos, ctranslate2, huggingface
from annotated_transformer.extras.formats.ctranslate2 import CTranslate2Engine
from annotated_transformer.extras.formats.importing import import_checkpoint

pytestmark = [needs("transformers", "sacremoses"), pytest.mark.slow]
TYPED = {
    "marian": [
        ">>fra<< hello",
        "日本 \u2603",
        "  two  spaces ",
        ">>deu<< hello",
        ">> he said: hello",
        ">>fra<<",
        ">>fra<< >>deu<< a",
        ">> cout << a",
        ">>> a",
        ">><< a",
        "a >>fra<< b",
    ],
    "fsmt": ["“well-known” … a/b &amp; <x>", "A．B，c 日本", "two  spaces"],
}


@pytest.fixture(scope="module", params=["marian", "fsmt"])
def imported(request, tmp_path_factory):
    """The other program's folder as our checkpoint, what it said, and our ids by theirs."""
    if request.param == "fsmt":
        pytest.importorskip("sacremoses")
    folder = tmp_path_factory.mktemp(request.param)
    pairs = corpus.load("tatoeba-en-de", "valid")[:60]
    question = {"kind": request.param, "folder": folder / "theirs", "pairs": pairs}
    said = answer("with_transformers_made.py", **question, texts=TYPED[request.param])
    import_checkpoint(folder / "theirs", folder / "ours")
    model, tokenizer = load_model(folder / "ours")
    names = tokenizer.pieces(range(tokenizer.vocab_size))
    ids = torch.tensor([names.index(piece) for piece in said["pieces"]])
    texts = [*(source for source, _ in pairs), *TYPED[request.param]]
    return folder, {**said, "kind": request.param}, model, tokenizer, ids, texts


def test_a_text_has_the_same_ids(imported):
    _, said, _, tokenizer, ids, texts = imported
    expected = [[int(ids[i]) for i in row if i != said["pad"]] for row in said["source"]]
    assert [[*row, 2] for row in tokenizer.encode_batch(texts)] == expected


@torch.no_grad()
def test_logits_and_greedy_search_are_the_same(imported):
    _, said, model, _, ids, _ = imported
    source, target = ids[torch.tensor(said["source"])], ids[torch.tensor(said["target"])]
    target[:, 0] = 1  # what begins is a token of its own here
    expected = torch.tensor(said["logits"])
    words = [i for i in range(len(ids)) if i != said["pad"]]
    assert_close(
        model(source, target)[..., ids][..., words], expected[..., words], atol=1e-5, rtol=0
    )
    assert expected.std() > 0.3
    found = greedy_search(model, source)
    for row, ours in zip(said["greedy"], found, strict=True):
        has_ended = said["eos"] in row  # else their limit, which is not ours, cut it
        theirs = row[: row.index(said["eos"])] if has_ended else row
        expected_ids = [int(ids[i]) for i in theirs]
        assert (ours if has_ended else ours[: len(theirs)]) == expected_ids


@torch.no_grad()
def test_marians_goes_out_again(imported, tmp_path):
    folder, said, model, tokenizer, ids, texts = imported
    if said["kind"] == "fsmt":
        with pytest.raises(ConfigError, match="positions=concatenated from 2 on with norm=post"):
            huggingface.export_checkpoint(folder / "ours", tmp_path / "again")
        assert not (tmp_path / "again").exists()
        return
    again = huggingface.export_checkpoint(folder / "ours", tmp_path / "again")
    source, target = ids[torch.tensor(said["source"])], ids[torch.tensor(said["target"])]
    target[:, 0] = 1
    rows = [source.tolist(), target.tolist()]
    found = answer("with_transformers.py", folder=again, texts=texts, logits=rows)
    assert (found["class"], found["report"]) == ("MarianMTModel", [])
    assert found["ids"] == [[*row, 2] for row in tokenizer.encode_batch(texts)]
    assert_close(torch.tensor(found["logits"]), model(source, target), atol=1e-5, rtol=0)


@needs("ctranslate2")
def test_ctranslate2_searches_as_we_do(imported, tmp_path):
    borrow("ctranslate2")
    folder, said, model, tokenizer, _, texts = imported
    search = DecodeConfig(beam_size=1, max_extra=5)
    sources = tokenizer.encode_batch(texts)
    found = CTranslate2Engine(model, tokenizer)(sources, search)
    expected = greedy_search(model, pad_source(sources), search.max_extra)
    assert [of_one[0][0] for of_one in found] == expected
    if said["kind"] == "fsmt":
        with pytest.raises(ConfigError, match="split as fairseq does, which has no form here"):
            ctranslate2.export_checkpoint(folder / "ours", tmp_path / "theirs")
        assert not (tmp_path / "theirs").exists()
        return
    theirs = ctranslate2.export_checkpoint(folder / "ours", tmp_path / "theirs")
    for name in ("source.spm", "target.spm"):
        assert (theirs / name).read_bytes() == (folder / "theirs" / name).read_bytes()
    with pytest.raises(ConfigError, match="Argos reads one vocabulary for both"):
        argos.export_checkpoint(folder / "ours", tmp_path / "translate-en_de-1_0.argosmodel")


def test_it_is_trained_averaged_inspected_and_put_on_the_page(imported, tmp_path):
    folder, _, model, tokenizer, _, texts = imported
    pairs = corpus.load("tatoeba-en-de", "valid")[:60]
    for name, side in zip("st", zip(*pairs, strict=True), strict=True):
        (tmp_path / name).write_text("\n".join(side) + "\n", encoding="utf-8")
    files = [str(tmp_path / "s"), str(tmp_path / "t")]
    command = ["train", "--train", *files, "--valid", *files, "--init", str(folder / "ours")]
    settings = {"train_steps": 20, "warmup_steps": 10, "max_tokens": 512, "checkpoint_every": 10}
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    assert cli.main([*command, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    average_checkpoints(tmp_path / "run", 2, tmp_path / "mean")
    trained, again = load_model(tmp_path / "mean")
    assert again.model_bytes == tokenizer.model_bytes
    assert not torch.equal(trained.embedding.weight, model.embedding.weight)
    report = attention_report(trained, again, pairs[:10], scores_bleu=False)
    assert report["sentences"] == 10
    assert len(Translator(trained, again).translate(texts[:5], max_extra=3)) == 5


def test_the_books_lines_take_a_published_model_to_a_published_test(imported, tmp_path):
    """With the random model of this file, and a few sentences in the place of newstest2014."""
    folder, said, *_ = imported
    if said["kind"] == "fsmt":
        pytest.skip("the page has opus-mt")
    page = (Path(__file__).parents[2] / "book" / "other_programs.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```sh\n(.*?)^```", page, flags=re.M | re.S)
    pairs = corpus.load("tatoeba-en-de", "valid")[:5]
    for language, side in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
        (tmp_path / f"short.{language}").write_text("\n".join(side) + "\n", encoding="utf-8")
    ours = f"{sys.executable} -m annotated_transformer"
    for there, here in (
        ("Helsinki-NLP/opus-mt-en-de", str(folder / "theirs")),
        ("python -c", f"{PYTHON} -c"),
        ("annotated-transformer", ours),
        ("--device cuda", "--device cpu"),
        ("sacrebleu -t wmt14/full -l en-de --echo src", "cat short.en"),
        ("sacrebleu -t wmt14/full -l en-de", f"{sys.executable} -m sacrebleu short.de"),
    ):
        assert there in block
        block = block.replace(there, here)
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        ["bash", "-e"], input=block, cwd=tmp_path, text=True, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": root, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert len((tmp_path / "newstest.de").read_text(encoding="utf-8").splitlines()) == 5
    assert '"signature": "nrefs:1|case:mixed' in done.stdout
