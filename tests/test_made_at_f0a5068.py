"""A checkpoint, a stopped run and shards of an earlier commit, made_at_f0a5068/README.md, are read
as that commit read them."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from annotated_transformer.data.batching import encode_pairs
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.extras.shards.reading import Shards
from annotated_transformer.training.log import read_log
from toys import run, text_pairs


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    with tarfile.open(Path(__file__).parent / "made_at_f0a5068" / "made.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def expected(made):
    return json.loads((made / "expected.json").read_text(encoding="utf-8"))


def test_the_checkpoint_translates_as_before_by_the_papers_search(made, expected):
    translator = Translator.from_checkpoint(made / "checkpoint")
    sources = [source for source, _ in text_pairs(2, 8)]
    found = [best for (best,) in translator.n_best(sources, n_best=1, max_extra=4)]
    assert [list(best.tokens) for best in found] == expected["tokens"]
    assert [best.score for best in found] == pytest.approx(expected["scores"], rel=1e-4)


def test_the_run_is_resumed_to_the_same_end(made, expected):
    settings = {"train_steps": 12, "checkpoint_every": 6, "keep_checkpoints": 1, "log_every": 6}
    tokenizer = Tokenizer.load(made / "run" / "tokenizer.model")
    sizes = {"vocab_size": tokenizer.vocab_size}
    run(made / "run", tokenizer=tokenizer, model_changes=sizes, resume=True, **settings)
    weights = load_file(made / "run" / "model.safetensors")
    norms = {name: weight.double().norm().item() for name, weight in weights.items()}
    assert norms == pytest.approx(expected["weights"], rel=1e-4)
    last = read_log(made / "run")[-1]
    assert (last["step"], last["loss"]) == (12, pytest.approx(expected["loss"], rel=1e-4))


def test_the_shards_hold_the_same_pairs(made):
    shards = Shards(made / "shards")
    shards.verify()
    assert shards.gather(np.arange(60)) == encode_pairs(shards.tokenizer(), text_pairs(1, 60), 100)
