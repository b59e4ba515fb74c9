"""BLEU as the paper's authors computed it: tokenized, with compounds split; beside sacreBLEU's.

    pip install sacremoses
    python benchmarks/compound_split.py newstest2014.de --corpus wmt14-en-de
    python benchmarks/compound_split.py translations.de --reference reference.de --tokens 13a

The first file has a translation a line, as `evaluate --output` writes it. The script of the
authors' code, utils/get_ende_bleu.sh, tokenizes both sides as Moses does, cuts every word at its
hyphens and takes BLEU of these words without smoothing. sacremoses is Moses' tokenizer in Python;
`--tokens 13a` takes sacreBLEU's instead, which needs nothing more and comes close. It prints one
JSON object.
"""

from __future__ import annotations

if not __package__:  # started by its path: go on as a module
    import started  # noqa: F401

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU

from annotated_transformer.data import corpus
from annotated_transformer.data.parallel_text import read_lines
from annotated_transformer.decoding.evaluation import Score, bleu
from annotated_transformer.errors import require
from tools.arguments import parser_of, run_main

Tokenize = Callable[[str], str]


def moses(language: str) -> Tokenize:
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(lang=language)
    return lambda text: str(tokenizer.tokenize(text, escape=False, return_str=True))


def of_13a(language: str) -> Tokenize:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    tokenizer = Tokenizer13a()
    return lambda text: str(tokenizer(text))


TOKENS = {"moses": moses, "13a": of_13a}


def split_compounds(text: str) -> str:
    """a-b becomes three words, a ##AT##-##AT## b."""
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text)


def compound_split_bleu(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: Tokenize
) -> Score:
    """Corpus BLEU of the tokenized text with its compounds split, as multi-bleu.perl counts it."""
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    sides = [
        [split_compounds(tokenize(text)) for text in side] for side in (hypotheses, references)
    ]
    score = metric.corpus_score(sides[0], [sides[1]]).score
    return Score(score, str(metric.get_signature()))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("translations", type=Path)
    parser.add_argument("--corpus", help="whose split is the reference")
    parser.add_argument("--split", default="test")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--reference", type=Path, help="a file instead")
    parser.add_argument("--tokens", choices=TOKENS, default="moses")
    parser.add_argument("--language", default="de", help="of the translations (default de)")
    args = parser.parse_args(arguments)
    require(bool(args.corpus) != bool(args.reference), "give --corpus or --reference")
    references = (
        read_lines(args.reference)
        if args.reference
        else [target for _, target in corpus.load(args.corpus, args.split, args.data_dir)]
    )
    hypotheses = read_lines(args.translations)
    plain = bleu(hypotheses, references)
    split = compound_split_bleu(hypotheses, references, TOKENS[args.tokens](args.language))
    named = {"tokens": args.tokens, **split._asdict()}
    print(
        json.dumps(
            {"sentences": len(references), "sacreBLEU": plain._asdict(), "compound-split": named}
        )
    )


if __name__ == "__main__":
    run_main(main)
