"""The exported page answers as Python does: its engine, run in Node, against SentencePiece, the
paper's Transformer on the same integers, and the search of chapter 6.1."""

import random
import re
import subprocess
from pathlib import Path

import pytest
import torch

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.checkpoint.weights import save_weights
from annotated_transformer.data import corpus
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding.search import beam_search, greedy_search
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.attention_views.record import record_attention
from annotated_transformer.extras.page.int8_rows import WIDEST, with_int8_rows
from annotated_transformer.extras.page.writing import (
    COPIED,
    engine,
    kernels as stored_kernels,
    write_page,
)
from annotated_transformer.extras.visitors.typed_lines import for_visitors
from annotated_transformer.model.feed_forward import ACTIVATIONS
from benchmarks.page import SCRIPTS, ids_in_python, varied_lines
from tools import kernels
from tools.page_engine import NODE, run_engine
from toys import OPTIONS, SHAPES, small_checkpoint

BOOK_MODEL = Path(__file__).parents[3] / "book" / "model"
WHOLE = {"positions": True, "without": []}
needs_node = pytest.mark.skipif(not NODE, reason="no node on this machine")


@pytest.fixture(scope="module")
def book_page(tmp_path_factory):
    return write_page(BOOK_MODEL, tmp_path_factory.mktemp("page") / "book")


@pytest.fixture(scope="module")
def book_model():
    """book/model in the page's arithmetic, and its tokenizer."""
    model, tokenizer = checkpoint.load_model(BOOK_MODEL)
    return with_int8_rows(model), tokenizer


def model_and_page(tmp_path, **changes):
    """A small model in the page's arithmetic, and its page."""
    model = with_int8_rows(small_checkpoint(tmp_path / "run", **changes))
    return model, write_page(tmp_path / "run", tmp_path / "page")


def gauss(generator, n):
    return [generator.gauss(0, 1) for _ in range(n)]


def assert_close(found, expected, rtol=1e-9, atol=1e-9):
    """What the engine found, in JSON, against a tensor."""
    found = torch.tensor(found, dtype=torch.float64)
    torch.testing.assert_close(found, expected.detach(), rtol=rtol, atol=atol)


@pytest.fixture(scope="module")
def test_sentences(book_model):
    pairs = corpus.load("tatoeba-en-de", "test")
    return book_model[1].encode_batch([source for source, _ in pairs])


# The tokenizer


@pytest.mark.slow
@needs_node
def test_ten_thousand_varied_lines_have_sentencepieces_ids(book_page, book_model):
    tokenizer = book_model[1]
    lines = varied_lines(1, 10_000, tokenizer)
    (ids,) = run_engine(book_page, {"do": "encode", "texts": lines})
    expected = tokenizer.encode_batch(lines)
    assert max(map(len, expected)) > 1000 and "" not in lines
    assert [line for line, *both in zip(lines, ids, expected) if both[0] != both[1]] == []


@pytest.mark.slow
@needs_node
@pytest.mark.parametrize(
    ("model_type", "symbols", "as_typed"),
    [
        ("unigram", [], False),
        ("bpe", ["(", "the"], False),
        ("unigram", ["(", "the"], False),
        ("bpe", [], True),
    ],
)
def test_other_kinds_of_tokenizers_are_the_same_too(tmp_path, model_type, symbols, as_typed):
    pairs = corpus.load("tatoeba-en-de", "valid")[:400]
    sentences = [side for pair in pairs for side in pair]
    kind = {"model_type": model_type, "symbols": symbols, "as_typed": as_typed}
    tokenizer = Tokenizer.train(sentences, 700, **kind)
    small_checkpoint(tmp_path / "run", tokenizer)
    page = write_page(tmp_path / "run", tmp_path / "page")
    odd = ["(a (b (c)", "\u2581(\u0301 x", "a(b", "there", "the then breathe"]
    odd += ["‘a’ „b“ c\u200bd e\u0301", "\ufeff", "<2source> x"]
    lines = [*varied_lines(2, 1500, tokenizer), *odd]
    (ids,) = run_engine(page, {"do": "encode", "texts": lines})
    expected = tokenizer.encode_batch(lines)
    assert [line for line, *both in zip(lines, ids, expected) if both[0] != both[1]] == []


@needs_node
def test_any_ids_decode_to_sentencepieces_text(book_page, book_model):
    tokenizer, generator = book_model[1], random.Random(3)
    first = tokenizer.pieces(range(300)).index("<0x00>")  # a marker may stand before the bytes
    bytes_, any_ = range(first, first + 256), range(tokenizer.vocab_size)
    space = tokenizer.encode("a")[0]

    def random_ids():
        kinds = generator.choices([bytes_, any_, [space, 2]], k=generator.randint(0, 12))
        return [generator.choice(kind) for kind in kinds]

    lists = [random_ids() for _ in range(3000)]
    lists += tokenizer.encode_batch(varied_lines(4, 300, tokenizer))
    (texts,) = run_engine(book_page, {"do": "decode", "lists": lists})
    assert texts == [tokenizer.decode(ids) for ids in lists]


# The model and the search


@pytest.mark.slow
@needs_node
def test_greedy_and_beam_ids_are_those_of_python(book_page, book_model, test_sentences):
    """The first sentences of the test split; `benchmarks/page.py` takes all of them."""
    model, _ = book_model
    sources = test_sentences[:120]
    ended = [[*source, model.config.eos_id] for source in sources]
    greedy, beams = run_engine(
        book_page,
        {"do": "greedy", "sources": ended},
        {"do": "beam", "sources": ended[:30], "settings": {"nBest": 4}},
    )
    config = model.config
    assert greedy == ids_in_python(lambda source: greedy_search(model, source), sources, config)
    found = ids_in_python(lambda source: beam_search(model, source, n_best=4), sources[:30], config)
    for ours, theirs in zip(beams, found, strict=True):
        assert [one["tokens"] for one in ours] == [one.tokens for one in theirs]
        assert [one["score"] for one in ours] == pytest.approx([one.score for one in theirs])
        assert [one["logP"] for one in ours] == pytest.approx([one.log_p for one in theirs])


@needs_node
def test_without_simd_no_row_of_an_odd_matrix_spills_into_another(tmp_path):
    """Rows meet the weights by fours, then one by one; 7 columns fill no group."""
    model, page = model_and_page(tmp_path, d_ff=7)
    job, generator = {"do": "linear", "name": "encoder.layers.0.feed_forward.W_1"}, random.Random(7)
    jobs = [job | {"x": gauss(generator, model.config.d_model * n)} for n in (1, 4, 7, 19)]
    assert run_engine(page, *jobs) == run_engine(page, *jobs, plain=True)


@needs_node
@pytest.mark.parametrize(
    "changes",
    [*SHAPES.values(), *OPTIONS[1:], {"activation": "silu", "d_model": 34, "d_ff": 7}],
    ids=str,
)
def test_every_kind_of_model_has_the_logits_of_python(tmp_path, changes):
    """On sizes that no SIMD register is filled by, with steps, and with every search."""
    model, page = model_and_page(tmp_path, **changes)
    config, generator = model.config, random.Random(6)
    source = [*generator.choices(range(3, config.vocab_size), k=6), config.eos_id]
    target = [config.bos_id, *generator.choices(range(3, config.vocab_size), k=9)]
    searches = [
        {"beamSize": 4, "alpha": 0.6, "maxExtra": 5, "nBest": 1},
        {"beamSize": 7, "alpha": 1.5, "maxExtra": 4, "nBest": 7},
        {"beamSize": 3, "alpha": -0.5, "maxExtra": 3, "nBest": 2},
        {"beamSize": 1, "alpha": 0.0, "maxExtra": 0, "nBest": 1},
    ]
    logits, greedy, *beams = run_engine(
        page,
        {"do": "logits", "source": source, "target": target, "change": WHOLE},
        {"do": "greedy", "sources": [source], "maxExtra": 5},
        *({"do": "beam", "sources": [source], "settings": settings} for settings in searches),
    )
    source_BS = torch.tensor([source])
    assert_close(logits, model(source_BS, torch.tensor([target]))[0])
    assert greedy == greedy_search(model, source_BS, max_extra=5)
    for settings, (found,) in zip(searches, beams, strict=True):
        names = {"beamSize": "beam_size", "maxExtra": "max_extra", "nBest": "n_best"}
        options = {names.get(name, name): value for name, value in settings.items()}
        expected = beam_search(model, source_BS, **options)[0]
        assert [one["tokens"] for one in found] == [one.tokens for one in expected]
        assert [one["score"] for one in found] == pytest.approx([one.score for one in expected])


@needs_node
def test_of_equal_logits_the_first_is_chosen(tmp_path):
    model = small_checkpoint(tmp_path / "run")
    with torch.no_grad():
        model.embedding.weight.zero_()
    save_weights(tmp_path / "run" / "model.safetensors", model)
    page = write_page(tmp_path / "run", tmp_path / "page")
    greedy, seen = run_engine(
        page,
        {"do": "greedy", "sources": [[5, 6, 2]], "maxExtra": 1},
        {"do": "look", "source": [5, 6, 2], "target": []},
    )
    assert greedy == [[0, 0, 0]] == greedy_search(model, torch.tensor([[5, 6, 2]]), max_extra=1)
    assert [one["id"] for one in seen["next"][0]["runners"]] == [0, 1, 2, 3, 4]


@needs_node
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_vocabulary_may_have_more_pieces_than_a_function_takes_arguments(kind):
    code = f"""{engine()}
    const pieces = Array.from({{ length: 300_000 }}, (_, id) => id + "!");
    const [types, scores] = [pieces.map(() => 1), pieces.map((_, id) => -id)];
    const data = {{ kind: "{kind}", pieces, types, scores }};
    console.log(new (makeEngine().Tokenizer)(data, new Uint8Array()).encode("7!").at(-1));"""
    done = subprocess.run([NODE, "-"], input=code, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("7\n", "")


@needs_node
def test_activations_are_pytorchs(book_page):
    x = torch.linspace(-9, 9, 1801, dtype=torch.float64)
    known = {name: kind for name, kind in ACTIVATIONS.items() if name != "swiglu"}  # refused
    jobs = [{"do": "activate", "name": name, "x": x.tolist()} for name in known]
    for found, activation in zip(run_engine(book_page, *jobs), known.values(), strict=True):
        assert_close(found, activation()(x), atol=1e-14)


@pytest.mark.slow
@needs_node
def test_a_page_translates_lines_as_for_visitors_does(book_page, book_model):
    model, tokenizer = book_model
    texts = ["", " \t\u3000", "  I like tea.  ", "\ud83d Hello!", "tea " * 30]
    texts += ["I LIKE\x1fTEA.", "USA", "ŒUVRE ΣΑΣ", "I LIKE ªTEA", "2 + 2 = 4", "\u200b", "😀 \n!"]
    translator = for_visitors(Translator(model, tokenizer))
    (found,) = run_engine(book_page, {"do": "translate", "texts": texts, "settings": {"nBest": 1}})
    ours = [one["hypotheses"][0]["text"] if one["hypotheses"] else "" for one in found]
    assert ours == translator.translate(texts)


@needs_node
def test_a_long_search_can_be_given_up_and_a_short_one_is_not(book_page):
    long, short = ({"do": "stop", "text": "I like tea.", "tick": tick} for tick in (301, 0.001))
    stopped, found = run_engine(book_page, long, short)
    assert stopped == ["id", "isStopped"] and "hypotheses" in found


@needs_node
def test_the_steps_of_the_beam_lead_to_its_hypotheses(book_page, test_sentences):
    source = [*test_sentences[0], 2]
    (found,) = run_engine(book_page, {"do": "translate", "texts": ["I like tea."], "settings": {}})
    ends, alive = [], [[]]
    for step in found[0]["steps"]:
        grown = [alive[one["parent"]] + [one["token"]] for one in step]
        ends += [(one["score"], ids) for one, ids in zip(step, grown, strict=True) if one["ends"]]
        alive = [ids for one, ids in zip(step, grown, strict=True) if not one["ends"]]
    ranked = [(score, [token for token in ids if token != 2]) for score, ids in sorted(ends)[::-1]]
    assert source and ranked == [(one["score"], one["tokens"]) for one in found[0]["hypotheses"]]


# What one can look at and take away


@needs_node
def test_attention_and_runners_up_are_those_of_the_model(book_page, book_model, test_sentences):
    model, _ = book_model
    source, target = [*test_sentences[1], 2], [*test_sentences[2]]
    (seen,) = run_engine(book_page, {"do": "look", "source": source, "target": target})
    with torch.inference_mode(), record_attention(model) as weights:
        logits = model(torch.tensor([source]), torch.tensor([[1, *target]]))[0]
    for kind, name in (
        ("encoder", "encoder.layers.{}.self_attention"),
        ("decoder", "decoder.layers.{}.self_attention"),
        ("cross", "decoder.layers.{}.cross_attention"),
    ):
        expected = torch.cat([weights[name.format(i)] for i in range(model.config.N)])
        assert_close(seen["attention"][kind], expected, atol=1e-12)
    p_TV = logits.softmax(dim=-1)
    best_p, best = p_TV.topk(5)
    runners = [place["runners"] for place in seen["next"]]
    assert [[one["id"] for one in place] for place in runners] == best.tolist()
    assert [one["p"] for one in runners[0]] == pytest.approx(best_p[0].tolist())
    told = [*target, 2]
    assert [place["id"] for place in seen["next"]] == told
    of_told = [float(p[i]) for p, i in zip(p_TV, told, strict=True)]
    assert [place["p"] for place in seen["next"]] == pytest.approx(of_told)


def _without(model, *heads):
    """Hooks that set what these heads hand to W^O to zero: a second way to take a head away."""
    for kind, layer, head in heads:
        stack, part = ("decoder", "cross") if kind == "cross" else (kind, "self")
        attention = model.get_submodule(f"{stack}.layers.{layer}.{part}_attention")

        def zero(module, inputs, head=head, h=attention.h):
            (x,) = inputs
            x = x.clone().unflatten(-1, (h, -1))
            x[..., head, :] = 0
            return (x.flatten(-2),)

        yield attention.W_O.register_forward_pre_hook(zero)


@needs_node
@pytest.mark.parametrize("bias", [False, True])
def test_a_head_or_the_positions_can_be_taken_away(tmp_path, bias):
    model, page = model_and_page(tmp_path, bias=bias)
    job = {"do": "logits", "source": [5, 9, 7, 4, 2], "target": [1, 6, 3]}
    heads = [("encoder", 0, 1), ("cross", 1, 0), ("decoder", 1, 1)]
    without_heads = {"positions": True, "without": [".".join(map(str, head)) for head in heads]}
    changes = without_heads, {"positions": False, "without": []}, WHOLE
    found = run_engine(page, *(job | {"change": change} for change in changes))

    def logits():
        return model(torch.tensor([job["source"]]), torch.tensor([job["target"]]))[0]

    hooks = list(_without(model, *heads))
    assert_close(found[0], logits())
    for hook in hooks:
        hook.remove()
    assert_close(found[2], logits())
    model.positions.table.zero_()
    assert_close(found[1], logits())
    heads, positions, whole = map(torch.tensor, found)
    assert not torch.allclose(heads, whole) and not torch.allclose(positions, whole)


# The files


def test_the_page_weighs_less_than_8_mb_and_names_no_other_host(book_page):
    sizes = {path.name: path.stat().st_size for path in book_page.iterdir()}
    assert set(sizes) == {*COPIED, "engine.js", "explorer.js", "model.js"}
    assert sum(sizes.values()) <= 8e6
    for name in sizes.keys() - {"model.js"}:
        text = (book_page / name).read_text(encoding="utf-8")
        addresses = re.findall(r"\b(?:https?:)?//[a-z][\w.-]+\.[a-z]{2,}[^\s\"')\\]*", text)
        names = {"http://www.w3.org/2000/svg"}  # of an XML namespace, which nobody asks for
        assert set(addresses) <= names, name


def test_without_javascript_the_page_shows_a_translation_of_its_first_sentence(
    book_page, book_model
):
    text = (book_page / "index.html").read_text(encoding="utf-8")
    (shown,) = re.findall(r"<body>.*<noscript>(.*?)</noscript>", text, flags=re.S)
    sentence = "I have bought a new umbrella."
    (translation,) = Translator(*book_model).translate([sentence])
    assert re.findall(r'<p dir="auto">([^<]*)</p>', shown) == [sentence, translation]
    assert "The model is loading" not in text


@pytest.mark.skipif(not kernels.CLANG, reason="no clang on this machine")
def test_the_products_are_what_their_source_compiles_to(tmp_path):
    """By the compiler that made them, byte for byte; another may choose other instructions."""
    kernels.build(tmp_path / "kernels.wasm")
    built, stored = (tmp_path / "kernels.wasm").read_bytes(), stored_kernels()
    assert len(stored) < 1000
    if kernels.version() == kernels.BUILT_BY:
        assert built == stored
    else:
        pytest.skip(f"{kernels.version()} is not {kernels.BUILT_BY}")


def test_what_a_page_cannot_be_made_of_is_refused_in_one_line(tmp_path):
    small_checkpoint(tmp_path / "wide", N=1, d_ff=WIDEST + 1)
    small_checkpoint(tmp_path / "run")
    (tmp_path / "run" / "training.safetensors").write_bytes(b"precious")
    nan = small_checkpoint(tmp_path / "nan")
    with torch.no_grad():
        nan.encoder.layers[0].feed_forward.W_1.weight[0, 0] = torch.nan
    save_weights(tmp_path / "nan" / "model.safetensors", nan)
    for source, out, words in (
        ("wide", "page", f"at most {WIDEST:,} products"),
        ("nan", "page", "values that are not finite"),
        ("nan", "nan", "a directory of its own"),
        ("nan", "run", "holds a training run"),
        ("nowhere", "page", "not a checkpoint"),
    ):
        with pytest.raises(ConfigError, match=words) as said:
            write_page(tmp_path / source, tmp_path / out)
        assert "\n" not in str(said.value) and not (tmp_path / "page" / "model.js").exists()


@needs_node
def test_the_widest_sum_does_not_overflow(tmp_path):
    """All products as large as they can be, in as many columns as there may be."""
    model = small_checkpoint(tmp_path / "run", N=1, d_ff=WIDEST)
    with torch.no_grad():
        model.encoder.layers[0].feed_forward.W_2.weight.fill_(127.0)
    save_weights(tmp_path / "run" / "model.safetensors", model)
    page = write_page(tmp_path / "run", tmp_path / "page")
    job = {"do": "linear", "name": "encoder.layers.0.feed_forward.W_2", "x": [2047.0] * WIDEST}
    bias = model.encoder.layers[0].feed_forward.W_2.bias.double()
    for plain in (False, True):
        (y,) = run_engine(page, job, plain=plain)
        assert_close(y, 127.0 * 2047 * WIDEST + bias, rtol=1e-12, atol=0)


def test_lines_vary(book_model):
    """The control: without these the test of ten thousand lines would say little."""
    text = "".join(varied_lines(1, 10_000, book_model[1]))
    for sign in "\x00\n\u200d\u202e\u2581\ufeff\u0301\U0001f469\ufdfa\ud83d":
        assert sign in text, repr(sign)
    for first, last in SCRIPTS:
        assert any(first <= ord(one) <= last for one in text), hex(first)
