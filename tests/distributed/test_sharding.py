"""Sharded over 1, 2 and 3 processes, the model is the same model: losses and parameters after ten steps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from elias_ray.adjacency import Adjacency
from elias_ray.label_classifiers import LabelClassifiers
from elias_ray.model import Search, loss, search
from elias_ray.shortlist import PAD
from elias_ray.table_optimizer import Table, TableOptimizer
from elias_ray.workers import Workers

pytestmark = pytest.mark.timeout(180)

POINTS, D, C, R = 12, 6, 11, 9  # 11 clusters and 37 labels divide over neither 2 nor 3 workers
STEPS, UPDATE_EVERY = 10, 3


@dataclass(frozen=True)
class Case:
    num_labels: int = 37
    beta: float | None = 4.0
    steps: int = STEPS


def global_problem(case: Case) -> dict[str, Tensor]:
    """The same on every worker; rows of A of different lengths, points of 0 to 4 positives."""
    g = torch.Generator().manual_seed(1)
    labels_CR = torch.stack([torch.randperm(case.num_labels, generator=g)[:R] for _ in range(C)]).int()
    labels_CR[torch.rand(C, R, generator=g) < 0.2] = PAD
    positives = torch.stack([torch.randperm(case.num_labels, generator=g)[:4] for _ in range(case.steps * POINTS)])
    positives[torch.rand(positives.shape, generator=g) < 0.4] = PAD
    return {
        "inputs": torch.randn(case.steps * POINTS, D, generator=g),
        "positives": positives,
        "labels": labels_CR,
        "weights": torch.rand(C, R, generator=g),
        "encoder": torch.randn(D, D, generator=g),
        "w_c": torch.randn(C, D, generator=g),
        "w_l": torch.randn(case.num_labels, D, generator=g),
        "b_l": torch.randn(case.num_labels, generator=g),
    }


def train(workers: Workers, case: Case) -> dict[str, Any]:
    """Ten steps on this worker's points; what it ends with, tables put together again."""
    q = global_problem(case)
    encoder, cluster_classifiers = nn.Linear(D, D, bias=False), nn.Linear(D, C)
    with torch.no_grad():
        encoder.weight.copy_(q["encoder"])
        cluster_classifiers.weight.copy_(q["w_c"])
        cluster_classifiers.bias.zero_()
    rows, labels = workers.block(C), workers.block(case.num_labels)
    rows_slice, labels_slice = slice(rows.start, rows.stop), slice(labels.start, labels.stop)
    adjacency = Adjacency(q["labels"][rows_slice], q["weights"][rows_slice].clone(), case.beta, C, workers)
    classifiers = LabelClassifiers(
        q["w_l"][labels_slice].clone(), q["b_l"][labels_slice].clone(), case.num_labels, workers
    )
    tables = [
        Table("W_L", classifiers.weight, classifiers.weight_grad, 0.01),
        Table("b_L", classifiers.bias, classifiers.bias_grad, 0.0),
    ]
    if adjacency.weights_grad is not None:
        tables.append(Table("A", adjacency.weights, adjacency.weights_grad, 0.0))
    table_optimizer = TableOptimizer(tables, UPDATE_EVERY)
    dense = [*encoder.parameters(), *cluster_classifiers.parameters()]
    optimizer = torch.optim.AdamW(dense, lr=0.01)
    settings = Search(alpha=3.0, beam=3, shortlist=7, extra=2)
    losses, shortlists, bytes_sent = [], [], []
    for step in range(case.steps):
        mine = workers.block(POINTS)
        points = slice(step * POINTS + mine.start, step * POINTS + mine.stop)
        positives = q["positives"][points]
        parents = torch.cat([adjacency.parents(case.num_labels), torch.tensor([PAD])])[positives]
        workers.bytes_sent = 0  # parents are refreshed once an epoch, not each step
        embedding = encoder(q["inputs"][points])
        found = search(embedding, cluster_classifiers, adjacency, classifiers, settings, positives, parents)
        value = loss(found, positives, 0.05, workers)
        optimizer.zero_grad()
        value.backward()
        bytes_sent.append(workers.bytes_sent)
        for parameter in dense:  # as DeepSpeed does: the mean over workers
            assert parameter.grad is not None
            parameter.grad = workers.gather(parameter.grad[None]).mean(dim=0)
        optimizer.step()
        table_optimizer.step(learning_rate=0.02)
        losses.append(float(workers.gather(value.detach().view(1)).mean()))
        shortlists.append(workers.gather(found.labels_BK))
    table_optimizer.flush(learning_rate=0.02)
    return {
        "losses": torch.tensor(losses),
        "shortlists": torch.stack(shortlists),
        "encoder": encoder.weight.detach(),
        "W_C": cluster_classifiers.weight.detach(),
        "b_C": cluster_classifiers.bias.detach(),
        "W_L": whole(workers, classifiers.weight, case.num_labels),
        "b_L": whole(workers, classifiers.bias, case.num_labels),
        "A": whole(workers, adjacency.weights, C),
        "bytes_sent": sum(bytes_sent) / case.steps,
    }


def whole(workers: Workers, block: Tensor, num_rows: int) -> Tensor:
    """The blocks of all workers in order; padded for the journey, since they differ in length."""
    longest = max(len(workers.block(num_rows, rank)) for rank in range(workers.size))
    padded = torch.cat([block, block.new_zeros((longest - len(block), *block.shape[1:]))])
    parts = workers.gather(padded).view(workers.size, longest, *block.shape[1:])
    return torch.cat([part[: len(workers.block(num_rows, rank))] for rank, part in enumerate(parts)])


def one_process(rank: int, size: int, folder: str, case: Case) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    torch.save(train(Workers(rank, size), case), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def run(size: int, folder: Path, case: Case) -> list[dict[str, Any]]:
    folder.mkdir()
    spawn(one_process, (size, str(folder), case), nprocs=size)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("beta", [4.0, None], ids=["stage 2", "stage 1"])
def test_ten_steps_equal_one_process(size: int, beta: float | None, tmp_path: Path) -> None:
    case = Case(beta=beta)
    expected = train(Workers(0, 1), case)
    assert expected["losses"][-1] < expected["losses"][0]
    assert not torch.equal(expected["W_L"], global_problem(case)["w_l"])
    assert torch.equal(expected["A"], global_problem(case)["weights"]) == (beta is None)
    for found in run(size, tmp_path / "run", case):
        assert torch.equal(found["shortlists"], expected["shortlists"])
        for name in ("losses", "encoder", "W_C", "b_C", "W_L", "b_L", "A"):
            torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-5, msg=f"{name} differs")
        assert (found["bytes_sent"] > 0) == (size > 1)


def test_bytes_sent_do_not_grow_with_the_labels(tmp_path: Path) -> None:
    """Over ten times as many labels, but for the chance of which shortlisted label is owned by whom."""
    few, many = (run(2, tmp_path / str(n), Case(num_labels=n, steps=4)) for n in (400, 4000))
    for small, large in zip(few, many, strict=True):
        assert small["bytes_sent"] > 1000
        assert large["bytes_sent"] == pytest.approx(small["bytes_sent"], rel=0.1)
