"""What a stranger's files say to the page is refused in a sentence."""

import json
import re
import shutil
import time

import pytest
import torch
from marian_form import write_marian
from safetensors.torch import load_file, save_file

from annotated_transformer.command_line import entry_point as cli
from annotated_transformer.extras.page.writing import write_page
from annotated_transformer.extras.visitors.doubt import Doubt
from tools.page_engine import NODE, run_engine
from toys import small_checkpoint

needs_node = pytest.mark.skipif(not NODE, reason="no node on this machine")


@pytest.fixture(scope="module")
def page_of_ours(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    small_checkpoint(folder / "run")
    return write_page(folder / "run", folder / "page")


def settings(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def model_settings(folder, without=(), **changes):
    model = json.loads((folder / "config.json").read_text())["model"]
    settings(folder, model={n: v for n, v in {**model, **changes}.items() if n not in without})


def opened(page, *folders, ask=()):
    jobs = [job for folder in folders for job in ({"do": "open", "folder": str(folder)}, *ask)]
    return run_engine(page, *jobs)


@needs_node
def test_a_long_corpus_is_read_in_no_time(tmp_path, page_of_ours):
    small_checkpoint(tmp_path / "own")
    began = time.monotonic()
    settings(tmp_path / "own", corpus="-" * 2 * 10**6)
    (facts,) = opened(page_of_ours, tmp_path / "own")
    assert facts["languages"] == ["", ""] and time.monotonic() - began < 30  # was hours
    for corpus, languages in (("a-en-de", "en de"), ("x-fr-en-de-v2", "en de"), ("a-en-deu", " ")):
        settings(tmp_path / "own", corpus=corpus)
        (facts,) = opened(page_of_ours, tmp_path / "own")
        assert facts["languages"] == languages.split(" ")
        assert [*Doubt.of({"corpus": corpus}).languages] == languages.split(" ")


@needs_node
def test_a_switch_that_is_left_out_is_as_in_python(tmp_path, page_of_ours):
    small_checkpoint(tmp_path / "own")
    logits = {"do": "logits", "source": [5, 9, 2], "target": [1, 6]}
    logits["change"] = {"positions": True, "without": []}
    _, before = opened(page_of_ours, tmp_path / "own", ask=[logits])
    switches = "scaled_attention", "bias", "final_norm", "output_bias", "zero_start"
    model_settings(tmp_path / "own", without=(*switches, "first_position"))
    _, after = opened(page_of_ours, tmp_path / "own", ask=[logits])
    assert before == after


LONG = "x" * 10**5
DOUBT = "doubt must have numbers"
NO_MODEL = "is no SentencePiece model"


def header(folder, entry):
    path = folder / "model.safetensors"
    save_file(load_file(path), path)  # without a checksum
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    stored = json.loads(content[8 : 8 + length])
    text = json.dumps({**stored, **entry}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def vocabulary(folder, **changes):
    path = folder / "vocab.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def without_unknown(folder):
    path = folder / "vocab.json"
    ids = json.loads(path.read_text())
    ids["<knu>"] = ids.pop("<unk>")
    path.write_text(json.dumps(ids))


def added(folder, message):
    path = folder / "tokenizer.model"
    path.write_bytes(path.read_bytes() + message)


def weights(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def write(folder, file, content):
    (folder / file).write_bytes(content)


def cut(folder, file, share):
    content = (folder / file).read_bytes()
    write(folder, file, content[: int(share * len(content))])


def remove(folder, file):
    (folder / file).unlink()


def pickled(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


TABLE = "embedding.weight"
NORM = "encoder.layers.0.add_norm_1.norm.bias"
BIAS = "encoder.layers.0.feed_forward.W_1.bias"
BROKEN = [
    *(
        ("own", remove, {"file": file}, f"has no {file}")
        for file in ("config.json", "tokenizer.model", "model.safetensors")
    ),
    ("own", pickled, {}, "cannot read safely"),
    *(
        ("own", write, {"file": "config.json", "content": content}, words)
        for content, words in (
            (b"{", "no JSON"),
            (b"[]", "is of no type"),
            (b'{"model_type": "bert"}', "is of bert"),
        )
    ),
    *(
        ("own", model_settings, changes, words)
        for changes, words in (
            ({"vocab_size": 10**8}, "at most 75.0 million parameters"),
            ({"N": 10**9}, "N must be at most 1024"),
            ({"d_k": -1}, "d_k must be a positive integer, got -1"),
            ({"eos_id": 280}, "eos_id must be an id of the vocabulary, got 280"),
            ({"d_model": 7}, "d_model must be even, got 7"),
            ({"activation": "swiglu"}, "knows no RMSNorm"),
            ({"vocab_size": 281}, "do not belong together"),
            ({"positions": "learned"}, "no positions.weight of shape"),
            ({"d_ff": 9000}, "at most 8259 products"),
        )
    ),
    ("marian", settings, {"decoder_layers": 1}, "not of one size"),
    ("marian", settings, {"scale_embedding": False}, "one scaled embedding"),
    ("marian", settings, {"activation_function": "tanh"}, "activation tanh"),
    *(
        ("own", weights, {"change": change}, words)
        for change, words in (
            (lambda t: t[TABLE][3, 2].fill_(torch.nan), f"not finite, in {TABLE}"),
            (lambda t: t[NORM].fill_(torch.inf), "not finite"),
            (lambda t: t.pop(BIAS), f"has no {BIAS} of shape"),
            (lambda t: t.update({TABLE: t[TABLE].int()}), "numbers of the kind I32"),
        )
    ),
    *(
        ("own", write, {"file": "model.safetensors", "content": content}, "is no safetensors file")
        for content in (b"", b"\1\0\0\0", b"\xff" * 16)
    ),
    ("own", cut, {"file": "model.safetensors", "share": 0.99}, "lies beyond its end"),
    ("own", cut, {"file": "tokenizer.model", "share": 0.5}, "tokenizer"),
    ("marian", vocabulary, {"</s>": 1}, "do not belong together"),
    ("marian", remove, {"file": "vocab.json"}, "has no vocab.json"),
    *(
        ("own", settings, {"doubt": doubt}, DOUBT)
        for doubt in (
            {"translated": 5},
            {"words": 5},
            {"words": ["a"]},
            {"longest": "1"},
            [1],
            5,
            None,
        )
    ),
    *(("own", settings, {"corpus": corpus}, "corpus must be a name") for corpus in (5, ["a"])),
    ("own", settings, {"model": None, "model_type": LONG}, "config.json is of xxx"),
    (
        "own",
        model_settings,
        {"scaled_attention": 1},
        "must be true or false, got 1",
    ),
    ("own", model_settings, {"first_position": "a"}, "first_position must be 0 or more, got a"),
    ("own", model_settings, {"d_ff": LONG}, "d_ff must be a positive integer, got xxx"),
    ("own", model_settings, {"norm": LONG}, "norm xxx"),
    ("own", model_settings, {"qk_norm": True}, "this model has qk_norm"),
    ("own", model_settings, {"anything": 1}, "this model has anything"),
    ("own", header, {"entry": {"a": None}}, "a lies beyond its end or has no shape"),
    ("own", header, {"entry": {LONG: None}}, "xxx lies beyond"),
    ("own", added, {"message": b"\x08\x05"}, NO_MODEL),  # a piece that is a number
    ("own", added, {"message": b"\x0a\x05\x0a\x01a\x10\x07"}, NO_MODEL),  # its score is one
    ("own", added, {"message": b"\x0a\x02\x08\x05"}, NO_MODEL),  # its text is one
    ("own", added, {"message": b"\x0a\x08\x0a\x01\xc3\x15\x00\x00\xc0\x7f"}, NO_MODEL),  # NaN
    (
        "own",
        added,
        {"message": b"\x1a\x08\x12\x06\x04\x00\x00\x00ab"},
        "damaged table",
    ),
    ("marian", vocabulary, {"length": 7}, "do not belong together"),
    ("marian", vocabulary, {"a": "length"}, "must give each piece a number, and one to <unk>"),
    ("marian", vocabulary, {"a": 2**40}, "must give each piece a number, and one to <unk>"),
    ("marian", without_unknown, {}, "must give each piece a number, and one to <unk>"),
    ("marian", settings, {"activation_function": "__proto__"}, "the activation __proto__"),
    ("marian", settings, {"activation_function": LONG}, "the activation xxx"),
]


@needs_node
def test_what_a_stranger_wrote_is_refused_in_a_sentence_and_the_first_model_stays(
    tmp_path, page_of_ours
):
    small_checkpoint(tmp_path / "own")
    write_marian(tmp_path / "marian")
    folders = []
    for i, (kind, harm, changes, _) in enumerate(BROKEN):
        folders.append(shutil.copytree(tmp_path / kind, tmp_path / str(i)))
        harm(folders[-1], **changes)
    ask = {"do": "translate", "texts": ["tea"], "settings": {}}
    jobs = [{"do": "open", "folder": str(folder)} for folder in folders]
    before, *answers, after = run_engine(page_of_ours, ask, *jobs, ask)
    assert before == after
    for (*_, words), answer in zip(BROKEN, answers, strict=True):
        assert answer.get("kind") == "Refusal" and words in answer["refused"], (words, answer)
        assert "\n" not in answer["refused"] and len(answer["refused"]) < 300


@needs_node
def test_a_vocabulary_of_any_size_is_not_read(tmp_path, page_of_ours):
    small_checkpoint(tmp_path / "own")
    with (tmp_path / "own" / "tokenizer.model").open("ab") as file:
        file.truncate(2**26 + 1)
    (answer,) = opened(page_of_ours, tmp_path / "own")
    assert answer == {"refused": "tokenizer.model has more than 64 MB", "kind": "Refusal"}


@pytest.mark.parametrize(
    "doubt",
    [{"translated": 5}, {"words": 5}, {"words": "ab"}, {"longest": "9"}, [1], 0.5, None],
    ids=str,
)
def test_no_page_is_written_of_doubts_that_it_cannot_load(tmp_path, capsys, doubt):
    small_checkpoint(tmp_path / "own")
    settings(tmp_path / "own", doubt=doubt)
    assert cli.main(["export-page", str(tmp_path / "own"), "--out", str(tmp_path / "page")]) == 2
    assert re.search("must be .*, got", capsys.readouterr().err)
    assert not (tmp_path / "page").exists()
