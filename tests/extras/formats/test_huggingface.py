"""Out to Hugging Face and back, and what is refused. tests/readers has transformers read it."""

import io
import json
import shutil
from pathlib import Path

import pytest
import sentencepiece
import torch
from safetensors import safe_open
from torch.testing import assert_close

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.checkpoint.weights import load_tensors, save_tensors
from annotated_transformer.command_line import entry_point as cli
from annotated_transformer.config import PAD_ID, UNK_ID
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import ConfigError
from annotated_transformer.extras.formats import own_form as our_own
from annotated_transformer.extras.formats.huggingface import HUGGINGFACE_FILES, export_checkpoint
from annotated_transformer.extras.formats.importing import import_checkpoint
from annotated_transformer.extras.page.writing import write_page
from toys import random_tokens, small_checkpoint, text_pairs, toy_tokenizer

BOOK_MODEL = Path(__file__).parents[3] / "book" / "model"
SOURCE, TARGET = random_tokens(1, 2, 7, high=280), random_tokens(2, 2, 6, high=280)
SOURCE[1, 4:] = PAD_ID


def ours(folder, tokenizer=None, **changes):
    tokenizer = tokenizer or toy_tokenizer()
    model = small_checkpoint(folder, tokenizer, **changes)
    checkpoint.write_directory(folder, model.config, tokenizer, {"corpus": "reverse"})
    return model


def exported(folder, **changes):
    ours(folder / "ours", **changes)
    return export_checkpoint(folder / "ours", folder / "theirs")


def changed(path, **changes):
    """A JSON file with some entries changed, or removed where the new one is `...`."""
    content = {**json.loads(path.read_text()), **changes}
    kept = {name: value for name, value in content.items() if value is not ...}
    path.write_text(json.dumps(kept))


def with_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors, _ = load_tensors(path)
    change(tensors)
    save_tensors(path, tensors)


def same(one, other):
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre", "positions": "learned", "max_len": 9},
        {"bias": True, "output_bias": True},
    ],
    ids=str,
)
def test_the_way_back_is_bit_for_bit(tmp_path, changes):
    model = ours(tmp_path / "ours", **changes)
    arguments = ["export", tmp_path / "ours", "--to", "huggingface", "--out", tmp_path / "theirs"]
    assert cli.main(list(map(str, [*arguments, "--notes", "Good at reversing."]))) == 0
    assert sorted(path.name for path in (tmp_path / "theirs").iterdir()) == sorted(
        HUGGINGFACE_FILES
    )
    assert cli.main(["import", str(tmp_path / "theirs"), "--out", str(tmp_path / "back")]) == 0
    back, tokenizer = load_model(tmp_path / "back")
    assert same(model.state_dict(), back.state_dict()) and back.config == model.config
    assert tokenizer.model_bytes == toy_tokenizer().model_bytes
    assert checkpoint.read_config(tmp_path / "back") == checkpoint.read_config(tmp_path / "ours")
    assert Translator.from_checkpoint(tmp_path / "back").translate(["tea"], max_extra=2)


def test_what_stands_beside_the_weights_is_what_other_programs_ask_for(tmp_path):
    theirs = exported(tmp_path)
    with safe_open(theirs / "model.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt"  # else transformers 4 refuses it
    generation = json.loads((theirs / "generation_config.json").read_text())
    del generation["max_length"]
    assert generation == {
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
        "forced_eos_token_id": None, "num_beams": 4, "length_penalty": 0.6,
        "early_stopping": "never",
    }  # fmt: skip


def test_a_card_says_what_the_checkpoint_knows(tmp_path):
    ours(tmp_path / "ours")
    score = {"score": 12.345, "signature": "nrefs:1|case:mixed"}
    (tmp_path / "ours" / "scores.json").write_text(json.dumps({"BLEU": score, "int8": False}))
    train = {"train": {"max_length": 77}, "corpus": "tatoeba-en-de"}
    changed(tmp_path / "ours" / "config.json", **train)
    for form in (export_checkpoint, our_own.export_checkpoint):
        out = form(tmp_path / "ours", tmp_path / form.__module__, notes="A note.")
        card = (out / "README.md").read_text()
        assert "A note." in card and "CC BY 2.0 FR" in card and "at most 77 tokens" in card
        assert "| BLEU | 12.35 | `nrefs:1|case:mixed` |" in card
    card = (tmp_path / "annotated_transformer.extras.formats.huggingface" / "README.md").read_text()
    assert card.startswith("---\nlanguage:\n- en\n- de\nlibrary_name: transformers\ntags:")
    assert "AutoModelForSeq2SeqLM.from_pretrained(" in card


@pytest.mark.parametrize("form", [export_checkpoint, our_own.export_checkpoint])
def test_a_card_of_the_books_model_is_short_and_promises_no_pipeline(tmp_path, form):
    card = (form(BOOK_MODEL, tmp_path / "out") / "README.md").read_text()
    assert '"unsure_below"' in card and "translated" not in card
    assert len(card) < 10_000 and max(map(len, card.split("\n"))) < 1000
    assert "pipeline_tag" not in card
    is_for_transformers = "from_pretrained" in card
    assert is_for_transformers == ('convert_tokens_to_ids("<2source>")' in card)


def test_a_card_has_the_scores_of_its_own_directory_alone(tmp_path):
    ours(tmp_path / "runs" / "ours")
    score = {"BLEU": {"score": 99.9, "signature": "of another run"}}
    (tmp_path / "runs" / "scores.json").write_text(json.dumps(score))
    card = our_own.export_checkpoint(tmp_path / "runs" / "ours", tmp_path / "out") / "README.md"
    assert "99.9" not in card.read_text()


def test_no_folder_of_this_machine_is_published(tmp_path):
    ours(tmp_path / "ours")
    names = "/home/alice/clients/acme/train.en ../secret/train.de C:\\Users\\alice\\x.en"
    changed(tmp_path / "ours" / "config.json", corpus=names)
    export_checkpoint(tmp_path / "ours", tmp_path / "theirs")
    our_own.export_checkpoint(tmp_path / "ours", tmp_path / "own")
    write_page(tmp_path / "ours", tmp_path / "page")
    changed(tmp_path / "theirs" / "config.json", annotated_transformer={
        **json.loads((tmp_path / "theirs" / "config.json").read_text())["annotated_transformer"],
        "corpus": names,
    })  # fmt: skip
    import_checkpoint(tmp_path / "theirs", tmp_path / "back")
    for file in (
        "theirs/README.md",
        "own/config.json",
        "own/README.md",
        "page/model.js",
        "back/config.json",
    ):
        text = (tmp_path / file).read_text()
        assert "train.en train.de x.en" in text
        assert not any(word in text for word in ("alice", "acme", "secret"))


@pytest.mark.parametrize(
    "changes",
    [
        {"train": [1]},
        {"train": "x"},
        {"train": {"max_length": "a"}},
        {"train": {"max_length": [1]}},
        {"doubt": [1]},
        {"doubt": None},
        {"corpus": "```\n# Mine\n<img src=x>"},
    ],
    ids=str,
)
def test_a_card_takes_settings_of_any_kind(tmp_path, changes):
    ours(tmp_path / "ours")
    changed(tmp_path / "ours" / "config.json", **changes)
    for form in (export_checkpoint, our_own.export_checkpoint):
        out = form(tmp_path / "ours", tmp_path / form.__module__)
        card = (out / "README.md").read_text()
        assert "at most" not in card and "## Settings" in card
        if "corpus" in changes:
            assert f"````\n{changes['corpus']}\n````" in card


@pytest.mark.parametrize("found", [[1], {"scores": [1]}, {"BLEU": {"score": "12"}}, {"BLEU": 3}])
def test_a_card_passes_over_scores_of_another_program(tmp_path, found):
    ours(tmp_path / "ours")
    (tmp_path / "ours" / "scores.json").write_text(json.dumps(found))
    changed(tmp_path / "ours" / "config.json", train=None)
    card = our_own.export_checkpoint(tmp_path / "ours", tmp_path / "out") / "README.md"
    assert "| BLEU |" not in card.read_text()


def test_an_export_replaces_an_earlier_one_and_nothing_else(tmp_path):
    theirs = exported(tmp_path)
    before = {path.name: path.read_bytes() for path in theirs.iterdir()}
    export_checkpoint(tmp_path / "ours", theirs)
    assert before == {path.name: path.read_bytes() for path in theirs.iterdir()}
    with pytest.raises(ConfigError, match="a directory of its own"):
        export_checkpoint(tmp_path / "ours", tmp_path / "ours")
    changed(theirs / "config.json", annotated_transformer=...)
    with pytest.raises(ConfigError, match="would be overwritten"):
        export_checkpoint(tmp_path / "ours", theirs)
    with pytest.raises(ConfigError, match="would be overwritten"):
        import_checkpoint(theirs, tmp_path / "ours")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"positions": "rotary"}, "positions=rotary: train with positions=sinusoidal"),
        ({"rms_norm": True}, "rms_norm=True: train with rms_norm=False"),
        ({"qk_norm": True}, "qk_norm=True: train with qk_norm=False"),
        ({"activation": "swiglu"}, "activation=swiglu: train with activation=relu"),
        ({"final_norm": True}, "final_norm after norm=post"),
        ({"positions": "learned"}, "positions=learned from 0 on with norm=post: train with"),
        ({"positions": "none"}, "positions=none from 0"),
        ({"first_position": 2}, "positions=sinusoidal from 2"),
        ({"d_k": 3}, "got 2, 3, 4 and 8: leave d_k and d_v at d_model / h"),
        ({"d_v": 3}, "got 2, 4, 3 and 8"),
        ({"d_model": 6, "scaled_attention": False}, "d_k 3, whose root is not exact"),
        ({"zero_start": True}, "zero_start without output_bias"),
    ],
    ids=str,
)
def test_a_model_without_a_home_is_refused_in_a_line(tmp_path, changes, words):
    ours(tmp_path / "ours", **changes)
    with pytest.raises(ConfigError, match="Hugging Face (has no model with|knows no)") as refused:
        export_checkpoint(tmp_path / "ours", tmp_path / "theirs")
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "theirs").exists()


def test_a_vocabulary_without_a_home_is_refused_in_a_line(tmp_path):
    text = [side for pair in text_pairs(0, 200) for side in pair]
    ours(tmp_path / "symbols", Tokenizer.train(text, 285, symbols=["tea", "ebb"]))
    with pytest.raises(ConfigError, match="has 2 symbols of its own"):
        export_checkpoint(tmp_path / "symbols", tmp_path / "theirs")
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=written, vocab_size=285, byte_fallback=True,
        model_type="bpe", normalization_rule_name="nmt_nfkc_cf", remove_extra_whitespaces=False,
        pad_id=0, bos_id=1, eos_id=2, unk_id=3, minloglevel=2,
    )  # fmt: skip
    ours(tmp_path / "folded", Tokenizer(written.getvalue()))
    with pytest.raises(ConfigError, match="tokenizer.json has no rule 'nmt_nfkc_cf'"):
        export_checkpoint(tmp_path / "folded", tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


def from_elsewhere(folder):
    """A Marian model of no one's: two vocabularies, and a start that is no row of zeros."""
    model = ours(folder / "ours", bias=True, output_bias=True, activation="silu")
    theirs = export_checkpoint(folder / "ours", folder / "theirs")
    pieces = toy_tokenizer().pieces(range(280))
    (theirs / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    for side in ("source", "target"):
        (theirs / f"{side}.spm").write_bytes(toy_tokenizer().model_bytes)
    for name in ("tokenizer.model", "tokenizer.json"):
        (theirs / name).unlink()
    changed(theirs / "config.json", annotated_transformer=..., decoder_start_token_id=1)
    return model, theirs


def test_a_marian_model_becomes_ours_with_a_row_more(tmp_path):
    model, theirs = from_elsewhere(tmp_path)
    import_checkpoint(theirs, tmp_path / "back")
    back, tokenizer = load_model(tmp_path / "back")
    # Padding, what begins, end and unknown; <s>, which was 1, is an ordinary piece now.
    ids = torch.tensor([0, 4, 2, 3, *range(5, 281)])
    target = ids[TARGET]
    target[:, 0], before = 1, TARGET.clone()
    before[:, 0] = 1
    logits = back(ids[SOURCE], target)
    assert_close(logits[..., ids][..., 1:], model(SOURCE, before)[..., 1:], atol=1e-5, rtol=0)
    assert (logits[..., :2] < -50).all()
    text = "tea bad"
    assert tokenizer.encode(text) == ids[toy_tokenizer().encode(text)].tolist()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.sides[1].encode(text) == tokenizer.encode(text)
    assert Translator.from_checkpoint(tmp_path / "back").translate([text], max_extra=2)


def test_a_language_at_the_beginning_is_one_piece_known_or_not(tmp_path):
    """transformers does the same; tests/readers compares the two."""
    _, theirs = from_elsewhere(tmp_path)
    import_checkpoint(theirs, tmp_path / "back")
    _, tokenizer = load_model(tmp_path / "back")
    unknown, tea = tokenizer.encode(">>xyz<<"), tokenizer.encode("tea")
    assert unknown == [UNK_ID]
    assert tokenizer.encode(">>xyz<<tea") == [UNK_ID, *tea]
    library = sentencepiece.SentencePieceProcessor(model_proto=toy_tokenizer().model_bytes)
    names = tokenizer.pieces(range(tokenizer.vocab_size))
    for text in (">> tea", ">tea", ">", "<< tea", "a >>xyz<< b"):
        pieces = library.encode(text, out_type=str)
        assert tokenizer.encode(text) == [names.index(piece) for piece in pieces]


def with_two_vocabularies(folder):
    changed(folder / "config.json", model_type="fsmt")
    shutil.copy(folder / "vocab.json", folder / "vocab-src.json")
    ids = json.loads((folder / "vocab.json").read_text())
    backwards = dict(zip(ids, reversed(ids.values()), strict=True))
    (folder / "vocab-tgt.json").write_text(json.dumps(backwards))


def config(**changes):
    return lambda folder: changed(folder / "config.json", **changes)


def vocabulary(**changes):
    return lambda folder: changed(folder / "vocab.json", **changes)


def tensors(change):
    return lambda folder: with_tensors(folder, change)


def content(name, text):
    return lambda folder: (folder / name).write_bytes(text)


def without(name):
    return lambda folder: (folder / name).unlink()


def as_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def in_shards(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text("{}")


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])


TABLE = "model.shared.weight"
SCREEN = "\n\x1b[2Jerror: " + "x" * 10**5
FEW = b'{"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}'
NOT_OURS = "of models that were not exported here only marian and"
GIANTS = {"d_model": 2**26, "encoder_attention_heads": 1, "decoder_attention_heads": 1}
HOSTILE = {
    "no folder": (shutil.rmtree, "config.json: No such file or directory"),
    "no JSON": (content("config.json", b"{"), "config.json is not JSON"),
    "another model": (config(model_type="t5"), f"has a model of type 't5': {NOT_OURS} fsmt can"),
    "a Pegasus of another": (config(model_type="pegasus"), f"type 'pegasus': {NOT_OURS}"),
    "no weights": (without("model.safetensors"), "no such file"),
    "a pickle": (
        as_pickle,
        "pytorch_model.bin can run code when it is read, so it is not opened: to make",
    ),
    "cut weights": (cut, "is not a safetensors file or is damaged"),
    "no numbers": (
        tensors(lambda t: t[TABLE][5, 3].fill_(torch.nan)),
        "that are not finite, in model.shared",
    ),
    "two tables": (
        tensors(lambda t: t.update({"lm_head.weight": t[TABLE] + 1})),
        "has another lm_head.weight than model.shared.weight: ours is one for all",
    ),
    "a tensor too few": (
        tensors(lambda t: t.pop("model.encoder.layers.1.fc1.bias")),
        "does not fit its config.json: model.encoder.layers.1.fc1.bias differ",
    ),
    "a tensor too many": (tensors(lambda t: t.update(more=torch.zeros(1))), "more differ"),
    "giants": (config(**GIANTS), "model.decoder.layers.0."),
    "a billion layers": (
        config(encoder_layers=10**8, decoder_layers=10**8),
        "has 2 layers in the encoder, N is 100000000",
    ),
    "unlike stacks": (config(decoder_layers=1), "alike, got layers 2 and 1"),
    "integers": (
        tensors(lambda t: t.update({TABLE: (50 * t[TABLE]).to(torch.int8)})),
        "must have weights in float32, float16, bfloat16, float64, got int8 in model.shared.weight",
    ),
    "bits": (tensors(lambda t: t.update({TABLE: t[TABLE] > 0})), "got bool in model.shared.weight"),
    "complex": (
        tensors(lambda t: t.update({TABLE: t[TABLE].to(torch.complex64)})),
        "got complex64 in model",
    ),
    "shards": (in_shards, "has its weights in shards: save it again with"),
    "a screen in a name": (
        tensors(lambda t: t.update({SCREEN: torch.zeros(1)})),
        "\\x1b[2Jerror: x",
    ),
    "a screen in a setting": (config(activation_function=SCREEN), "\\x1b[2Jerror: xx"),
    "a screen for a size": (config(encoder_layers=SCREEN), "got layers \\n\\x1b[2Jerror: xxx"),
    "sizes in words": (config(d_model="eight"), "d_model must be int, got 'eight'"),
    "unscaled": (config(scale_embedding=...), "scale_embedding must be True"),
    "another activation": (config(activation_function="tanh"), "must be one of swish"),
    "no piece is unknown": (vocabulary(**{"<unk>": ..., "<nnk>": 3}), "no piece <unk>"),
    "holes in the numbers": (vocabulary(**{"<unk>": 300}), "must number its 280 pieces from 0"),
    "a shorter vocabulary": (content("vocab.json", FEW), "has 4 pieces, the weights 280 rows"),
    "one end for two": (config(eos_token_id=0), "are 0, 0 and 3: they do not fit"),
    "a start in words": (
        config(decoder_start_token_id="two"),
        "decoder_start_token_id must be a whole number, got 'two'",
    ),
    "a vocabulary for each side": (
        with_two_vocabularies,
        "has a vocabulary for each side, and ours is one for both",
    ),
    "a start beyond": (config(decoder_start_token_id=280), "they do not fit"),
    "no SentencePiece": (content("source.spm", b"\x0a\xff"), "is not a SentencePiece model"),
    "half a character": (
        vocabulary(**{"<s>": ..., "\ud800": 1}),
        "this is no pair of vocabularies: UnicodeEncodeError",
    ),
    "no target": (without("target.spm"), "target.spm: No such file or directory"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_folder_is_refused_in_a_line_and_nothing_written(tmp_path, name, capsys):
    _, theirs = from_elsewhere(tmp_path)
    harm, words = HOSTILE[name]
    harm(theirs)
    assert cli.main(["import", str(theirs), "--out", str(tmp_path / "back")]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1, said[:999]
    assert "\x1b" not in said and len(said) < 600
    assert not (tmp_path / "back").exists()


def test_a_name_of_the_hub_says_how_to_fetch_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="`hf download NLP/opus-mt-en-de --local-dir FOLDER`"):
        import_checkpoint("NLP/opus-mt-en-de", "out")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"annotated_transformer": 3}, "annotated_transformer must be an object"),
        ({"annotated_transformer": {}}, "settings of ModelConfig must be a dictionary"),
        ({"annotated_transformer": {"corpus": 5}}, "config.json: corpus must be a name, got 5"),
        ({"model_type": "pegasus"}, "model_type must be marian, as its entry annotated_transf"),
        ({"activation_function": "gelu"}, "activation_function must be relu, as its entry"),
        ({"encoder_attention_heads": 4}, "encoder_attention_heads must be 2, as its entry"),
        ({"model": {"qk_norm": True}}, "config.json: Hugging Face knows no qk_norm=True"),
        ({"model": {"final_norm": True}}, "no model with final_norm after norm=post"),
        ({"model": {"rms_norm": True}}, "knows no rms_norm=True: train with rms_norm=False"),
        ({"model": {"positions": "rotary"}}, "knows no positions=rotary"),
        ({"model": {"first_position": 2}}, "positions=sinusoidal from 2"),
        ({"model": {"scaled_attention": False}}, "trained with another scaled_attention than"),
        ({"model": {SCREEN: 1}}, r"ModelConfig has no setting \\n\\x1b\[2Jerror: xx"),
        ({"model": {"norm": SCREEN}}, r"norm must be one of post, pre, got \\n\\x1b\[2Jerror: xx"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_our_own_entry_may_be_a_strangers_too(tmp_path, changes, words):
    theirs = exported(tmp_path, d_model=8, h=2)
    if "model" in changes:
        ours_there = json.loads((theirs / "config.json").read_text())["annotated_transformer"]
        ours_there["model"].update(changes["model"])
        changes = {"annotated_transformer": ours_there}
    changed(theirs / "config.json", **changes)
    with pytest.raises(ConfigError, match=words):
        import_checkpoint(theirs, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_what_is_ours_needs_its_embedding_and_its_vocabulary(tmp_path):
    theirs = exported(tmp_path)
    whole = (theirs / "model.safetensors").read_bytes()
    with_tensors(theirs, lambda tensors: tensors.pop("model.shared.weight"))
    with pytest.raises(ConfigError, match="has no embedding model.shared.weight"):
        import_checkpoint(theirs, tmp_path / "back")
    (theirs / "model.safetensors").write_bytes(whole)
    (theirs / "tokenizer.model").unlink()
    with pytest.raises(ConfigError, match="tokenizer.model: copy tokenizer.model from the fol"):
        import_checkpoint(theirs, tmp_path / "back")
    sentences = [text for pair in text_pairs(5, 90) for text in pair]
    Tokenizer.train(sentences, 270, theirs / "tokenizer.model")
    with pytest.raises(ConfigError, match="the tokenizer has 270 tokens"):
        import_checkpoint(theirs, tmp_path / "back")


def test_a_marian_model_goes_out_again_with_its_two_vocabularies(tmp_path, capsys):
    _, theirs = from_elsewhere(tmp_path)
    import_checkpoint(theirs, tmp_path / "back")
    again = export_checkpoint(tmp_path / "back", tmp_path / "again")
    for name in ("source.spm", "target.spm"):
        assert (again / name).read_bytes() == (theirs / name).read_bytes()
    numbers = json.loads((again / "vocab.json").read_text())
    assert numbers.keys() == json.loads((theirs / "vocab.json").read_text()).keys() | {"<begin>"}
    said = json.loads((again / "tokenizer_config.json").read_text())
    assert (said["tokenizer_class"], said["bos_token"]) == ("MarianTokenizer", "<begin>")
    assert not (again / "tokenizer.json").exists()
    import_checkpoint(again, tmp_path / "twice")
    (first, words), (second, same_words) = (load_model(tmp_path / n) for n in ("back", "twice"))
    assert same(first.state_dict(), second.state_dict()) and first.config == second.config
    assert words.model_bytes == same_words.model_bytes
    assert cli.main(["export-page", str(tmp_path / "back"), "--out", str(tmp_path / "x")]) == 2
    said = capsys.readouterr().err
    assert "two vocabularies of another maker" in said and said.count("\n") == 1
    assert not (tmp_path / "x").exists()
    export = ["export", str(tmp_path / "back"), "--out", str(tmp_path / "x"), "--dtype", "float16"]
    assert cli.main(export) == 0


def test_a_start_of_zeros_is_a_row_of_zeros_there(tmp_path):
    model = ours(tmp_path / "ours", zero_start=True, output_bias=True)
    theirs = export_checkpoint(tmp_path / "ours", tmp_path / "theirs")
    tensors, _ = load_tensors(theirs / "model.safetensors")
    assert not tensors["model.shared.weight"][1].any()
    assert tensors["final_logits_bias"][0, 1] == -100
    import_checkpoint(theirs, tmp_path / "back")
    back, _ = load_model(tmp_path / "back")
    assert back.config == model.config
    words = [0, *range(2, 280)]
    target = TARGET.clone()
    target[:, 0] = 1
    assert torch.equal(back(SOURCE, target)[..., words], model(SOURCE, target)[..., words])
