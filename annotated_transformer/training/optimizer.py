"""Optimizer (section 5.3): Adam and the learning rate that warms up and decays."""

from __future__ import annotations

import torch
from torch import nn

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
