"""Laws that hold for any input, which hypothesis looks for exceptions to."""

import json
import unicodedata

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from annotated_transformer.checkpoint.weights import load_tensors, save_tensors
from annotated_transformer.config import DecodeConfig, ModelConfig, TrainConfig
from annotated_transformer.data.parallel_text import read_lines
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.data.vocabulary_file import require_sound
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.errors import ConfigError
from lab.parsing.trees import Tree, read_tree, read_trees, write_tree
from toys import small_model, toy_tokenizer

LAW = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
LINES = st.lists(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\n")))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
LABELS = st.text("abcXYZ-0.", min_size=1, max_size=4)
TREES = st.recursive(
    st.builds(Tree, LABELS, st.tuples(LABELS)),
    lambda inner: st.builds(Tree, LABELS, st.lists(inner, min_size=1, max_size=3).map(tuple)),
    max_leaves=12,
)


def right_or_one_line(action):
    try:
        return action()
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1
        return None


@LAW
@given(LINES.filter(bool))
def test_a_file_gives_the_lines_that_were_written(tmp_path, lines):
    path = tmp_path / "text"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    first = lines[0].removeprefix("\ufeff")
    assert read_lines(path) == [line.removesuffix("\r") for line in (first, *lines[1:])]


@LAW
@given(st.lists(st.text()))
def test_any_text_has_ids_that_give_it_back(texts):
    """But for what NFKC and SentencePiece's own mark for a space change, and lone surrogates."""
    tokenizer = toy_tokenizer()
    batch = tokenizer.encode_batch(texts)
    assert len(batch) == len(texts)
    for text, ids in zip(texts, batch):
        assert all(4 <= i < tokenizer.vocab_size for i in ids)
        plain = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if plain.isascii():
            assert tokenizer.decode(ids) == unicodedata.normalize("NFKC", plain)


@LAW
@given(st.data())
def test_settings_are_what_was_given_or_one_line(data):
    kind = data.draw(st.sampled_from([ModelConfig, TrainConfig, DecodeConfig]))
    good = kind(vocab_size=300) if kind is ModelConfig else kind()
    names = data.draw(st.lists(st.sampled_from(sorted(good.to_dict())), max_size=3))
    changed = {**good.to_dict(), **{name: data.draw(JSON) for name in names}}
    config = right_or_one_line(lambda: kind.from_dict(changed))
    if config is not None:
        assert kind.from_dict(json.loads(json.dumps(config.to_dict()))) == config
        assert all(config.to_dict()[name] == changed[name] for name in names if name != "d_k")


@LAW
@given(st.sampled_from(sorted(TrainConfig().to_dict())), st.text())
def test_a_setting_on_the_command_line_is_a_value_or_one_line(name, text):
    right_or_one_line(lambda: TrainConfig().replace(**{name: TrainConfig.parse(name, text)}))


@LAW
@given(TREES)
def test_a_tree_survives_being_written(tree):
    assert read_tree(write_tree(tree)) == tree


@LAW
@given(st.text("()abX \n-"))
def test_any_text_is_trees_or_one_line(text):
    right_or_one_line(lambda: read_trees(text))


@LAW
@given(
    st.dictionaries(st.text(min_size=1), st.lists(st.integers(0, 3), max_size=3), max_size=3),
    st.dictionaries(st.text(), st.text(), max_size=3),
)
def test_tensors_and_what_is_said_of_them_survive_a_file(tmp_path, shapes, metadata):
    shapes.pop("__metadata__", None)
    tensors = {name: torch.rand(shape) for name, shape in shapes.items()}
    save_tensors(tmp_path / "file", tensors, metadata)
    found, said = load_tensors(tmp_path / "file")
    assert said == metadata and found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


@LAW
@given(st.binary())
def test_any_bytes_are_a_vocabulary_or_one_line(content):
    right_or_one_line(lambda: Tokenizer(content))


@LAW
@given(st.integers(0, 10**6), st.integers(0, 255), st.booleans())
def test_a_changed_vocabulary_is_one_or_one_line(at, byte, cut):
    content = bytearray(toy_tokenizer().model_bytes)
    content[at % len(content)] = byte
    right_or_one_line(lambda: require_sound(bytes(content[: at if cut else None])))


@pytest.fixture(scope="module")
def translator():
    return Translator(small_model(vocab_size=280, dtype=torch.float32), toy_tokenizer())


@settings(LAW, max_examples=15)
@given(st.lists(st.text(max_size=20), max_size=5), st.integers(1, 3))
def test_as_many_lines_out_as_in(translator, lines, window):
    stream = translator.translate_stream(iter(lines), window, beam_size=2, max_extra=2)
    translated = list(stream)
    assert len(translated) == len(lines)
    assert all("\n" not in line for line in translated)
