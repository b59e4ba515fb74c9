"""Table 2 (section 6.1): what training cost, and what other systems reached."""

from __future__ import annotations

from typing import NamedTuple

from annotated_transformer.errors import ConfigError, require

SUSTAINED_FLOPS = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}
"""Single-precision operations per second that the paper assumes of one GPU (footnote 5)."""


def training_cost(hours: float, n_gpus: int, gpu: str = "P100") -> float:
    """Time x GPUs x sustained rate: the floating-point operations of Table 2's last columns.

    It measures how long the machines were in use, not the operations that they performed. Raises
    ConfigError for a GPU whose rate the paper does not give.
    """
    if gpu not in SUSTAINED_FLOPS:
        raise ConfigError(f"gpu must be one of {', '.join(SUSTAINED_FLOPS)}, got {gpu}")
    rule = "hours must not be negative and n_gpus at least 1"
    require(hours >= 0 and n_gpus >= 1, f"{rule}, got {hours} and {n_gpus}")
    return hours * 3600 * n_gpus * SUSTAINED_FLOPS[gpu]


def training_time(operations: float, rate: float, utilisation: float = 1.0) -> float:
    """operations / (rate x utilisation): the seconds that a training takes.

    `rate` is the peak of the hardware in operations per second, all devices together, and
    `utilisation` the share of it that a run reaches: 1 for a measured rate. Raises ConfigError
    unless the rate is positive and the utilisation in (0, 1].
    """
    rule = "operations must not be negative and rate must be positive"
    require(operations >= 0 and rate > 0, f"{rule}, got {operations} and {rate}")
    require(0 < utilisation <= 1, f"utilisation must be above 0 and at most 1, got {utilisation}")
    return operations / (rate * utilisation)


class System(NamedTuple):
    """A row of Table 2 as printed: BLEU on newstest2014, training cost in operations; or blank."""

    name: str
    bleu_en_de: float | None
    bleu_en_fr: float | None
    cost_en_de: float | None
    cost_en_fr: float | None


TABLE_2 = (
    System("ByteNet", 23.75, None, None, None),
    System("Deep-Att + PosUnk", None, 39.2, None, 1.0e20),
    System("GNMT + RL", 24.6, 39.92, 2.3e19, 1.4e20),
    System("ConvS2S", 25.16, 40.46, 9.6e18, 1.5e20),
    System("MoE", 26.03, 40.56, 2.0e19, 1.2e20),
    System("Deep-Att + PosUnk ensemble", None, 40.4, None, 8.0e20),
    System("GNMT + RL ensemble", 26.30, 41.16, 1.8e20, 1.1e21),
    System("ConvS2S ensemble", 26.36, 41.29, 7.7e19, 1.2e21),
    System("Transformer (base)", 27.3, 38.1, 3.3e18, 3.3e18),
    System("Transformer (big)", 28.4, 41.8, 2.3e19, 2.3e19),
)


class ReportedRun(NamedTuple):
    """How long and on what a system of Table 2 was trained for a language pair, says `source`."""

    system: str
    pair: str
    days: float
    n_gpus: int
    gpu: str
    n_models: int
    source: str


RUNS = (
    ReportedRun("GNMT + RL", "en_fr", 6.0, 96, "K80", 1, "wu2016google"),
    ReportedRun("GNMT + RL", "en_de", 1.0, 96, "K80", 1, "shazeer2017outrageously"),
    ReportedRun("ConvS2S", "en_de", 18.5, 1, "M40", 1, "gehring2017convolutional"),
    ReportedRun("ConvS2S", "en_fr", 37.0, 8, "M40", 1, "gehring2017convolutional"),
    ReportedRun("MoE", "en_de", 1.0, 64, "K40", 1, "shazeer2017outrageously"),
    ReportedRun("MoE", "en_fr", 6.0, 64, "K40", 1, "shazeer2017outrageously"),
    ReportedRun("GNMT + RL ensemble", "en_fr", 6.0, 96, "K80", 8, "wu2016google"),
    ReportedRun("GNMT + RL ensemble", "en_de", 1.0, 96, "K80", 8, "shazeer2017outrageously"),
    ReportedRun("ConvS2S ensemble", "en_de", 18.5, 1, "M40", 8, "gehring2017convolutional"),
    ReportedRun("ConvS2S ensemble", "en_fr", 37.0, 8, "M40", 8, "gehring2017convolutional"),
    ReportedRun("Transformer (base)", "en_de", 0.5, 8, "P100", 1, "vaswani2017attention"),
    ReportedRun("Transformer (base)", "en_fr", 0.5, 8, "P100", 1, "vaswani2017attention"),
    ReportedRun("Transformer (big)", "en_de", 3.5, 8, "P100", 1, "vaswani2017attention"),
    ReportedRun("Transformer (big)", "en_fr", 3.5, 8, "P100", 1, "vaswani2017attention"),
)
"""The training times behind Table 2's costs, but for Deep-Att's, which we do not know."""
