"""A mistake is one line, which names the cure: of each row, all phrases stand in that line."""

import shlex

import pytest
from test_entry_point import refused, run

from toys import small_checkpoint

MISTAKES = [
    ("", "give a verb: there are prepare, train, average"),
    ("frobnicate", "there is no verb frobnicate: there are prepare, train"),
    ("train --corpus copy", "required: --out"),
    ("train --out new", "there is nothing to train on"),
    ("train --out new --corpus nope", "there is no corpus nope"),
    ("train --out new --valid a b", "--valid goes with --train: two files each"),
    ("train --out new --corpus copy --train a b --valid c d", "not both"),
    ("train --out new --train a b --valid c d", "No such file"),
    ("train --out new --corpus copy --set d_model", "--set takes name=value, got d_model"),
    ("train --out new --corpus copy --set d_modle=8", "no setting d_modle: did you mean d_model?"),
    ("train --out new --corpus copy --set pad_id=3", "there is no setting pad_id"),
    ("train --out new --corpus copy --set N=six", "N must be int, got 'six'"),
    ("train --out new --corpus copy --set d_model=7", "d_model must be a multiple of h"),
    ("train --out new --corpus copy --vocab-size 270", "vocab_size must be at least"),
    ("train --out new --corpus copy --init nowhere", "nowhere is not a checkpoint directory"),
    ("train --out new --corpus copy --init x --preset tiny", "--init brings its vocabulary"),
    ("train --out new --resume --init nowhere", "nowhere is not a checkpoint directory"),
    ("train --out new --resume", "there is nothing to train on"),
    ("translate nowhere", "nowhere is not a checkpoint directory"),
    ("translate nowhere --beam-size 0", "beam_size must be between 1 and 1,024, got 0"),
    ("train --out new --corpus copy --set concatenate=inf", "concatenate must be a finite"),
    (f"train --out new --corpus copy --set seed={2**70}", "seed must fit into 64 bits, got 1"),
    (f"train --out new --corpus copy --seed {2**70}", "seed must fit into 64 bits, got 11805"),
    ("train --out new --corpus copy --set d_ff=10000000000", "must be at most 268,435,456"),
    ("train --out new --corpus copy --set d_model=100000000", "GiB of memory, this machine ha"),
    ("train --out file --corpus copy", "file is not a directory"),
    ("train --out new --corpus copy --tensorboard file", "file is not a directory"),
    ("train --out new --corpus copy --seed 0 --set seed=3", "--set seed says it already"),
    ("train --out new --init x --model-type bpe", "--model-type would have no effect"),
    ("train --out new --train a b --valid c d --data-dir x", "--data-dir would have no eff"),
    ("train --out new --corpus copy --init new", "--init and --out must be two directories"),
    ("translate nowhere --alpha 1000", "alpha must be between -10 and 10, got 1000.0"),
    (f"translate nowhere --max-extra {10**20}", "max_extra must fit into 64 bits"),
    ("translate nowhere --output absent/out", "needs a directory that exists, got absent/out"),
    ("translate nowhere --output .", "cannot write .: it is a directory"),
    ("evaluate nowhere --source file --reference file --output .", "it is a directory"),
    ("evaluate nowhere --corpus copy --output -", "--output must be a file"),
    ("evaluate nowhere --source a --reference b --split test", "--split would have no effect"),
    ("inspect nowhere --corpus copy --sentences -495", "must be at least 1, got -495"),
    ("inspect nowhere --no-bleu --beam-size 4 --alpha 1", "--beam-size and --alpha would have"),
    ("prepare copy --jobs 7 --split test", "--split and --jobs would have no effect: give --e"),
    ("prepare copy --encode --out file", "file is not a directory"),
    ("prepare copy --list", "--list prints all names: leave out copy"),
    ("average /", "/ is not a checkpoint directory"),
    ("translate nowhere --n-best 5", "n_best must be between 1 and beam_size, got 5 and 4"),
    ("translate nowhere --window 0", "--window: must be at least 1, got 0"),
    ("translate nowhere --input absent", "absent: No such file or directory"),
    ("prepare nope", "there is no corpus nope"),
    ("prepare --encode", "--encode needs --out DIR"),
    ("prepare --out x", "--out would have no effect: give --encode"),
    ("prepare copy --encode --out x --train a b", "not both"),
    ("prepare nope --encode --out x", "there is no corpus nope"),
    ("prepare --encode --out x --train a b", "cannot read a: No such"),
    ("prepare copy --encode --out x --sample 0", "--sample: must be at least 1, got 0"),
    ("prepare copy --encode --out x --tokenizer y", "cannot read the tok"),
    ("train --shards x --out y", "x is not a directory of shards"),
    ("train --shards x --corpus copy --out y", "x is not a directory"),
    # The order of words, and words that no option takes
    ("tranlate runs/de", "there is no verb tranlate: did you mean translate?"),
    ("runs/de translate", "the verb comes first, annotated-transformer translate runs/de"),
    ("new t.en t.fr --out new", "cannot use t.fr | train --train t.en t.fr | new --help"),
    ("translate runs/de Hello world", "echo 'Hello world' | annotated-transformer translate r"),
    ("translate runs/de t.en", "give --input t.en"),
    ("evaluate runs/de t.en t.fr", "evaluate runs/de --source FILE --reference FILE"),
    ("train t.en t.fr --out new", "cannot use t.en t.fr | --train SOURCE TARGET"),
    ("train --corpus copy --out new --set N=2 h=2", "cannot use h=2 | --set NAME=VALUE"),
    ("average runs/de --out new --last 5 x --set y", "there is no option --set"),
    ("prepare copy reverse", "cannot use reverse: it takes one corpus; --list prints all"),
    ("translate t.en runs/de", "the directory comes first: translate runs/de"),
    ("help new", "there is no verb help: did you mean --help?"),
    # What a variable that is not set makes, and what would overwrite a file
    ("evaluate runs/de --source '' --reference ''", "source, reference must not be empty"),
    ("train --corpus copy --out ''", "out must not be empty"),
    ("train --corpus copy --out new --init ''", "init must not be empty"),
    ("translate ''", "directory must not be empty"),
    ("prepare --encode copy --out new --tokenizer ''", "tokenizer must not be empty"),
    ("translate runs/de --input t.en --output t.en", "would overwrite the input t.en"),
    ("evaluate runs/de --source t.en --reference t.fr --output t.en", "overwrite the input t.en"),
    ("evaluate runs/de --source t.en --reference t.fr --output t.fr", "overwrite the input t.fr"),
    # Options and settings by other names
    ("train --trian t.en t.fr --out new", "no option --trian: did you mean --train? (see a"),
    ("train --ot new --corpus copy", "no option --ot: did you mean --out? | train --help)"),
    ("evaluate runs/de --valid t.en t.fr", "no option --valid: did you mean --source? | evalua"),
    ("inspect runs/de --src t.en --ref t.fr", "did you mean --source?"),
    ("translate runs/de -i t.en", "no option -i: did you mean --input? | translate --help"),
    ("translate runs/de --num-beams 4", "did you mean --beam-size?"),
    ("export runs/de --output new", "did you mean --out?"),
    ("new t.tsv --out new --epochs 3", "did you mean --steps?"),
    ("train --out new --corpus copy --batch-size 8", "--set max_tokens=VALUE (in tokens)?"),
    ("train --out new --corpus copy --num-heads 8", "did you mean --set h=VALUE?"),
    ("train --out new --corpus copy --set epochs=3", "did you mean train_steps (in steps)?"),
    ("train --out new --corpus copy --set batch_size=3", "did you mean max_tokens"),
    ("train --out new --corpus copy --set dropout=0.1", "dropout: did you mean p_drop?"),
    ("train --out new --corpus copy --set layers=2", "no setting layers: did you mean N?"),
    ("train --out new --corpus copy --set num_heads=2", "did you mean h?"),
    ("train --out new --corpus copy --set N=2,h=4", "got '2,h=4': each setting has a --set"),
    ("translate --model runs/de", "did you mean DIRECTORY, without an option? | translate --help"),
    ("prepare --corpus copy", "did you mean CORPUS, without an option?"),
    ("export runs/de --format onnx --out new", "no option --format: did you mean --to?"),
    # One thing in place of another
    ("train --train t.tsv --out new", "source and target; one file with a tab in each line is"),
    ("evaluate runs/de --source t.en", "--source and --reference go together: a file, and its"),
    ("evaluate runs/de --source . --reference t.fr", "cannot read .: Is a directory; name a fi"),
    ("inspect runs/de", "names no corpus: give --source FILE and --reference FILE, or --corpus"),
    ("inspect runs/de --source t.en --reference file", "got 150 in t.en and 1 in file"),
    ("translate t.en", "t.en is not a checkpoint directory | a directory comes first"),
    ("translate runs", "it has no config.json; runs/de is one"),
    ("translate runs/de/config.json", "config.json; runs/de is one"),
    ("translate hf", "of a model for transformers, annotated-transformer import hf makes one"),
    ("translate shards", "it has shards, for train --shards"),
    ("translate runs/de --input https://x.org/a", "No such file | download it, and name the"),
    ("new https://x.org/t.tsv --out new", "No such file | download it, and name the"),
    ("new semicolon.csv --out new", "line 1 has no tab | ';' seems to separate them | (TSV)"),
    ("new comma.csv --out new", "',' seems to separate them: save the table with tabs (TSV)"),
    ("new t.en --out new", "in a file of their own: train --train SOURCE TARGET"),
    ("new t.tmx --out new", "line 1 has no tab | this looks like XML or JSON"),
    ("new empty --out new", "empty is empty"),
    ("new utf16.tsv --out new", "looks like UTF-16; iconv -f UTF-16 -t UTF-8 converts it"),
    ("new table.xlsx --out new", "a zip archive; unpack it, or save the table with tabs (TSV)"),
    ("new t.tsv --out t.en/new", "cannot write t.en/new/plan.json | t.en is not a directory"),
    ("new t.tsv --out runs", "runs holds something else: name another directory"),
    ("new t.tsv --out new --test t.en", "t.en, line 1 has no tab"),
    ("new t.tsv --out new --test t.tsv", "has a sentence of every other pair: give one"),
    ("new t.tsv --out new --time soon", "--time: must be a whole number, got soon"),
]
"""Arguments, and phrases with " | " between them."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a file of each kind, a checkpoint and what is none."""
    place = tmp_path_factory.mktemp("place")
    small_checkpoint(place / "runs" / "de")
    pairs = [(f"I have {n} cats.", f"J'ai {n} chats.") for n in range(150)]
    contents = {
        "file": "tea\n",
        "empty": "",
        "t.en": "".join(f"{source}\n" for source, _ in pairs),
        "t.fr": "".join(f"{target}\n" for _, target in pairs),
        "t.tmx": "<?xml version='1.0'?>\n<tmx>\n",
        "hf/config.json": '{"model_type": "marian"}',
        "shards/shards.json": "{}",
    }
    for name, mark in (("t.tsv", "\t"), ("semicolon.csv", ";"), ("comma.csv", ",")):
        contents[name] = "".join(f"{x}{mark}{y}\n" for x, y in pairs)
    contents["table.xlsx"] = "PK\x03\x04"
    (place / "utf16.tsv").write_text(contents["t.tsv"], encoding="utf-16")
    for name, content in contents.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(content, encoding="utf-8")
    return place


def contents_of(place):
    return {path: path.is_dir() or path.read_bytes() for path in place.rglob("*")}


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "phrases"), MISTAKES)
def test_a_mistake_is_one_line_and_status_2(capsys, place, monkeypatch, arguments, phrases):
    monkeypatch.chdir(place)
    before = contents_of(place)
    learns = "--vocab-size" in arguments  # and a line says so first
    line = (
        run(capsys, *shlex.split(arguments))[2]
        if learns
        else refused(capsys, *shlex.split(arguments))
    )
    assert [phrase for phrase in phrases.split(" | ") if phrase not in line] == []
    assert contents_of(place) == before
