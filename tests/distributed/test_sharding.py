"""Sharded over 1, 2 and 3 processes under DeepSpeed, the model is the same model, in losses and parameters.

What it is compared with knows neither workers nor DeepSpeed: one process, plain AdamW, the whole batch.
"""

import os
from dataclasses import dataclass, replace
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from elias_ray.adjacency import Adjacency
from elias_ray.cluster_classifiers import ClusterClassifiers
from elias_ray.engine import Engine, Optimisation
from elias_ray.errors import UserError
from elias_ray.label_classifiers import LabelClassifiers
from elias_ray.memory import Shapes, sent
from elias_ray.metrics import PAD
from elias_ray.model import Found, Search, loss, search
from elias_ray.shortlist import NO_LABEL
from elias_ray.table_optimizer import RowOptimizer, Table, TableOptimizer
from elias_ray.workers import Workers, alone

pytestmark = pytest.mark.timeout(180)

POINTS, D, C, R = 12, 6, 11, 9  # 11 clusters and 37 labels divide over neither 2 nor 3 workers
SEARCH = Search(alpha=3.0, beam=3, shortlist=7, extra=2)
STEPS, UPDATE_EVERY, WARMUP_STEPS = 10, 3, 2
LR_ENCODER, LR_CLASSIFIERS, DECAY, CLIP = 0.01, 0.02, 0.1, 0.05  # clips most steps
COMPARED = ("losses", "shortlists", "encoder", "W_C", "b_C", "W_L", "b_L", "A")


@dataclass(frozen=True)
class Case:
    num_labels: int = 37
    num_clusters: int = C
    beta: float | None = 4.0
    steps: int = STEPS
    zero_stage: int = 0
    spoiled_step: int | None = None  # whose inputs are infinite for the last point
    restored_behind: int | None = None  # steps after which everything is made anew from what a checkpoint keeps
    bfloat16: bool = False  # W_L
    random_labels: int = 0  # drawn at each step, to train W_L against all labels too


class Model:
    """One worker's part of the same random model, and of the same points of each step."""

    def __init__(self, case: Case, workers: Workers) -> None:
        self.case, self.workers = case, workers
        g, clusters = torch.Generator().manual_seed(1), case.num_clusters
        labels_CR = torch.stack([torch.randperm(case.num_labels, generator=g)[:R] for _ in range(clusters)]).int()
        labels_CR[torch.rand(clusters, R, generator=g) < 0.2] = NO_LABEL  # rows of different lengths
        labels_CR = labels_CR.sort(dim=1).values
        labels_CR[labels_CR == NO_LABEL] = PAD
        self.positives = torch.stack(
            [torch.randperm(case.num_labels, generator=g)[:4] for _ in range(case.steps * POINTS)]
        )
        self.positives[torch.rand(self.positives.shape, generator=g) < 0.4] = PAD  # 0 to 4 a point
        self.inputs = torch.randn(case.steps * POINTS, D, generator=g)
        if case.spoiled_step is not None:
            self.inputs[(case.spoiled_step + 1) * POINTS - 1] = torch.inf
        self.encoder = nn.Linear(D, D, bias=False)
        self.encoder.weight.data, w_c, b_c = (
            torch.randn(shape, generator=g) for shape in ((D, D), (clusters, D), (clusters,))
        )
        weights, w_l, b_l = (
            torch.rand(clusters, R, generator=g),
            *(torch.randn(case.num_labels, *s, generator=g) for s in ((D,), ())),
        )
        rows, labels = (list(workers.block(n)) for n in (clusters, case.num_labels))
        self.cluster_classifiers = ClusterClassifiers(w_c[rows], b_c[rows], clusters, workers)
        self.adjacency = Adjacency(labels_CR[rows], weights[rows], case.beta, clusters, workers)
        w_l = w_l.bfloat16() if case.bfloat16 else w_l
        self.classifiers = LabelClassifiers(w_l[labels], b_l[labels], case.num_labels, workers)
        self.tables_C = [
            Table("W_C", self.cluster_classifiers.weight, self.cluster_classifiers.weight_grad, DECAY),
            Table("b_C", self.cluster_classifiers.bias, self.cluster_classifiers.bias_grad, 0.0),
        ]
        self.tables = [Table("b_L", self.classifiers.bias, self.classifiers.bias_grad, 0.0)]
        if not case.bfloat16:
            self.tables.append(Table("W_L", self.classifiers.weight, self.classifiers.weight_grad, DECAY))
        if self.adjacency.weights_grad is not None:
            self.tables.append(Table("A", self.adjacency.weights, self.adjacency.weights_grad, 0.0))

    def loss(self, step: int) -> tuple[Tensor, Found]:
        mine = self.workers.block(POINTS)
        points = slice(step * POINTS + mine.start, step * POINTS + mine.stop)
        positives = self.positives[points]
        parents = torch.cat([self.adjacency.parents(self.case.num_labels), torch.tensor([PAD])])[positives]
        self.workers.bytes_sent = 0  # parents are refreshed once an epoch, not each step
        parts = (self.cluster_classifiers, self.adjacency, self.classifiers)
        drawn = None
        if self.case.random_labels:
            g = torch.Generator().manual_seed(step)
            drawn = torch.randperm(self.case.num_labels, generator=g)[: self.case.random_labels].sort().values
        found = search(self.encoder(self.inputs[points]), *parts, SEARCH, positives, parents, drawn)
        return loss(found, positives, 0.05, self.workers, all_labels_weight=0.3), found

    def state(self, losses: list[float], shortlists: list[Tensor]) -> dict[str, Any]:
        return {
            "losses": torch.tensor(losses),
            "shortlists": torch.stack(shortlists),
            "encoder": self.encoder.weight.detach().clone(),
            "W_C": whole(self.workers, self.cluster_classifiers.weight, self.case.num_clusters),
            "b_C": whole(self.workers, self.cluster_classifiers.bias, self.case.num_clusters),
            "W_L": whole(self.workers, self.classifiers.weight, self.case.num_labels),
            "b_L": whole(self.workers, self.classifiers.bias, self.case.num_labels),
            "A": whole(self.workers, self.adjacency.weights, self.case.num_clusters),
        }


def reference(case: Case) -> dict[str, Any]:
    """In one process, with torch alone."""
    model = Model(case, alone())
    optimizer = torch.optim.AdamW(model.encoder.parameters(), weight_decay=DECAY)
    tables_C, tables = (
        [torch.optim.AdamW([t.values], weight_decay=t.weight_decay) for t in tables]
        for tables in (model.tables_C, model.tables)
    )
    losses, shortlists, waiting = [], [], 0
    for step in range(case.steps):
        factor = (step + 1) / (WARMUP_STEPS + 1) if step < WARMUP_STEPS else (STEPS - step) / (STEPS - WARMUP_STEPS)
        value, found = model.loss(step)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.encoder.parameters(), CLIP)
        optimizer.param_groups[0]["lr"] = factor * LR_ENCODER
        optimizer.step()
        waiting += 1
        due = [(1, model.tables_C, tables_C)]
        if waiting == UPDATE_EVERY or step == case.steps - 1:
            due.append((waiting, model.tables, tables))
            waiting = 0
        for steps, tables_due, optimizers in due:
            for table, table_optimizer in zip(tables_due, optimizers, strict=True):
                table.values.grad = table.gradient / steps
                table_optimizer.param_groups[0]["lr"] = factor * LR_CLASSIFIERS
                table_optimizer.step()
                table.gradient.zero_()
        losses.append(value.item())
        shortlists.append(found.labels_BK)
    return model.state(losses, shortlists)


def sharded(workers: Workers, case: Case) -> dict[str, Any]:
    model = Model(case, workers)
    plan = Optimisation(LR_ENCODER, LR_CLASSIFIERS, DECAY, case.steps, WARMUP_STEPS / case.steps, CLIP, case.zero_stage)
    engine = engine_of(model, plan)
    losses, shortlists, bytes_sent = [], [], []
    for step in range(case.steps):
        value, found = model.loss(step)
        engine.step(value)
        bytes_sent.append(workers.bytes_sent)
        losses.append(workers.gather(value.detach().view(1)).mean().item())
        shortlists.append(workers.gather(found.labels_BK))
        if step + 1 == case.restored_behind:
            model, engine = restored(model, engine, step + 1)
    result = {**model.state(losses, shortlists), "bytes_sent": sum(bytes_sent) / case.steps}
    engine.close()
    return result


def engine_of(model: Model, plan: Optimisation) -> Engine:
    rates_C, rates = plan.rates_of_updates(1), plan.rates_of_updates(UPDATE_EVERY)
    optimizers: list[TableOptimizer | RowOptimizer] = [
        TableOptimizer(model.tables_C, rates_C, 1),
        TableOptimizer(model.tables, rates, UPDATE_EVERY),
    ]
    if model.case.bfloat16:
        table, decay = model.classifiers, plan.weight_decay
        optimizers.append(RowOptimizer("W_L", table.weight, table.take_gradients, decay, rates, UPDATE_EVERY, seed=0))
    return Engine(model.encoder, optimizers, model.workers, plan)


def restored(model: Model, engine: Engine, steps_done: int) -> tuple[Model, Engine]:
    encoder = {name: value.clone() for name, value in engine.encoder_state().items()}
    moments = {
        table: {name: value.clone() for name, value in kept.items()} for table, kept in engine.tables_state().items()
    }
    engine.close()
    again = Model(model.case, model.workers)
    for name, parameter in again.encoder.named_parameters():
        parameter.data.copy_(encoder[name])
    for new, old in zip(again.tables_C + again.tables, model.tables_C + model.tables, strict=True):
        new.values.copy_(old.values)
    again.classifiers.weight.copy_(model.classifiers.weight)
    engine = engine_of(again, engine.plan)
    engine.restore(steps_done, encoder, moments)
    return again, engine


def whole(workers: Workers, block: Tensor, num_rows: int) -> Tensor:
    """The blocks of all workers in order; padded for the journey, since they differ in length."""
    longest = max(len(workers.block(num_rows, rank)) for rank in range(workers.size))
    padded = torch.cat([block, block.new_zeros((longest - len(block), *block.shape[1:]))])
    parts = workers.gather(padded).view(workers.size, longest, *block.shape[1:])
    return torch.cat([part[: len(workers.block(num_rows, rank))] for rank, part in enumerate(parts)])


def one_process(rank: int, size: int, folder: str, cases: list[Case]) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    for number, case in enumerate(cases):
        try:
            result = sharded(Workers(rank, size), case)
        except UserError as error:
            result = {"error": str(error)}
        torch.save(result, f"{folder}/{number}-{rank}.pt")
    dist.barrier()
    os._exit(0)  # leaving in good order, gloo's threads now and then abort the process


SAME_MODEL = [  # as one process would train, by so many
    *((1, Case()), (2, Case()), (3, Case()), (2, Case(zero_stage=1)), (3, Case(zero_stage=2)), (2, Case(zero_stage=3))),
    *((1, Case(zero_stage=2, beta=None)), (3, Case(zero_stage=1, beta=None))),
    *((2, Case(random_labels=20)), (3, Case(random_labels=2)), (3, Case(random_labels=37, zero_stage=1))),
]
RESTORED = [
    (size, Case(zero_stage=stage, restored_behind=2 * UPDATE_EVERY)) for size, stage in ((1, 0), (2, 0), (2, 1), (2, 2))
]
COARSE, COARSE_RESTORED = Case(bfloat16=True), Case(bfloat16=True, restored_behind=2 * UPDATE_EVERY)
FEW, MANY = Case(num_labels=400, steps=4), Case(num_labels=4000, num_clusters=10 * C, steps=4)
SPOILED = Case(spoiled_step=4)
CASES = [
    *SAME_MODEL,
    *RESTORED,
    *((size, COARSE) for size in (1, 2, 3)),
    (2, COARSE_RESTORED),
    (2, Case(zero_stage=2)),
    (2, FEW),
    (2, MANY),
    (2, SPOILED),
]


@cache
def results(size: int) -> dict[Case, list[dict[str, Any]]]:
    """What every worker found in each of the cases for so many; in one group, since starting one takes longest."""
    cases = [case for wanted, case in CASES if wanted == size]
    with TemporaryDirectory() as folder:
        spawn(one_process, (size, folder, cases), nprocs=size)
        return {
            case: [torch.load(f"{folder}/{number}-{rank}.pt", weights_only=True) for rank in range(size)]
            for number, case in enumerate(cases)
        }


@pytest.mark.parametrize(("size", "case"), SAME_MODEL)
def test_ten_steps_equal_one_process(size: int, case: Case) -> None:
    before = Model(case, alone()).state([], [torch.zeros(0)])
    expected = reference(case)
    for name in COMPARED[2:]:  # everything learned, but A in stage 1
        assert torch.equal(expected[name], before[name]) == (name == "A" and case.beta is None)
    assert len(results(size)[case]) == size
    for found in results(size)[case]:
        assert torch.equal(found["shortlists"], expected["shortlists"])
        for name in COMPARED:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-5, msg=f"{name} differs")
        assert (found["bytes_sent"] > 0) == (size > 1)


@pytest.mark.parametrize(("size", "case"), [*RESTORED, (2, COARSE_RESTORED)])
def test_a_restored_engine_goes_on_to_the_same_bits(size: int, case: Case) -> None:
    undisturbed = results(size)[replace(case, restored_behind=None)]
    for found, expected in zip(results(size)[case], undisturbed, strict=True):
        for name in COMPARED:
            assert torch.equal(found[name], expected[name]), name


@pytest.mark.parametrize("size", [2, 3])
def test_bfloat16_equals_one_process_but_for_the_rounding(size: int) -> None:
    """A last bit of a sum may tip the rounding of a weight, by 2^-7 of it; of few, and not by more."""
    (expected,) = results(1)[COARSE]
    untrained = Model(COARSE, alone()).classifiers.weight
    assert (expected["W_L"] != untrained).float().mean() > 0.5
    assert len(results(size)[COARSE]) == size
    for found in results(size)[COARSE]:
        torch.testing.assert_close(found["losses"], expected["losses"], rtol=1e-3, atol=1e-3)
        assert (found["W_L"] != expected["W_L"]).float().mean() < 0.02
        torch.testing.assert_close(found["W_L"], expected["W_L"], rtol=2**-5, atol=1e-3)


def test_bytes_sent_grow_with_neither_labels_nor_clusters() -> None:
    """Ten times as many of both, but for the chance of which shortlisted label is owned by whom."""
    for small, large in zip(results(2)[FEW], results(2)[MANY], strict=True):
        assert small["bytes_sent"] > 1000
        assert large["bytes_sent"] == pytest.approx(small["bytes_sent"], rel=0.1)


@pytest.mark.parametrize(("size", "random_labels"), [(2, 0), (3, 0), (2, 20)])
def test_bytes_sent_are_as_planned(size: int, random_labels: int) -> None:
    """But for DeepSpeed's own, and what worker owns which label by chance."""
    shapes = Shapes(
        workers=size,
        batch_size=POINTS,
        tokens=1,
        rows_ahead=1,
        encoder_parameters=D * D,
        encoder_layers=1,
        encoder_heads=1,
        encoder_width=1,
        embedding_size=D,
        clusters=C,
        labels=Case.num_labels,
        row_length=R,
        beam=SEARCH.beam,
        explored=SEARCH.beam + SEARCH.extra,
        shortlist=SEARCH.shortlist,
        learns_adjacency=True,
        trains_encoder=True,
        averages=False,
        zero_stage=0,
        random_labels=random_labels,
    )
    planned = sent(shapes, positives=4)
    planned.pop("gradients of phi")
    measured = [found["bytes_sent"] for found in results(size)[Case(random_labels=random_labels)]]
    assert sum(measured) / size == pytest.approx(sum(planned.values()), rel=0.1)


def test_a_loss_that_is_not_finite_stops_every_worker() -> None:
    for found in results(2)[SPOILED]:
        assert "the loss of step 4 is nan on worker 1" in found["error"]
