"""Optimizer (section 5.3): Adam, its rate that warms up and decays, and half precision.

Half precision rounds for the matrix products alone (`autocast`): weights, Adam's moments, sums and
losses are float32 in any case.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from annotated_transformer.config import TrainConfig
from annotated_transformer.errors import require


def noam_learning_rate(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (equation 3).

    The paper's factor is 1. The rate of the first update is that of step 1. It rises linearly for
    `warmup_steps` updates, peaks there, and falls with the inverse square root. Raises ConfigError
    for a step below 1.

    >>> round(noam_learning_rate(step=4000, d_model=512, warmup_steps=4000), 7)
    0.0006988
    """
    require(step >= 1, f"steps are counted from 1, got {step}")
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def make_adam(model: nn.Module, config: TrainConfig) -> torch.optim.Adam:
    """Adam with beta1 0.9, beta2 0.98, eps 1e-9 (section 5.3), fused.

    The rate is set before every step.

    >>> make_adam(Transformer(ModelConfig.tiny(vocab_size=100)), TrainConfig()).defaults["betas"]
    (0.9, 0.98)
    """
    return torch.optim.Adam(
        model.parameters(),
        lr=0.0,
        betas=(config.beta1, config.beta2),
        eps=config.adam_eps,
        fused=True,
    )


TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def product_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The dtype of matrix products that `TrainConfig.precision` means on `device`.

    "auto" is bfloat16 on a GPU that has it in hardware (from compute capability 8.0, the A100),
    float16 on older ones, and float32 elsewhere. Raises ConfigError for bf16 on a GPU that would
    emulate it in float32, which is no faster.
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
    """The gradient scaler of a run. It skips each step whose gradients are not all finite.

    In float16 the loss is multiplied by a scale, so that small gradients do not round to zero.
    Where one overflows, the step is skipped and the scale halved; after 2,000 steps without
    overflow it doubles (Micikevicius et al. 2018). In other dtypes the scale is 1, and such a step
    is skipped as well: a single NaN would reach every weight.
    """
    if dtype == torch.float16:
        return torch.amp.GradScaler(device.type)
    return UnscaledGuard(device.type, init_scale=1.0)


class UnscaledGuard(torch.amp.GradScaler):
    """A gradient scaler whose scale stays 1."""

    def update(self, new_scale: float | Tensor | None = None) -> None:
        super().update(1.0 if new_scale is None else new_scale)
