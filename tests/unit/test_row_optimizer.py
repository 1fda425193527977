"""W_L in bfloat16: as if every row were updated at every step in float32, but for rounding that is right on average."""

import pytest
import torch
from torch import Tensor

from elias_ray.label_classifiers import LabelClassifiers
from elias_ray.table_optimizer import BETA_2, EPSILON, RowOptimizer

ROWS, WIDTH, STEPS, DECAY = 6, 4096, 40, 0.1
RATES = [0.002 * (step + 1) / STEPS for step in range(STEPS)]  # less than half of what bfloat16 tells apart at 1


def gradients() -> list[tuple[Tensor, Tensor]]:
    """Of each step, some rows and their gradient; of the last row, never any."""
    g = torch.Generator().manual_seed(0)
    steps = []
    for step in range(STEPS):
        rows = torch.tensor([row for row in range(ROWS - 1) if row == 0 or step % (3 * row) == row])
        steps.append((rows, (torch.rand(len(rows), 1, generator=g) - 0.3).expand(-1, WIDTH).contiguous()))
    return steps


def all_rows_at_every_step(values: Tensor) -> Tensor:
    values, moment = values.double(), torch.zeros(ROWS, 1, dtype=torch.float64)
    for step, (rows, grad) in enumerate(gradients(), start=1):
        whole = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
        whole[rows] = grad.double()
        moment = BETA_2 * moment + (1 - BETA_2) * whole.square().mean(dim=1, keepdim=True)
        corrected = (moment / (1 - BETA_2**step)).sqrt() + EPSILON
        values = values * (1 - RATES[step - 1] * DECAY) - RATES[step - 1] * whole / corrected
    return values


def test_equals_all_rows_at_every_step() -> None:
    """All columns are alike, so that their mean shows what each is on average."""
    start = torch.tensor([1.0, -1.5, 0.7, 2.0, -0.3, 1.25])[:, None].expand(-1, WIDTH).bfloat16()
    expected = all_rows_at_every_step(start)
    values = start.clone()
    optimizer = RowOptimizer("W_L", values, DECAY, RATES, seed=3)
    for step, (rows, grad) in enumerate(gradients()):
        optimizer.begin(step)
        optimizer.update(rows, grad)
    optimizer.settle()
    found, moved = values.double().mean(dim=1), (expected - start.double()).abs().mean(dim=1)
    assert moved.min() > 0.001
    assert (found - expected.mean(dim=1)).abs().max() < 5e-4
    assert (values.double() - expected).abs().max() > 5e-3  # single ones are rounded


@pytest.mark.parametrize("width", [64, 5])  # rows that are made up of long words, and not
def test_rounding_leaves_what_is_exact(width: int) -> None:
    values = torch.randn(5, width).bfloat16()
    before = values.clone()
    optimizer = RowOptimizer("W_L", values, 0.0, [0.1], seed=0)
    optimizer.begin(0)
    optimizer.update(torch.arange(5), torch.zeros(5, width))
    assert torch.equal(values, before)


@pytest.mark.parametrize("learns_phi", [False, True])
def test_gradients_are_those_of_float32(learns_phi: bool) -> None:
    g = torch.Generator().manual_seed(2)
    weight, bias = torch.randn(50, 8, generator=g).bfloat16(), torch.randn(50, generator=g)
    embedding, labels = torch.randn(7, 8, generator=g), torch.randint(50, (7, 20), generator=g)
    wanted = torch.randn(7, 20, generator=g)
    coarse, fine = LabelClassifiers(weight, bias, 50), LabelClassifiers(weight.float(), bias, 50)
    received = torch.zeros(50, 8)

    def receive(rows: Tensor, grad: Tensor) -> None:
        received[rows] += grad

    coarse.receive = receive
    grads = []
    for table in (coarse, fine):
        phi = embedding.clone().requires_grad_(learns_phi)
        logits = table.logits(phi, labels)
        logits.backward(wanted)
        grads.append((logits.detach(), phi.grad, table.bias_grad))
    assert coarse.weight_grad.numel() == 0
    torch.testing.assert_close(received, fine.weight_grad)
    assert (grads[0][1] is not None) == learns_phi
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected)
