import inspect
import math
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer.errors import ConfigError
from annotated_transformer.fast.loss import linear_cross_entropy, smoothed_cross_entropy
from annotated_transformer.training.loss import label_smoothed_cross_entropy

B, T, V = 2, 6, 9
TARGET = torch.tensor([[3, 5, 8, 4, 2, 0], [1, 2, 0, 0, 0, 0]])


def random_logits(dtype=torch.float32):
    logits = 3 * torch.randn(B, T, V, generator=torch.Generator().manual_seed(1))
    return logits.to(dtype).requires_grad_()


BOTH = pytest.mark.parametrize("loss_of", [label_smoothed_cross_entropy, smoothed_cross_entropy])


@pytest.mark.parametrize("pad_id", [0, 4, -100])
@pytest.mark.parametrize("eps_ls", [0.0, 0.1, 0.3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
@BOTH
def test_value_and_gradient_equal_pytorchs_cross_entropy(loss_of, dtype, tolerance, eps_ls, pad_id):
    ours, theirs = random_logits(dtype), random_logits(dtype)
    target = TARGET.masked_fill(TARGET == 0, pad_id)
    loss, nll = loss_of(ours, target, eps_ls, pad_id)
    arguments = {"target": target.flatten(), "ignore_index": pad_id, "reduction": "sum"}
    expected = F.cross_entropy(theirs.flatten(0, 1), label_smoothing=eps_ls, **arguments)
    assert_close(loss, expected, rtol=tolerance, atol=tolerance)
    assert_close(nll, F.cross_entropy(theirs.detach().flatten(0, 1), **arguments))
    loss.backward()
    expected.backward()
    assert_close(ours.grad, theirs.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(T, B), (B * T,), (1, T), (B, T, 1)])
@BOTH
def test_targets_of_other_positions_are_refused_by_their_shapes(loss_of, shape):
    targets = torch.ones(shape, dtype=torch.int64)
    with pytest.raises(ConfigError) as refused:
        inspect.unwrap(loss_of)(random_logits(), targets)
    assert f"logits of shape {(B, T, V)}" in str(refused.value)
    assert str(refused.value).endswith(f"got {shape}")


def test_the_loss_in_blocks_refuses_targets_of_other_positions():
    x, weight = torch.randn(B, T, 4), torch.randn(V, 4)
    with pytest.raises(ConfigError, match=r"rows of shape \(2, 6, 4\) .* got \(6, 2\)"):
        inspect.unwrap(linear_cross_entropy)(x, weight, TARGET.T)


@BOTH
def test_cross_entropy_against_the_smoothed_distribution_by_hand(loss_of):
    logits = random_logits(torch.float64)
    loss = 0.0
    for b, t in (TARGET != 0).nonzero().tolist():
        q = [0.1 / V + (0.9 if v == TARGET[b, t] else 0.0) for v in range(V)]
        assert sum(q) == pytest.approx(1)
        loss -= sum(q[v] * logits[b, t].softmax(-1)[v].log().item() for v in range(V))
    assert loss_of(logits, TARGET)[0].item() == pytest.approx(loss, rel=1e-12)


@BOTH
def test_the_gradient_passes_gradcheck(loss_of):
    logits = random_logits(torch.float64)
    assert torch.autograd.gradcheck(lambda x: loss_of(x, TARGET)[0], logits)


def test_the_taught_loss_has_a_second_derivative():
    loss = lambda x: label_smoothed_cross_entropy(x, TARGET)[0]  # noqa: E731
    assert torch.autograd.gradgradcheck(loss, random_logits(torch.float64))


@BOTH
def test_padding_adds_nothing_and_has_no_gradient(loss_of):
    logits = random_logits()
    loss, nll = loss_of(logits, TARGET)
    (7 * loss).backward()
    assert torch.equal((logits.grad != 0).any(-1), TARGET != 0)
    elsewhere = logits.detach().masked_fill((TARGET == 0)[..., None], 99.0)
    assert loss_of(elsewhere, TARGET) == (loss, nll)
    all_padding = loss_of(logits, torch.zeros_like(TARGET))
    assert [part.item() for part in all_padding] == [0.0, 0.0]


@BOTH
def test_bfloat16_logits_are_summed_in_float32(loss_of):
    logits = random_logits(torch.bfloat16)
    loss, nll = loss_of(logits, TARGET)
    assert loss.dtype == nll.dtype == torch.float32
    assert loss_of(logits.detach().float(), TARGET) == (loss, nll)
    loss.backward()
    assert logits.grad.dtype == torch.bfloat16


def test_smoothing_is_best_served_by_the_smoothed_distribution():
    """With smoothing a certain prediction costs more than a prediction of 1 - eps;
    without it certainty is free."""
    target = torch.tensor([3])
    certain = 100 * F.one_hot(target, V).double()
    smoothed = (0.9 * F.one_hot(target, V).double() + 0.1 / V).log().requires_grad_()
    loss, _ = label_smoothed_cross_entropy(smoothed, target)
    assert loss < label_smoothed_cross_entropy(certain, target)[0]
    unsmoothed, _ = label_smoothed_cross_entropy(certain, target, 0.0)
    assert unsmoothed.item() == pytest.approx(0, abs=1e-12)
    (gradient,) = torch.autograd.grad(loss, smoothed)
    assert_close(gradient, torch.zeros(1, V, dtype=torch.float64), atol=1e-15, rtol=0)


@BOTH
def test_only_the_loss_has_a_gradient(loss_of):
    _, nll = loss_of(random_logits(), TARGET)
    assert not nll.requires_grad


@pytest.mark.parametrize("eps_ls", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_the_loss_in_blocks_equals_pytorchs_over_all_logits(dtype, tolerance, eps_ls):
    """45 rows, of which the real ones go in blocks of three; the padding falls anywhere."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(5, 9, 4, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(V, 4, generator=generator, dtype=dtype).requires_grad_()
    target = torch.randint(0, V, (5, 9), generator=generator)
    loss, nll = linear_cross_entropy(x, weight, target, eps_ls, pad_id=0, block_rows=3)
    logits = (x @ weight.T).flatten(0, 1)
    arguments = {"ignore_index": 0, "reduction": "sum"}
    expected = F.cross_entropy(logits, target.flatten(), label_smoothing=eps_ls, **arguments)
    exact = F.cross_entropy(logits, target.flatten(), **arguments).detach()
    assert_close((loss, nll), (expected, exact), rtol=tolerance, atol=0)
    ours, theirs = (torch.autograd.grad(3 * total, (x, weight)) for total in (loss, expected))
    assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    assert not ours[0][target == 0].any()


def test_the_loss_in_blocks_makes_gradients_only_where_they_are_wanted():
    """Else there is one product of (rows, D, V), that of the logits."""
    x, weight = torch.randn(5, 4), torch.nn.Parameter(torch.randn(V, 4))
    operations = {}
    for learns in (True, False):
        with torch.set_grad_enabled(learns), FlopCounterMode(display=False) as counter:
            loss, _ = linear_cross_entropy(x, weight, torch.tensor([1, 2, 3, 4, 5]))
        operations[learns] = counter.get_total_flops()
        assert loss.requires_grad == learns
    assert operations[False] == 2 * 5 * 4 * V < operations[True]


@pytest.mark.parametrize(
    "distance", [20.0, 102.0, 200.0], ids=lambda distance: f"exp(-{distance:.0f})"
)
def test_the_loss_in_blocks_is_right_where_probabilities_are_too_small_for_float32(distance):
    weight = torch.tensor([[0.0], [0.0], [-1.0], [-2.0]])
    loss, nll = linear_cross_entropy(torch.tensor([[distance]]), weight, torch.tensor([2]))
    assert nll.item() == pytest.approx(distance + math.log(2), rel=1e-6)
    by_hand = math.log(2) + 0.9 * distance + 0.1 * 3 * distance / 4
    assert loss.item() == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_loss_in_blocks_adds_up_in_float32(dtype):
    """The sum of 30,000 logits of -4 is beyond float16."""
    torch.manual_seed(0)
    x, weight = torch.full((3, 2), 2.0, dtype=dtype), -torch.ones(30_000, 2, dtype=dtype)
    target = torch.tensor([1, 2, 3])
    loss, nll = linear_cross_entropy(x, weight, target)
    assert loss.item() == pytest.approx(3 * math.log(30_000), rel=1e-3)
    assert nll.item() == pytest.approx(loss.item())


KEPT = """
import torch
from torch.nn import functional as F
from annotated_transformer.fast.loss import smoothed_cross_entropy

def loss(x, weight, target):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return smoothed_cross_entropy(F.linear(x, weight), target)[0]

x, weight = torch.randn(30, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
for function in (loss, torch.compile(loss, backend="aot_eager_decomp_partition")):
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        function(x, weight, torch.ones(30, dtype=torch.long)).backward()
    print(*(tensor.dtype for tensor in saved if tensor.shape == (30, 50)))
"""


@pytest.mark.slow
def test_a_compiled_step_keeps_the_logits_once_and_in_16_bits():
    """Not in float32 too: the backward pass casts them again.
    A process of its own has no type checks to compile."""
    found = subprocess.run([sys.executable, "-c", KEPT], check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["torch.float32", "torch.bfloat16"]


def test_products_in_bfloat16_round_the_loss_and_its_gradients_a_little():
    """Autocast would leave one of the three in float32, and round the weights for every block."""
    x, weight = (torch.randn(n, 16, requires_grad=True) for n in (40, 50))
    target = torch.randint(1, 50, (40,))
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss, _ = linear_cross_entropy(x, weight, target, block_rows=16)
        found.append([loss, *torch.autograd.grad(loss, (x, weight))])
    assert {each.dtype for each in found[1]} == {torch.float32}
    for exact, rounded in zip(*found, strict=True):
        assert 0 < (exact - rounded).norm() / exact.norm() < 0.01
