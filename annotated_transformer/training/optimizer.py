"""Optimizer (section 5.3): Adam, its rate that warms up and decays, and half precision.

AdamW and Muon came after the paper. Half precision is for matrix products alone (`autocast`):
weights, moments, sums and losses are float32 in any case.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, _foreach_add_, _foreach_mul_, nn

from annotated_transformer.config import TrainConfig
from annotated_transformer.errors import require


def noam_learning_rate(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (equation 3).

    The paper's factor is 1. The rate of the first update is that of step 1. It rises linearly for
    `warmup_steps` updates, peaks there, and falls with the inverse square root. Raises ConfigError
    for a step or `warmup_steps` below 1.

    >>> round(noam_learning_rate(step=4000, d_model=512, warmup_steps=4000), 7)
    0.0006988
    """
    require(step >= 1, f"steps are counted from 1, got {step}")
    require(warmup_steps >= 1, f"warmup_steps must be at least 1, got {warmup_steps}")
    require(d_model >= 1, f"d_model must be at least 1, got {d_model}")
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def stable_learning_rate(
    step: int, train_steps: int, peak: float, warmup_steps: int, decay_share: float
) -> float:
    """Warm-up-stable-decay: linear up to `peak`, constant, linear down to 0 (Hu et al. 2024).

    The decay takes the last `decay_share` of the steps. The rate of step `train_steps` + 1 is 0.
    """
    # At least one step of decay, so that a `decay_share` of 0 does not divide by 0.
    fraction = (train_steps + 1 - step) / max(1.0, decay_share * train_steps)
    return peak * min(1.0, step / warmup_steps, max(0.0, fraction))


def rate_of_step(step: int, config: TrainConfig, d_model: int) -> float:
    """The learning rate of a step (equation 3, or `config.schedule`).

    Without a warm-up it is at its peak from the start.
    """
    n = config.warmup_steps
    if config.schedule == "noam":
        counted = step if config.warm_up else max(step, n)
        return noam_learning_rate(counted, d_model, n, _factor(config, d_model))
    rise = n if config.warm_up else 1
    peak = peak_rate(config, d_model)
    return stable_learning_rate(step, config.train_steps, peak, rise, config.decay_share)


def peak_rate(config: TrainConfig, d_model: int) -> float:
    """The highest learning rate of either schedule, that of equation 3 at step `warmup_steps`."""
    n = config.warmup_steps
    return noam_learning_rate(n, d_model, n, _factor(config, d_model))


def _factor(config: TrainConfig, d_model: int) -> float:
    """The factor of equation 3 that `lr_factor` or `peak_rate` sets."""
    n = config.warmup_steps
    if config.peak_rate is None:
        return config.lr_factor
    return config.peak_rate / noam_learning_rate(n, d_model, n)


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer that `config` names: Adam, as the paper has it, AdamW or Muon."""
    if config.optimizer == "muon":
        return Muon(model, config)
    adam = make_adam(model, config)
    if config.optimizer == "adamw":  # to PyTorch too, AdamW is Adam with these two settings
        changes = {"weight_decay": config.weight_decay, "decoupled_weight_decay": True}
        adam.param_groups[0].update(changes)
    return adam


def require_all_weights(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raise ConfigError for a weight that no step of the optimizer would change."""
    known = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    for name, weight in model.named_parameters():
        require(
            id(weight) in known or not weight.requires_grad,
            f"the optimizer does not have {name}: put modules in the place of others before "
            "TrainingRun(model=...) is made, and give an optimizer all weights",
        )


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


BF16_WIDTH = 256
"""From this d_model on, a CPU that has products in bfloat16 trains in them: ratios in LOG.md."""


def resolved_precision(precision: str, device: torch.device, d_model: int) -> str:
    """`TrainConfig.precision`, where "auto" is what `device` is best at for a model of this width.

    That is bf16 on a GPU that has it in hardware (from compute capability 8.0, the A100) and fp16
    on older ones; bf16 on a CPU whose products it makes faster, from `BF16_WIDTH` on; else fp32.
    """
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"
    pays = device.type == "cpu" and d_model >= BF16_WIDTH and has_bf16_products()
    return "bf16" if pays else "fp32"


def has_bf16_products() -> bool:
    """Whether this CPU multiplies numbers of bfloat16: AVX512_BF16, and AMX where it is there."""
    ask = getattr(torch.cpu, "get_capabilities", None)  # not in every PyTorch
    return ask is not None and bool(ask().get("avx512_bf16"))


def require_hardware(precision: str, device: torch.device) -> None:
    """Raise ConfigError for bf16 on a GPU that would emulate it in float32, which is no faster."""
    if device.type == "cuda" and precision == "bf16":
        capability = torch.cuda.get_device_capability(device)
        require(
            capability >= (8, 0),
            "precision bf16 needs a GPU of compute capability 8.0 or later, this one has "
            f"{capability[0]}.{capability[1]} and would emulate it: take fp16 (or auto)",
        )


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


def is_hidden_matrix(name: str, shape: Sequence[int]) -> bool:
    """Whether a parameter is a matrix of a stack, which Muon updates; Adam updates all others."""
    return len(shape) == 2 and name.startswith(("encoder.", "decoder."))


class Muon(torch.optim.AdamW):
    """Muon for the stacks' matrices, AdamW for the embedding, norms and biases (Jordan 2024).

        M <- mu M + G;  W <- (1 - rate * weight_decay) W - rate * 0.2 sqrt(max(n, m)) O

    O is G + mu M orthogonalised: its singular vectors with singular values near 1. The factor 0.2
    sqrt(max(n, m)) gives the update the size of Adam's (Liu et al. 2025, arXiv:2502.16982), so that
    one rate serves both.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, momentum: float = 0.95) -> None:
        betas, decay = (config.beta1, config.beta2), config.weight_decay
        super().__init__(model.parameters(), 0.0, betas, config.adam_eps, decay, fused=True)
        # Else a gradient scaler leaves it to the fused kernel to skip a step, which Muon would not.
        self._step_supports_amp_scaling = False
        self.momentum = momentum
        self.by_shape: dict[torch.Size, list[Tensor]] = {}
        for name, parameter in model.named_parameters():
            if is_hidden_matrix(name, parameter.shape):
                self.by_shape.setdefault(parameter.shape, []).append(parameter)
                step = torch.zeros((), device=parameter.device)
                self.state[parameter] = {"step": step, "exp_avg": torch.zeros_like(parameter)}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        for shape, of_shape in self.by_shape.items():
            # A frozen matrix has no gradient and stays as it is, without weight decay too.
            matrices = [matrix for matrix in of_shape if matrix.grad is not None]
            if not matrices:
                continue
            gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
            states = [self.state[matrix] for matrix in matrices]
            moving = [state["exp_avg"] for state in states]
            _foreach_add_([state["step"] for state in states], 1)
            _foreach_mul_(moving, self.momentum)
            _foreach_add_(moving, gradients)
            update = orthogonalised(torch.stack(gradients) + self.momentum * torch.stack(moving))
            _foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            size = 0.2 * max(shape) ** 0.5
            _foreach_add_(matrices, update.unbind(), alpha=-group["lr"] * size)
            for matrix in matrices:
                matrix.grad = None  # AdamW steps over what has no gradient
        super().step()


def orthogonalised(
    matrix: Float[Tensor, "*n O I"], n_iterations: int = 5
) -> Float[Tensor, "*n O I"]:
    """U V^T of the matrix's singular value decomposition U S V^T, roughly, from products alone.

    Each Newton-Schulz iteration X <- a X + (b X X^T + c (X X^T)^2) X keeps the singular vectors and
    moves each singular value towards 1; with these a, b and c it lands near 0.7 to 1.2.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = matrix.size(-2) > matrix.size(-1)
    x = matrix.mT if is_tall else matrix
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(n_iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x
