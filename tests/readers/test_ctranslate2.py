"""CTranslate2 computes what our model computes, and its search finds what ours finds."""

import json
import random
from zipfile import ZipFile

import pytest
import torch
from exports import (
    BOOK,
    MODEL,
    N_SENTENCES,
    N_TEST,
    VOCABULARY,
    beam_ids,
    checkpoint_of,
    greedy_ids,
    same,
    sources,
)
from program import answer, borrow, needs

from annotated_transformer.checkpoint.directory import write_directory
from annotated_transformer.checkpoint.weights import save_weights
from annotated_transformer.command_line import entry_point as cli
from annotated_transformer.config import DecodeConfig
from annotated_transformer.data.batching import pad_source
from annotated_transformer.decoding.search import rerank, search_beams
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.formats import argos, ctranslate2
from annotated_transformer.extras.formats.ctranslate2 import CTranslate2Engine
from toys import random_tokens, small_model, text_pairs, toy_tokenizer

pytestmark = [needs("ctranslate2"), pytest.mark.slow]
borrow("ctranslate2")
ARGOS = "translate-en_de-1_0.argosmodel"
ENGLISH = [
    "I am hungry.", "Where is the station?", "He has bought a new umbrella.", "It's raining.",
    "She told me that she would come tomorrow.", "Don't forget to close the window!",
    "The children were playing in the garden when it began to rain.", "Yes.", "Thank you.",
    "She speaks three languages, but she has never lived abroad.",
    "If I had known that, I would have called you yesterday.", "Tom doesn't like cats or dogs.",
    "How long does it take to get to the airport by bus?", "My father is a doctor.", "Zyx 42 qwv?",
]  # fmt: skip


def model_of(**changes):
    return small_model(vocab_size=toy_tokenizer().vocab_size, **changes)


def checkpoint(path, **changes):
    model = model_of(**changes)
    write_directory(path, model.config, toy_tokenizer())
    save_weights(path / "model.safetensors", model.float())
    return path


def random_configuration(seed):
    """Any that has a home in CTranslate2."""
    draw = random.Random(seed)
    d_k = draw.choice([4, 6, 16])
    positions = draw.choice(["sinusoidal", "learned", "concatenated", "none", "rotary"])
    options = ("rms_norm", "final_norm", "bias", "output_bias", "zero_start")
    return {
        "N": draw.randint(1, 3),
        "h": draw.randint(1, 4),
        "d_model": draw.choice([8, 12, 24]),
        "d_ff": draw.randint(5, 40),
        "d_k": d_k,
        "d_v": d_k,
        "norm": draw.choice(["post", "pre"]),
        "positions": positions,
        "first_position": draw.choice([0, 2]) * (positions in ("sinusoidal", "concatenated")),
        "activation": draw.choice(["relu", "gelu", "silu", "swiglu"]),
        "scaled_attention": d_k == 6 or draw.random() < 0.5,  # 4 and 16 have an exact root
        "max_len": 30,
        **{option: draw.random() < 0.4 for option in options},
    }


@torch.no_grad()
def test_twenty_random_configurations_compute_the_same(tmp_path, figure):
    largest = 0.0
    for seed in range(20):
        model = checkpoint_of(tmp_path / str(seed), seed, **random_configuration(seed))
        engine = CTranslate2Engine(model, toy_tokenizer())
        for length in (2, 9):
            source, target = (random_tokens(i, length + i, high=280) for i in (1, 3))
            target_in = torch.cat([torch.tensor([1]), target])
            logits = model(pad_source([source.tolist()]), target_in[None])[0]
            target_out = torch.cat([target, torch.tensor([2])])
            expected = logits.log_softmax(-1).gather(1, target_out[:, None])[:, 0]
            pieces = [[[engine.pieces[i] for i in ids.tolist()]] for ids in (source, target)]
            found = torch.tensor(engine.translator.score_batch(*pieces)[0].log_probs)
            largest = max(largest, float((found - expected).abs().max()))
    figure(f"CTranslate2: log P of 20 random configurations differ by {largest:.1e} at most")
    assert largest <= 1e-5


def test_greedy_search_finds_the_same_ids(figure):
    engine = CTranslate2Engine(MODEL, VOCABULARY)
    found = engine([ids[:-1] for ids in sources(N_TEST)], DecodeConfig(beam_size=1))
    n = same(greedy_ids(N_TEST), [of_one[0][0] for of_one in found])
    figure(f"CTranslate2: greedy ids of {n} of {N_TEST} test sentences are ours")
    assert n == N_TEST


def test_beams_of_99_in_100_sentences_are_the_same(figure):
    engine = CTranslate2Engine(MODEL, VOCABULARY)
    found = engine([ids[:-1] for ids in sources(N_SENTENCES)], DecodeConfig())
    n = same(beam_ids(N_SENTENCES), [rerank(of_one)[0].tokens for of_one in found])
    figure(f"CTranslate2: beams of {n} of {N_SENTENCES} test sentences are ours after rerank")
    assert n >= 0.99 * N_SENTENCES


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_beams_ranked_again_are_those_of_our_search(alpha):
    model, tokenizer = MODEL, VOCABULARY
    theirs = Translator(model, tokenizer, engine=CTranslate2Engine(model, tokenizer))
    ours = Translator(model, tokenizer)
    found, expected = (t.n_best([*ENGLISH, ""], n_best=1, alpha=alpha) for t in (theirs, ours))
    assert [of_one[0].text for of_one in found] == [of_one[0].text for of_one in expected]
    for (one,), (other,) in zip(found, expected, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-3)
        assert one.log_p == pytest.approx(other.log_p, abs=1e-3)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_every_sentence_has_its_own_limit(beam_size):
    model = model_of()
    with torch.no_grad():
        model.embedding.weight[2] = -model.embedding.weight[2].sign()  # so that few outputs end
    search = DecodeConfig(beam_size=beam_size, max_extra=2)
    sources = [random_tokens(seed, seed, high=280).tolist() for seed in (9, 1, 4)]
    found = CTranslate2Engine(model, toy_tokenizer())(sources, search)
    expected = search_beams(model.float(), pad_source(sources), search)
    assert {len(of_one[0].tokens) - len(s) for of_one, s in zip(expected, sources)} == {2}
    for of_one, best in zip(found, expected, strict=True):
        first = rerank(of_one, search.alpha)[0]
        assert first.tokens == best[0].tokens
        assert first.log_p == pytest.approx(best[0].log_p, abs=1e-4)


def read_elsewhere(folder, pieces):
    """Greedy translations by a process that knows neither our package nor PyTorch."""
    return answer("with_ctranslate2.py", folder=folder, pieces=pieces, lines=ENGLISH)


def test_an_export_translates_in_a_program_that_knows_nothing_of_us(tmp_path, capsys):
    out = tmp_path / "exported"
    assert cli.main(["export", str(BOOK), "--to", "ctranslate2", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    expected = Translator.from_checkpoint(BOOK).translate(ENGLISH, beam_size=1)
    assert read_elsewhere(out, out / "tokenizer.model") == expected


def test_an_argos_package_has_what_argos_looks_for(tmp_path):
    out = argos.export_checkpoint(BOOK, tmp_path / "translate-en_de-1_2.argosmodel")
    with ZipFile(out) as package:
        package.extractall(tmp_path)
    folder = tmp_path / "translate-en_de-1_2"
    metadata = json.loads((folder / "metadata.json").read_text())
    assert (metadata["from_code"], metadata["to_code"]) == ("en", "de")
    assert (metadata["from_name"], metadata["to_name"]) == ("English", "German")
    assert metadata["package_version"] == "1.2"
    found = read_elsewhere(folder / "model", folder / "sentencepiece.model")
    assert found[0] == "Ich habe Hunger."


def test_float16_halves_the_file(tmp_path):
    sizes = []
    for dtype in ("float16", "float32"):
        plain = ctranslate2.export_checkpoint(BOOK, tmp_path / dtype, dtype)
        (tmp_path / f"argos {dtype}").mkdir()
        packed = argos.export_checkpoint(BOOK, tmp_path / f"argos {dtype}" / ARGOS, dtype)
        with ZipFile(packed) as package:
            unpacked = package.getinfo(f"{packed.stem}/model/model.bin").file_size
        sizes.append((plain / "model.bin").stat().st_size)
        assert unpacked == sizes[-1]
    assert 0.45 < sizes[0] / sizes[1] < 0.55


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"qk_norm": True}, "qk_norm=True"), ({"d_k": 3, "d_v": 5}, "d_k must be d_v, got 3 and 5")],
)
def test_what_it_cannot_compute_is_refused_and_nothing_written(tmp_path, changes, words):
    directory = checkpoint(tmp_path / "ours", **changes)
    for form, name in ((ctranslate2, "theirs"), (argos, "translate-en_de-1_0.argosmodel")):
        with pytest.raises(ConfigError, match=words):
            form.export_checkpoint(directory, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours"]


def test_translate_and_evaluate_take_the_engine(tmp_path, capsys):
    directory = str(checkpoint(tmp_path / "ours"))
    pairs = text_pairs(3, 5)
    for side, name in enumerate(("s", "t")):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (tmp_path / name).write_text(text, encoding="utf-8")
    source, reference = str(tmp_path / "s"), str(tmp_path / "t")
    printed = []
    for more in ([], ["--engine", "ctranslate2"]):
        options = ["--max-extra", "3", *more]
        assert cli.main(["translate", directory, "--input", source, *options]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != ""
    evaluate = ["evaluate", directory, "--source", source, "--reference", reference, "--quiet"]
    options = ["--json", "--engine", "ctranslate2", "--int8", "--max-extra", "3"]
    assert cli.main([*evaluate, *options]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert (scores["engine"], scores["dtype"]) == ("ctranslate2", "int8")
    assert cli.main([*evaluate, "--engine", "ctranslate2", "--dtype", "float16"]) == 2
    assert "CTranslate2 cannot use float16 on cpu" in capsys.readouterr().err
