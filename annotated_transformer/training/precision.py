"""Half precision in training: the type of the products, and a scaler for float16.

Weights, Adam's moments, sums and losses are float32 in any case; `autocast` rounds for the
products.
"""

from __future__ import annotations

import torch
from torch import Tensor

from annotated_transformer.errors import require

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def product_type(precision: str, device: torch.device) -> torch.dtype:
    """The type that `TrainConfig.precision` means on `device`.

    "auto" is bfloat16 on a GPU that has it in hardware (from compute capability 8.0, the A100),
    float16 on older ones, and float32 elsewhere. Raises ConfigError for bf16 on a GPU that would
    emulate it, with float32 arithmetic, so that nothing is won.
    """
    if device.type != "cuda":
        return torch.float32 if precision == "auto" else TYPES[precision]
    capability = torch.cuda.get_device_capability(device)
    has_bf16 = capability >= (8, 0)
    require(
        has_bf16 or precision != "bf16",
        "precision bf16 needs a GPU of compute capability 8.0 or later, this one has "
        f"{capability[0]}.{capability[1]} and would emulate it: take fp16 (or auto)",
    )
    return TYPES[("bf16" if has_bf16 else "fp16") if precision == "auto" else precision]


def gradient_scaler(dtype: torch.dtype, device: torch.device) -> torch.amp.GradScaler:
    """The scaler of a run. It leaves out each step that has a gradient which is no finite number.

    In float16 the loss is multiplied by a scale, so that small gradients stay above the smallest
    number. Where one overflows all the same, the step is skipped and the scale halved; after 2,000
    steps without overflow it doubles (Micikevicius et al. 2018). In other types the scale is 1, and
    a step is skipped all the same: a single NaN would be in every weight after it.
    """
    if dtype == torch.float16:
        return torch.amp.GradScaler(device.type)
    return UnscaledGuard(device.type, init_scale=1.0)


class UnscaledGuard(torch.amp.GradScaler):
    """A scaler whose scale is 1, whatever happens."""

    def update(self, new_scale: float | Tensor | None = None) -> None:
        super().update(1.0 if new_scale is None else new_scale)
