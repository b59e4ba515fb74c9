"""Every size and switch in one place, named by the letters of Table 3 (section 6.2).

Nothing here imports torch, so that a configuration can be read, checked and stored anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict, cast

from annotated_transformer.errors import require
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

    N layers a stack, model width d_model, feed-forward width d_ff, h heads of key width d_k and
    value width d_v (d_model / h where not given), residual dropout p_drop. The fields after
    `p_drop` are departures from the paper, all off by default, except `initialization`, which the
    paper leaves open ("glorot" is its authors' code's; the presets tiny and small have "scaled",
    which learns sooner: `Transformer.initialize`), the ids, and `max_len`, the number of positions
    that `positions="learned"` has (the sinusoids have no end).

    Four departures are of later years: `rms_norm` (Zhang and Sennrich 2019), `positions="rotary"`
    (Su et al. 2021), `activation="swiglu"` (Shazeer 2020), whose W_1 has 2 d_ff columns, and
    `qk_norm`, which normalises each head's queries and keys (Henry et al. 2020).

    Four are what models of other programs have (`interop`). `output_bias` is added to the logits,
    as in Marian; `zero_start` embeds bos as zeros, as Marian and the authors' code do, which shifts
    the target right by a row of them. `first_position` is the sinusoid of the first token: 2 in
    fairseq, 0 in the authors' code and in the text. `final_norm` is one more LayerNorm after each
    post-norm stack, as in `torch.nn.Transformer`; the authors' code and pre-norm have it anyway.

    >>> ModelConfig.tiny(vocab_size=8000, norm="pre").d_model
    128
    """

    vocab_size: int
    N: int = 6
    d_model: int = 512
    d_ff: int = 2048
    h: int = 8
    d_k: int | None = None
    d_v: int | None = None
    p_drop: float = 0.1
    norm: Norm = "post"
    positions: Positions = "sinusoidal"
    activation: Activation = "relu"
    bias: bool = False
    scaled_attention: bool = True
    rms_norm: bool = False
    qk_norm: bool = False
    final_norm: bool = False
    output_bias: bool = False
    zero_start: bool = False
    first_position: int = 0
    attention_dropout: float = 0.0
    ffn_dropout: float = 0.0
    initialization: Initialization = "glorot"
    max_len: int = 1024
    pad_id: int = PAD_ID
    bos_id: int = BOS_ID
    eos_id: int = EOS_ID

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

    One step is one Adam update: `accumulate` batches of at most `max_tokens` padded tokens on each
    side. Steps are counted from 1. `precision` is the type of the products, weights stay float32:
    "auto" means bf16 on a GPU that has it in hardware and fp16 on older ones, bf16 also on a CPU
    that has it (AVX512_BF16) from d_model 256 on, and fp32 elsewhere. A run keeps, on any machine,
    what it meant where it began. In fp16 the loss is scaled, and a step whose gradients overflow is
    skipped: it counts as a step, for the rate too, but not for Adam. Some options for small corpora
    are not the paper's. With `concatenate=1` an epoch has, besides every pair, as many that are two
    random ones joined (`batching.JoinedPairs`). `bpe_dropout` is the chance that a merge is left
    out when the training text is encoded, anew in every epoch; its draws differ from one process to
    the next, so that such a run does not resume bit for bit. With `augment`, pairs are changed,
    anew in every epoch, into such as people type (`augmentation`). With `both_ways` every pair is
    learned in the other direction as well, behind the token <2source> (Johnson et al. 2017).
    `warm_up=False` starts at the peak of the rate and stays there for the first `warmup_steps`, to
    show what they do. `window` is how many pairs are planned at a time (`batching`). `optimizer`
    and `schedule` offer what came later: "adamw" (Loshchilov and Hutter 2019), "muon" for the
    stacks' matrices (Jordan 2024), and a rate that warms up to the same peak, is stable, and falls
    linearly to 0 in the last `decay_share` of the steps ("wsd", Hu et al. 2024).

    >>> TrainConfig(train_steps=2000, warmup_steps=400).beta2
    0.98
    """

    train_steps: int = 100_000
    max_tokens: int = 25_000
    accumulate: int = 1
    warmup_steps: int = 4000
    warm_up: bool = True
    lr_factor: float = 1.0
    optimizer: Optimizer = "adam"
    schedule: Schedule = "noam"
    decay_share: float = 0.2
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.98
    adam_eps: float = 1e-9
    clip_norm: float = 0.0
    eps_ls: float = 0.1
    concatenate: float = 0.0
    bpe_dropout: float = 0.0
    augment: bool = False
    both_ways: bool = False
    seed: int = 1
    max_length: int = 256
    window: int = 2**20
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    compile: bool = False
    log_every: int = 50
    validate_every: int = 1000
    checkpoint_every: int = 1000
    keep_checkpoints: int = 5

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
        for name in ("clip_norm", "concatenate"):
            value = getattr(self, name)
            require(value >= 0.0, f"{name} must not be negative (0 is off), got {value}")
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
    """How to search (section 6.1): beam 4, alpha 0.6, at most source length + 50 tokens.

    With `back` a model that learned both ways translates from the language of its targets into that
    of its sources. Bounds keep a slip of the keyboard from taking the machine's memory, or a score
    from being no number.

    >>> DecodeConfig(beam_size=8).replace(alpha=1.0)
    DecodeConfig(beam_size=8, alpha=1.0, n_best=1, max_extra=50, back=False)
    """

    beam_size: int = 4
    alpha: float = 0.6
    n_best: int = 1
    max_extra: int = 50
    back: bool = False

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
