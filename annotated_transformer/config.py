"""Every size and switch in one place, named by the letters of Table 3 (section 6.2).

Nothing here imports torch, so that a configuration can be read, checked and stored anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, TypedDict, cast

from annotated_transformer.errors import ConfigError, require
from annotated_transformer.settings import Settings

PAD_ID, BOS_ID, EOS_ID, UNK_ID = 0, 1, 2, 3
"""The special ids: padding, beginning and end of sentence, unknown. All take them from here."""


class SpecialIds(NamedTuple):
    """The ids that batching puts round a sentence and that a search looks for."""

    pad_id: int = PAD_ID
    bos_id: int = BOS_ID
    eos_id: int = EOS_ID


SPECIAL_IDS = SpecialIds()
Norm = Literal["post", "pre"]
Positions = Literal["sinusoidal", "concatenated", "learned", "rotary", "none"]
Activation = Literal["relu", "gelu", "silu", "swiglu"]
Initialization = Literal["scaled", "glorot"]
Optimizer = Literal["adam", "adamw", "muon"]
Schedule = Literal["noam", "wsd"]
SIZES = {
    "vocab_size", "N", "d_model", "d_ff", "h", "d_k", "d_v", "p_drop", "initialization", "max_len",
    "pad_id", "bos_id", "eos_id",
}  # fmt: skip
"""Settings of `ModelConfig` in which the paper's own models differ, or that it leaves open."""
MAX_SIZE = 2**28  # of any side of a matrix, so that no product of two overflows
MAX_FIRST_POSITION = 1024  # the table of sinusoids has all before it
MAX_BEAM = 1024
MAX_ALPHA = 10
MAX_EXTRA = 100_000


def _check_size(name: str, size: int) -> None:
    require(size >= 1, f"{name} must be at least 1, got {size}")
    require(size <= MAX_SIZE, f"{name} must be at most {MAX_SIZE:,}, got {size}")


def _check_share(name: str, share: float) -> None:
    require(0.0 <= share < 1.0, f"{name} must be in [0, 1), got {share}")


@dataclass(frozen=True)
class ModelConfig(Settings):
    """The model's shape. The defaults are the paper's base model; only `vocab_size` has none.

    The settings from `norm` to `ffn_dropout` are departures from the paper, off by default
    (`beyond`).

    >>> ModelConfig.tiny(vocab_size=8000, norm="pre").d_model
    128
    """

    vocab_size: int
    """V, the tokens of the shared vocabulary."""
    N: int = 6
    """Layers in each stack."""
    d_model: int = 512
    """Width of the model: of embeddings and of what every layer gives."""
    d_ff: int = 2048
    """Width of the feed-forward network's inner layer."""
    h: int = 8
    """Heads of each attention."""
    d_k: int | None = None
    """Width of a head's queries and keys, by default d_model / h."""
    d_v: int | None = None
    """Width of a head's values, by default d_model / h."""
    p_drop: float = 0.1
    """Residual dropout: of every sub-layer's output and of the sums of embedding and position."""
    norm: Norm = "post"
    """LayerNorm after the residual sum, as in the paper, or before each sub-layer ("pre")."""
    positions: Positions = "sinusoidal"
    """How a token's place is told: printed sinusoids, those of the authors' code ("concatenated"),
    trained vectors ("learned"), queries and keys that are turned ("rotary", Su et al. 2021), or
    "none"."""
    activation: Activation = "relu"
    """Of the feed-forward network. W_1 of "swiglu" (Shazeer 2020) has 2 d_ff columns."""
    bias: bool = False
    """Whether the projections of attention have biases."""
    scaled_attention: bool = True
    """Whether scores are divided by sqrt(d_k)."""
    rms_norm: bool = False
    """RMSNorm (Zhang and Sennrich 2019) instead of LayerNorm."""
    qk_norm: bool = False
    """Whether each head's queries and keys are normalised (Henry et al. 2020)."""
    final_norm: bool = False
    """One more LayerNorm after each post-norm stack, as in `torch.nn.Transformer`. Pre-norm has it
    anyway."""
    output_bias: bool = False
    """A bias that is added to the logits, as in Marian."""
    zero_start: bool = False
    """Whether bos is embedded as zeros, as in Marian and in the authors' code, which shifts the
    target right by a row of them."""
    first_position: int = 0
    """The sinusoid of the first token: 2 in fairseq, 0 in the paper and in its authors' code."""
    attention_dropout: float = 0.0
    """Dropout of the attention weights."""
    ffn_dropout: float = 0.0
    """Dropout inside the feed-forward network."""
    initialization: Initialization = "glorot"
    """Initial values, which the paper leaves open. "glorot" is its authors'; "scaled", of the
    presets tiny and small, learns sooner (`Transformer.initialize`)."""
    max_len: int = 1024
    """How many positions positions="learned" has; sinusoids have no end."""
    pad_id: int = PAD_ID
    """The id that fills up the rows of a batch."""
    bos_id: int = BOS_ID
    """The id with which a decoder's input begins."""
    eos_id: int = EOS_ID
    """The id that ends a sentence."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("vocab_size", "N", "d_model", "d_ff", "h", "max_len"):
            _check_size(name, getattr(self, name))
        is_divisible = self.d_model % self.h == 0
        for name in ("d_k", "d_v"):
            if getattr(self, name) is None:
                numbers = f"{self.d_model} and {self.h}"
                require(is_divisible, f"d_model must be a multiple of h, got {numbers}")
                object.__setattr__(self, name, self.d_model // self.h)
            _check_size(name, getattr(self, name))
            _check_size(f"h {name}", self.h * getattr(self, name))
        for name in ("p_drop", "attention_dropout", "ffn_dropout"):
            _check_share(name, getattr(self, name))
        require(
            self.positions not in ("sinusoidal", "concatenated") or self.d_model % 2 == 0,
            f"sinusoidal positions need an even d_model, got {self.d_model}",
        )
        require(
            self.positions != "rotary" or cast(int, self.d_k) % 2 == 0,
            f"rotary positions turn pairs of channels: d_k must be even, got {self.d_k}",
        )
        sinusoids = self.positions in ("sinusoidal", "concatenated")
        require(
            0 <= self.first_position <= (MAX_FIRST_POSITION if sinusoids else 0),
            f"first_position is a sinusoid's, 0 to {MAX_FIRST_POSITION:,}, got "
            f"{self.first_position} with positions={self.positions}",
        )
        ids = self.special_ids
        require(
            len(set(ids)) == 3 and all(0 <= i < self.vocab_size for i in ids),
            "pad_id, bos_id and eos_id must be three ids below vocab_size "
            f"{self.vocab_size}, got {tuple(ids)}",
        )

    @property
    def special_ids(self) -> SpecialIds:
        return SpecialIds(self.pad_id, self.bos_id, self.eos_id)

    def beyond(self, supported: Iterable[str]) -> list[str]:
        """The settings that depart from the paper's model and are not `supported`.

        Whoever computes the model in another way, such as a fast decoder or another program's form,
        says what it knows besides the paper: "bias" for any value of it, "positions=learned" for
        one. So it refuses an option that is added later as well. Sizes, ids and initial values are
        no departures.

        >>> ModelConfig.tiny(100, norm="pre", positions="rotary").beyond({"norm"})
        ['positions']
        """
        known = {*SIZES, *supported}
        return [
            field.name
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
            and known.isdisjoint((field.name, f"{field.name}={value}"))
        ]

    def require_known(self, supported: Iterable[str], to: str) -> None:
        """Raise ConfigError for the first setting that is `beyond` what is supported."""
        for name in self.beyond(supported):
            paper = next(field.default for field in fields(self) if field.name == name)
            advice = f"train with {name}={paper}"
            raise ConfigError(f"{to} knows no {name}={getattr(self, name)}: {advice}")

    def replace(self, **changes: Any) -> ModelConfig:
        """A copy with some settings changed.

        Where d_k and d_v were d_model / h, they follow a new d_model or h.
        """
        if changes.keys() & {"d_model", "h"}:
            for name in ("d_k", "d_v"):
                if getattr(self, name) * self.h == self.d_model:
                    changes.setdefault(name, None)
        return super().replace(**changes)

    @classmethod
    def tiny(cls, vocab_size: int, **changes: Any) -> ModelConfig:
        """For a laptop and a few minutes: N 3, d_model 128."""
        sizes = {"N": 3, "d_model": 128, "d_ff": 512, "h": 4, "initialization": "scaled"}
        return cls(**{"vocab_size": vocab_size, **sizes, **changes})

    @classmethod
    def small(cls, vocab_size: int, **changes: Any) -> ModelConfig:
        """For a small corpus and an hour, or a GPU and minutes: N 4, d_model 256, more dropout."""
        sizes = {"N": 4, "d_model": 256, "d_ff": 1024, "h": 4, "p_drop": 0.3}
        return cls(**{"vocab_size": vocab_size, **sizes, "initialization": "scaled", **changes})

    @classmethod
    def base(cls, vocab_size: int, **changes: Any) -> ModelConfig:
        """Table 3, row base."""
        return cls(**{"vocab_size": vocab_size, **changes})

    @classmethod
    def big(cls, vocab_size: int, **changes: Any) -> ModelConfig:
        """Table 3, row big, with its dropout for English-German (English-French: p_drop=0.1)."""
        sizes = {"d_model": 1024, "d_ff": 4096, "h": 16, "p_drop": 0.3}
        return cls(**{"vocab_size": vocab_size, **sizes, **changes})


PRESETS = ("tiny", "small", "base", "big")


def count_parameters(config: ModelConfig) -> int:
    """The number of weights of `Transformer(config)`, from its sizes alone.

    With D = d_model: V D for the embedding, which three places share; h D (2 d_k + 2 d_v) for an
    attention; 2 D d_ff + d_ff + D for a feed-forward network; 2 D for a LayerNorm. An encoder layer
    has 1, 1 and 2 of the last three, a decoder layer 2, 1 and 3. The options add max_len D (learned
    positions), attention's biases, V (output_bias), a final norm for each stack (pre-norm or
    final_norm), a gain for queries and one for keys (qk_norm), and another D d_ff + d_ff (SwiGLU);
    RMSNorm has D.
    """
    D, h = config.d_model, config.h
    d_k, d_v = config.d_k or D // h, config.d_v or D // h
    attention = h * D * (2 * d_k + 2 * d_v)
    if config.bias:
        attention += h * (2 * d_k + d_v) + D
    if config.qk_norm:
        attention += 2 * d_k
    feed_forward = 2 * D * config.d_ff + config.d_ff + D
    if config.activation == "swiglu":
        feed_forward += D * config.d_ff + config.d_ff
    layer_norm = D if config.rms_norm else 2 * D
    encoder_layer = attention + feed_forward + 2 * layer_norm
    decoder_layer = 2 * attention + feed_forward + 3 * layer_norm
    embedding = config.vocab_size * (D + config.output_bias)
    positions = config.max_len * D if config.positions == "learned" else 0
    final_norms = 2 * layer_norm * (config.norm == "pre" or config.final_norm)
    return embedding + positions + config.N * (encoder_layer + decoder_layer) + final_norms


@dataclass(frozen=True)
class TrainConfig(Settings):
    """How to train. The defaults are section 5's, save the number of steps.

    One step is one update of the weights, from `accumulate` batches. Steps are counted from 1.

    >>> TrainConfig(train_steps=2000, warmup_steps=400).beta2
    0.98
    """

    train_steps: int = 100_000
    """Where the run ends."""
    max_tokens: int = 25_000
    """The most padded tokens of a batch on each side."""
    accumulate: int = 1
    """Batches of a step."""
    warmup_steps: int = 4000
    """Steps in which the rate rises."""
    warm_up: bool = True
    """If False, the rate starts at its peak and stays there for `warmup_steps`, to show what they
    do."""
    lr_factor: float = 1.0
    """Factor of the rate of equation 3, or of the peak of "wsd"."""
    peak_rate: float | None = None
    """The highest rate, where the warm-up ends, instead of `lr_factor`. About 0.4 / d_model is
    right for the sizes here and in the paper."""
    optimizer: Optimizer = "adam"
    """The paper's Adam, "adamw" (Loshchilov and Hutter 2019), or "muon" for the stacks' matrices
    (Jordan 2024)."""
    schedule: Schedule = "noam"
    """Equation 3, or "wsd" (Hu et al. 2024): a rate that warms up to the same peak, is stable, and
    falls linearly to 0."""
    decay_share: float = 0.2
    """The last part of the steps, in which the rate of "wsd" falls."""
    weight_decay: float = 0.0
    """Of AdamW and Muon; Adam has none."""
    beta1: float = 0.9
    """Decay of Adam's mean of gradients."""
    beta2: float = 0.98
    """Decay of Adam's mean of squared gradients."""
    adam_eps: float = 1e-9
    """What Adam adds to the root that it divides by."""
    clip_norm: float = 0.0
    """The largest norm of all gradients together; 0 is off."""
    eps_ls: float = 0.1
    """Label smoothing."""
    concatenate: float = 0.0
    """The share of pairs that an epoch has besides every pair, each of two random ones joined
    (`batching.JoinedPairs`). Not the paper's; for small corpora."""
    bpe_dropout: float = 0.0
    """The chance that a merge is left out when the training text is encoded, anew in every epoch.
    Its draws differ from one process to the next, so such a run does not resume bit for bit."""
    augment: bool = False
    """Whether pairs are changed, anew in every epoch, into such as people type (`augmentation`)."""
    both_ways: bool = False
    """Whether every pair is learned in the other direction as well, behind the token <2source>
    (Johnson et al. 2017)."""
    seed: int = 1
    """Of the initial weights, the order of the batches, and dropout."""
    max_length: int = 256
    """The most tokens of a training sentence, eos counted; pairs with a longer one are left out."""
    window: int = 2**20
    """How many pairs are planned at a time (`batching`)."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """The type of the products; weights stay float32. "auto" means bf16 on a GPU that has it in
    hardware and fp16 on older ones, bf16 also on a CPU that has it (AVX512_BF16) from d_model 256
    on, and fp32 elsewhere. A run keeps, on any machine, what it meant where it began. In fp16 the
    loss is scaled, and a step whose gradients overflow is skipped: it counts as a step, for the
    rate too, but not for Adam."""
    compile: bool = False
    """Whether `torch.compile` compiles the step."""
    log_every: int = 50
    """Steps between lines of the log."""
    validate_every: int = 1000
    """Steps between validations."""
    checkpoint_every: int = 1000
    """Steps between checkpoints to average."""
    keep_checkpoints: int = 5
    """How many checkpoints are kept, besides the one that was best in validation."""
    patience: int = 0
    """The run ends after so many validations in a row without a better valid_nll; 0 is off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (
            "train_steps",
            "max_tokens",
            "accumulate",
            "warmup_steps",
            "max_length",
            "window",
            "log_every",
            "validate_every",
            "checkpoint_every",
            "keep_checkpoints",
        ):
            value = getattr(self, name)
            require(value >= 1, f"{name} must be at least 1, got {value}")
        for name in ("beta1", "beta2", "eps_ls", "bpe_dropout", "weight_decay"):
            _check_share(name, getattr(self, name))
        for name in ("lr_factor", "adam_eps"):
            value = getattr(self, name)
            require(value > 0.0, f"{name} must be positive, got {value}")
        for name in ("clip_norm", "concatenate", "patience"):
            value = getattr(self, name)
            require(value >= 0.0, f"{name} must not be negative (0 is off), got {value}")
        require(
            self.peak_rate is None or (self.peak_rate > 0.0 and self.lr_factor == 1.0),
            f"peak_rate must be positive and takes the place of lr_factor, got {self.peak_rate} "
            f"and lr_factor={self.lr_factor}",
        )
        require(
            self.max_length <= self.max_tokens,
            f"max_length must not exceed max_tokens, got {self.max_length} and {self.max_tokens}",
        )
        require(
            0.0 <= self.decay_share <= 1.0,
            f"decay_share must be in [0, 1], got {self.decay_share}",
        )
        require(
            self.weight_decay == 0.0 or self.optimizer != "adam",
            f"Adam has no weight_decay, got {self.weight_decay}: take optimizer=adamw",
        )


class DecodeSettings(TypedDict, total=False):
    """The settings of `DecodeConfig` as keywords, each of which may be left out."""

    beam_size: int
    alpha: float
    n_best: int
    max_extra: int
    back: bool


@dataclass(frozen=True)
class DecodeConfig(Settings):
    """How to search (section 6.1). The defaults are the paper's.

    Bounds keep a slip of the keyboard from taking the machine's memory, or a score from being no
    number.

    >>> DecodeConfig(beam_size=8).replace(alpha=1.0)
    DecodeConfig(beam_size=8, alpha=1.0, n_best=1, max_extra=50, back=False)
    """

    beam_size: int = 4
    """Hypotheses that are kept at each step; 1 is greedy search."""
    alpha: float = 0.6
    """Exponent of the length penalty."""
    n_best: int = 1
    """How many translations of a sentence are wanted."""
    max_extra: int = 50
    """The most tokens of an output beyond the source's length."""
    back: bool = False
    """Whether a model that learned both ways translates from the language of its targets into that
    of its sources."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low, high in (
            ("beam_size", 1, MAX_BEAM),
            ("alpha", -MAX_ALPHA, MAX_ALPHA),
            ("max_extra", 0, MAX_EXTRA),
        ):
            value = getattr(self, name)
            is_between = low <= value <= high
            require(is_between, f"{name} must be between {low} and {high:,}, got {value}")
        require(
            1 <= self.n_best <= self.beam_size,
            f"n_best must be between 1 and beam_size, got {self.n_best} and {self.beam_size}",
        )
