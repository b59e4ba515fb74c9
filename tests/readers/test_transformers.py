"""transformers 5 and 4 read what `export --to huggingface` writes; what 5 saves comes back."""

import random
import shutil
import unicodedata

import pytest
import torch
from exports import (
    BOOK,
    N_TEST,
    VOCABULARY,
    beam_ids,
    checkpoint_of,
    greedy_ids,
    inputs,
    random_configuration,
    same,
    sentences,
    sources,
)
from program import TRANSFORMERS_4, answer, answers, needs
from torch.testing import assert_close

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.checkpoint.weights import save_weights
from annotated_transformer.data import corpus
from annotated_transformer.data.tokenizer import ALIKE, Tokenizer
from annotated_transformer.decoding.search import rerank
from annotated_transformer.extras.formats.huggingface import export_checkpoint
from annotated_transformer.extras.formats.importing import import_checkpoint
from toys import small_model

pytestmark = [needs("transformers"), pytest.mark.slow]


@torch.no_grad()
def test_twenty_random_configurations_out_and_back(tmp_path):
    models, asked = [], []
    rows = [side.tolist() for side in inputs()]
    for seed in range(20):
        ours, theirs, saved = (tmp_path / f"{name}-{seed}" for name in ("ours", "theirs", "saved"))
        models.append(checkpoint_of(ours, seed, **random_configuration(seed)))
        export_checkpoint(ours, theirs)
        asked.append({"folder": theirs, "logits": rows, "save": saved, "steps": 0})
    for model, question, found in zip(
        models, asked, answers("with_transformers.py", *asked), strict=True
    ):
        expected = {"post": "MarianMTModel", "pre": "PegasusForConditionalGeneration"}
        assert (found["class"], found["report"]) == (expected[model.config.norm], [])
        assert_close(torch.tensor(found["logits"]), model(*inputs()), atol=1e-5, rtol=0)
        shutil.copy(question["folder"] / "tokenizer.model", question["save"])
        for folder in (question["folder"], question["save"]):
            import_checkpoint(folder, tmp_path / f"back from {folder.name}")
            back, _ = load_model(tmp_path / f"back from {folder.name}")
            assert back.config == model.config
            assert back.state_dict().keys() == model.state_dict().keys()
            assert all(torch.equal(t, back.state_dict()[n]) for n, t in model.state_dict().items())


@torch.no_grad()
def test_what_is_trained_there_comes_back_with_its_biases(tmp_path):
    model = checkpoint_of(tmp_path / "ours")
    export_checkpoint(tmp_path / "ours", tmp_path / "theirs")
    rows = [side.tolist() for side in inputs()]
    _, found = answers(
        "with_transformers.py",
        {"folder": tmp_path / "theirs", "save": tmp_path / "saved", "steps": 3},
        {"folder": tmp_path / "saved", "logits": rows},
    )
    shutil.copy(tmp_path / "theirs" / "tokenizer.model", tmp_path / "saved")
    import_checkpoint(tmp_path / "saved", tmp_path / "back")
    back, _ = load_model(tmp_path / "back")
    assert back.config == model.config.replace(bias=True)
    logits = torch.tensor(found["logits"])
    assert_close(back(*inputs()), logits, atol=1e-5, rtol=0)
    assert not torch.allclose(model(*inputs()), logits, atol=1e-2)


@pytest.mark.parametrize(("path", "release"), [("", "5."), (TRANSFORMERS_4, "4.57.")])
@torch.no_grad()
def test_two_releases_find_our_ids_by_the_folders_own_settings(tmp_path, path, release, figure):
    n = 40
    rows = [side.tolist() for side in inputs()]
    models = [
        checkpoint_of(tmp_path / str(seed), seed, **random_configuration(seed)) for seed in (2, 5)
    ]
    folders = [export_checkpoint(tmp_path / str(seed), tmp_path / f"out {seed}") for seed in (2, 5)]
    found, *others = answers(
        "with_transformers.py",
        {"folder": export_checkpoint(BOOK, tmp_path / "book"), "generate": sentences(n)},
        *({"folder": folder, "logits": rows} for folder in folders),
        path=path,
    )
    assert found["version"].startswith(release)
    best = [rerank((h["ids"], h["log_p"]) for h in one)[0].tokens for one in found["generated"]]
    figure(f"transformers {found['version']}: {same(beam_ids(n), best)} of {n} beams are ours")
    assert best == beam_ids(n)
    assert {one["class"] for one in others} == {"MarianMTModel", "PegasusForConditionalGeneration"}
    for model, other in zip(models, others, strict=True):
        assert_close(torch.tensor(other["logits"]), model(*inputs()), atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    folder = tmp_path_factory.mktemp("book") / "theirs"
    export_checkpoint(BOOK, folder)
    rows = sources(N_TEST)
    return answer("with_transformers.py", folder=folder, greedy=rows, beams=rows)


def test_greedy_search_finds_the_same_ids_in_every_sentence(book, figure):
    n = same(greedy_ids(N_TEST), book["greedy"])
    figure(f"transformers: greedy ids of {n} of {N_TEST} test sentences are ours")
    assert n == N_TEST


def test_four_beams_ranked_by_the_papers_penalty_find_the_same_ids(book, figure):
    ours = beam_ids(N_TEST)
    best = [rerank((h["ids"], h["log_p"]) for h in one)[0].tokens for one in book["beams"]]
    n = same(ours, best)
    figure(f"transformers: beams of {n} of {N_TEST} test sentences are ours after rerank")
    assert n == N_TEST
    assert same(ours, [one[0]["ids"] for one in book["beams"]]) < N_TEST  # n^0.6 is another penalty


@pytest.mark.parametrize("kind", ["book", "bpe", "unigram"])
def test_tokenizer_json_splits_as_sentencepiece(tmp_path, kind):
    train = corpus.load("tatoeba-en-de", "train")
    natural = [text for pair in train[:5000] for text in pair]
    vocabulary = VOCABULARY  # for typed text
    if kind != "book":
        vocabulary = Tokenizer.train(natural, 2000, model_type=kind)
    model = small_model(0, torch.float32, vocab_size=vocabulary.vocab_size)
    checkpoint.write_directory(tmp_path / "ours", model.config, vocabulary)
    save_weights(tmp_path / "ours" / "model.safetensors", model)
    export_checkpoint(tmp_path / "ours", tmp_path / "theirs")
    texts = natural + fuzzed(5000) + TYPED
    found = answer("with_transformers.py", folder=tmp_path / "theirs", texts=texts)
    ours = [[*ids, 2] for ids in vocabulary.encode_batch(texts)]
    other = {text for text, a, b in zip(texts, ours, found["ids"], strict=True) if a != b}
    assert not other & {*natural, *TYPED}
    invisible = set(ALIKE[""])  # a text of nothing else is one token or none
    assert all(has_loose_accent(text) or invisible.issuperset(text) for text in other)
    assert 0 < len(other) < 1500
    assert [vocabulary.decode(ids) for ids in found["ids"]] == found["decoded"]


TYPED = ["</s>", "a</s>b", "<s> <pad> <unk>", "<0x41>", "\u2581", "", "  two  spaces  "]
ALPHABETS = (
    "abcdefghij klmnopqrstuvwxyz", "äöüßÄÖÜéèàñ", "\u0301\u0308\u0323\u0327", "ﬁﬂ²³½™…",
    "日本語ｱｲｳ", "🙂👍🏽\u200d❤️", " \u00a0\u3000\t\n\r\u2028", "\0\1\x7f\u00ad\u200f",
    "<>/s0x41pad", "\u2581Ａ１",
)  # fmt: skip


def fuzzed(n):
    """Runs of letters of one alphabet after the other."""
    draw = random.Random(7)

    def run():
        letters = draw.choice(ALPHABETS)
        return "".join(draw.choice(letters) for _ in range(draw.randint(1, 8)))

    return ["".join(run() for _ in range(draw.randint(1, 8))) for _ in range(n)]


def has_loose_accent(text):
    """Whether an accent follows another, or a character that NFKC or NFKD takes apart."""
    return any(
        unicodedata.combining(after)
        and (unicodedata.combining(before) or unicodedata.normalize("NFKD", before) != before)
        for before, after in zip(text, text[1:], strict=False)
    )
