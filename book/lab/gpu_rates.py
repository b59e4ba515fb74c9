"""The rates of GPUs: the vendors' figures, and the share of them that base's training reached.

Measured on one H200, in bfloat16, with batches of 25,000 tokens a side and without packing
(`results/gpu_compiled.json`, written by `benchmarks/gpu.py`). Pages that give hours or prices for
other GPUs or for big assume the same share there.
"""

from __future__ import annotations

from functools import cache

from lab.experiments.result_file import RESULTS, read_result

BF16 = {"A100 80GB": 312e12, "H100 SXM": 989e12, "H200 SXM": 989e12, "B200": 2250e12}
"""Operations a second of dense bfloat16 products, by the vendor's data sheet."""
MEASURED = "H200 SXM"


@cache
def measured_share(compiled: bool) -> float:
    """The share of the vendor's rate that a training step of base reached, eager or compiled."""
    (step,) = (
        record
        for record in read_result(RESULTS / "gpu_compiled.json")["records"]
        if (record["measure"], record.get("model")) == ("training step", "base")
        and (record["precision"], record["packed"]) == ("bf16", False)
        and record["compiled"] == compiled
    )
    return step["tflops"] * 1e12 / BF16[MEASURED]


def hours(operations: float, gpu: str, compiled: bool = False) -> float:
    """How long so many operations of training take on one GPU at the measured share."""
    return operations / (BF16[gpu] * measured_share(compiled)) / 3600
