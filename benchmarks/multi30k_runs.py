"""What `multi30k.py` runs: how text is prepared, the published figures, and the settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Prepare = Callable[[str], str]


def moses(language: str) -> Prepare:
    """Lower case, Moses' plain punctuation and tokens: what the corpus's own `tok` files hold."""
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    return lambda text: tokenizer.tokenize(
        normalizer.normalize(text.lower()), escape=False, return_str=True
    )


def spacy(language: str) -> Prepare:
    """Lower case, and the tokens of spaCy's rules (which need no model)."""
    import spacy as library

    tokenizer = library.blank(language)
    return lambda text: " ".join(
        token.text for token in tokenizer(text.lower()) if not token.is_space
    )


def cased(language: str) -> Prepare:
    """The text as it is."""
    return str


def lower(language: str) -> Prepare:
    """Lower case."""
    return str.lower


class Stage(NamedTuple):
    """Trained from the average of the stage before it, with seeds 1 to `seeds`: since these runs
    begin with the same weights, theirs can be averaged as well. With `taught`, the training split
    is learned twice, as it is and as that average translates it: sequence-level distillation
    (Kim and Rush 2016, arXiv:1606.07947), here from a teacher of the same size."""

    settings: dict[str, Any]
    seeds: int = 1
    taught: bool = False


class Run(NamedTuple):
    """`form` prepares what is learned, translated and compared; `tokens` divides it into words,
    which `tokenize`, one of sacreBLEU's ways, may divide further."""

    about: str
    published: dict[str, Any]
    languages: tuple[str, str]
    form: Callable[[str], Prepare]
    tokens: Callable[[str], Prepare]
    stages: tuple[Stage, ...]
    vocab_size: int
    average: int = 10
    tokenize: str = "none"
    alphas: tuple[float, ...] = (0.6, 1.0, 1.4)


TINY = {
    "source": "Wu et al. 2021, Good for Misconceived Reasons, arXiv:2105.14462, "
    "Transformer-Tiny, text only",
    "BLEU": 41.02,
    "log": "https://github.com/LividWo/Revisit-MMT, README-baseline.md",
    "reference_tokens": 12103,  # the log's; so that the same text is compared
}
TUTORIAL = {
    "source": "Trevett, pytorch-seq2seq, Attention Is All You Need: German to English, "
    "spaCy tokens in lower case",
    "BLEU": 36.52,
    "perplexity": 5.316,
    "parameters": 9038341,
}
SIZES = dict(N=4, d_model=128, d_ff=256, h=4, p_drop=0.3)
STEPS = dict(
    max_tokens=2048,
    lr_factor=1.5,
    validate_every=2000,
    checkpoint_every=200,
    keep_checkpoints=20,
)
SCALED = SIZES | STEPS | dict(initialization="scaled", warmup_steps=1000)
# Two batches a step, so that two processes can share them.
SHARED = SCALED | dict(max_tokens=1024, accumulate=2)
# The later stages join every pair once more to another, with less dropout and a lower rate.
JOINED = dict(concatenate=1, p_drop=0.2, lr_factor=0.3, train_steps=4000)
# What else was tried is in LOG.md, "Multi30k, Transformer-Tiny, English to German".
LONG = (
    Stage(SHARED | dict(train_steps=14000)),
    Stage(SHARED | JOINED, seeds=3),
    Stage(SHARED | JOINED, seeds=3, taught=True),
)
# As the published run: 8,192 tokens a step, a peak rate of 5e-3, a checkpoint about every epoch.
BATCHES = dict(max_tokens=4096, accumulate=2, checkpoint_every=50, precision="fp32")
PEAK = dict(initialization="glorot", lr_factor=2.53, warmup_steps=2000, train_steps=8000)
SHORT = (Stage(SCALED | dict(train_steps=4000)),)

RUNS = {
    "tiny": Run(
        "English to German with the sizes of Transformer-Tiny, lower case and Moses tokens.",
        TINY,
        ("en", "de"),
        moses,
        lower,
        LONG,
        10000,
    ),
    "tiny_published": Run(
        "The same with the published run's batches, rate and steps, in one stage.",
        TINY,
        ("en", "de"),
        moses,
        lower,
        (Stage(SIZES | STEPS | BATCHES | PEAK),),
        10000,
    ),
    "tiny_cased": Run(
        "The same sizes on the raw captions, in fewer steps, for cased sacreBLEU.",
        {},
        ("en", "de"),
        cased,
        cased,
        (Stage(SHARED | dict(train_steps=6000)),),
        10000,
        tokenize="13a",
    ),
    "tutorial": Run(
        "German to English with fewer parameters than the much copied tutorial, in lower case.",
        TUTORIAL,
        ("de", "en"),
        lower,
        spacy,
        SHORT,
        8000,
    ),
}
