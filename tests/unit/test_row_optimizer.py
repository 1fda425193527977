"""W_L in bfloat16: as if every row had a gradient in float32, but for rounding that is right on average."""

import pytest
import torch
from torch import Tensor

from elias_ray import label_classifiers
from elias_ray.label_classifiers import LabelClassifiers
from elias_ray.metrics import PAD
from elias_ray.table_optimizer import BETA_2, EPSILON, RowOptimizer

ROWS, WIDTH, UPDATES, DECAY = 6, 4096, 40, 0.1
RATES = [0.002 * (update + 1) / UPDATES for update in range(UPDATES)]  # under half of what bfloat16 tells apart at 1


def gradients() -> list[tuple[Tensor, Tensor]]:
    """Of each update, some rows and their gradient; of the last row, never any."""
    g = torch.Generator().manual_seed(0)
    updates = []
    for update in range(UPDATES):
        rows = torch.tensor([row for row in range(ROWS - 1) if row == 0 or update % (3 * row) == row])
        updates.append((rows, (torch.rand(len(rows), 1, generator=g) - 0.3).expand(-1, WIDTH).contiguous()))
    return updates


def all_rows_at_every_update(values: Tensor) -> Tensor:
    values, moment = values.double(), torch.zeros(ROWS, 1, dtype=torch.float64)
    for update, (rows, grad) in enumerate(gradients(), start=1):
        whole = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
        whole[rows] = grad.double()
        moment = BETA_2 * moment + (1 - BETA_2) * whole.square().mean(dim=1, keepdim=True)
        corrected = (moment / (1 - BETA_2**update)).sqrt() + EPSILON
        values = values * (1 - RATES[update - 1] * DECAY) - RATES[update - 1] * whole / corrected
    return values


def test_equals_all_rows_at_every_update() -> None:
    """All columns are alike, so that their mean shows what each is on average."""
    start = torch.tensor([1.0, -1.5, 0.7, 2.0, -0.3, 1.25])[:, None].expand(-1, WIDTH).bfloat16()
    expected = all_rows_at_every_update(start)
    values, coming = start.clone(), iter(gradients())
    optimizer = RowOptimizer("W_L", values, lambda: [next(coming)], DECAY, RATES, update_every=2, seed=3)
    for _ in range(2 * UPDATES - 1):
        optimizer.step()
    optimizer.finish()  # the last, which a step is lacking
    assert next(coming, None) is None
    found, moved = values.double().mean(dim=1), (expected - start.double()).abs().mean(dim=1)
    assert moved.min() > 0.001
    assert (found - expected.mean(dim=1)).abs().max() < 5e-4
    assert (values.double() - expected).abs().max() > 5e-3  # single ones are rounded


@pytest.mark.parametrize("width", [64, 5])  # rows that are made up of long words, and not
def test_rounding_leaves_what_is_exact(width: int) -> None:
    values = torch.randn(5, width).bfloat16()
    values[1] = 0  # as of a label without a training point
    before = values.clone()
    nothing = [(torch.arange(5), torch.zeros(5, width))]
    optimizer = RowOptimizer("W_L", values, lambda: nothing, 0.0, [0.1], update_every=1, seed=0)
    optimizer.step()
    assert torch.equal(values, before)
    assert (optimizer.touched == 1).all()


@pytest.mark.parametrize("pairs_sorted", [2**17, 100, 7])  # 420 in all, so at once, and in more parts than rows
@pytest.mark.parametrize("learns_phi", [False, True])
def test_gradients_are_those_of_float32(learns_phi: bool, pairs_sorted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean of those of some steps; taken once."""
    monkeypatch.setitem(label_classifiers.PAIRS_SORTED, "cpu", pairs_sorted)
    g = torch.Generator().manual_seed(2)
    weight, bias = torch.randn(50, 8, generator=g).bfloat16(), torch.randn(50, generator=g)
    coarse, fine = LabelClassifiers(weight, bias, 50), LabelClassifiers(weight.float(), bias, 50)
    embeddings, labels = torch.randn(3, 7, 8, generator=g), torch.randint(50, (3, 7, 20), generator=g)
    wanted = torch.randn(3, 7, 20, generator=g)
    steps: list[list[tuple[Tensor | None, ...]]] = []
    for table in (coarse, fine):
        steps.append([])
        for step in range(3):
            phi = embeddings[step].clone().requires_grad_(learns_phi)
            logits = table.logits(phi, labels[step])
            logits.backward(wanted[step])
            assert (phi.grad is not None) == learns_phi
            steps[-1].append((logits.detach(), phi.grad, table.bias_grad.clone()))
    assert coarse.weight_grad.numel() == 0
    rows, gradients = (torch.cat(column) for column in zip(*coarse.take_gradients(), strict=True))
    assert len(rows) == len(rows.unique()) == len(labels.unique())
    torch.testing.assert_close(torch.zeros(50, 8).index_copy_(0, rows, gradients), fine.weight_grad / 3)
    assert list(coarse.take_gradients()) == []
    for found, expected in zip(*steps, strict=True):
        for each, other in zip(found, expected, strict=True):
            torch.testing.assert_close(each, other)


def test_without_a_label_there_is_no_gradient() -> None:
    """As of a worker none of whose rows were asked for in some steps."""
    table = LabelClassifiers(torch.randn(5, 8).bfloat16(), torch.zeros(5), 5)
    logits = table.logits(torch.randn(2, 8).requires_grad_(), torch.empty(2, 0, dtype=torch.long))
    logits.sum().backward()
    assert len(table.waiting) == 1
    assert list(table.take_gradients()) == []


@pytest.mark.parametrize("longest", [0, 2])
def test_padding_behind_all_points_is_not_asked_for(longest: int) -> None:
    table = LabelClassifiers(torch.randn(5, 8).bfloat16(), torch.zeros(5), 5)
    labels = torch.tensor([[3, PAD], [1, 3]])[:, :longest]
    phi, padded = torch.randn(2, 8), torch.nn.functional.pad(labels, (0, 4 - longest), value=PAD)
    logits = table.logits(phi.requires_grad_(), padded)
    logits.sum().backward()
    expected = phi @ table.weight.float().T
    for point, label in ((0, 3), (1, 1), (1, 3)) if longest else ():
        place = int((labels[point] == label).nonzero())
        torch.testing.assert_close(logits[point, place], expected[point, label])
    assert logits.shape == (2, 4)
    assert (logits[:, longest:] == 0).all()
    assert len(table.waiting[0].rows_Q) == 2 * longest  # of a shorter point its own padding is
