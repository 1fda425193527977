"""The model against the oracle: scores, choices, losses and every gradient."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from elias_ray.adjacency import Adjacency, clusters_as_rows
from elias_ray.cluster_classifiers import ClusterClassifiers
from elias_ray.label_classifiers import LabelClassifiers
from elias_ray.loss import classification_loss, log_one_minus
from elias_ray.metrics import PAD
from elias_ray.model import Found, Search, loss, search
from elias_ray.workers import alone
from tests.unit.oracle import Answer, Problem, solve


def assert_close(found: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5, msg=lambda text: f"{what}: {text}")


def problem(seed: int, **changes: Any) -> Problem:
    """Random; labels stand in several rows, some in none, rows differ in length, some points have no positives."""
    rng = np.random.default_rng(seed)
    sizes = {"points": 6, "dimensions": 5, "clusters": 7, "labels": 24, "row": 8, **changes.pop("sizes", {})}
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).float().double()  # float32 holds it exactly

    rows = [
        sorted(rng.choice(sizes["labels"] - 3, size=rng.integers(1, sizes["row"] + 1), replace=False).tolist())
        for _ in range(sizes["clusters"])
    ]
    positives = [
        rng.choice(sizes["labels"], size=rng.integers(0, 6), replace=False).tolist() for _ in range(sizes["points"])
    ]
    holders = {label: [c for c, row in enumerate(rows) if label in row] for label in range(sizes["labels"])}
    made: dict[str, Any] = {
        "phi": normal(sizes["points"], sizes["dimensions"]),
        "w_c": normal(sizes["clusters"], sizes["dimensions"]),
        "b_c": normal(sizes["clusters"]),
        "rows": rows,
        "a": [normal(len(row)) for row in rows],
        "w_l": normal(sizes["labels"], sizes["dimensions"]),
        "b_l": normal(sizes["labels"]),
        "positives": positives,
        "parents": [int(rng.choice(held)) if held else -1 for held in holders.values()],
        "alpha": 2.0,
        "beta": 3.0,
        "beam": 2,
        "extra": 2,
        "k": 6,
        "shortlist_weight": 0.05,
    }
    return Problem(**{**made, **changes})


def pad(lists: list[list[int]]) -> Tensor:
    width = max(map(len, lists), default=0)
    return torch.tensor([row + [PAD] * (width - len(row)) for row in lists], dtype=torch.long).view(len(lists), width)


class Ours:
    """The model on a problem, in float32."""

    def __init__(self, q: Problem, frozen: bool = False) -> None:
        self.phi = q.phi.detach().float().requires_grad_(not frozen)
        self.cluster_classifiers = ClusterClassifiers(q.w_c.detach().float(), q.b_c.detach().float(), len(q.w_c))
        labels_CR = pad(q.rows)
        weights_CR = torch.zeros(labels_CR.shape)
        for c, weights in enumerate(q.a):
            weights_CR[c, : len(weights)] = weights.detach().float()
        self.adjacency = Adjacency(labels_CR.int(), weights_CR, q.beta, len(labels_CR))
        self.label_classifiers = LabelClassifiers(q.w_l.detach().float(), q.b_l.detach().float(), len(q.w_l))
        self.positives = pad(q.positives)
        self.parents = torch.tensor([*q.parents, -1])[self.positives]  # PAD, -1, takes the last
        settings = Search(q.alpha, q.beam, q.k, q.extra)
        self.found: Found = search(
            *(
                self.phi,
                self.cluster_classifiers,
                self.adjacency,
                self.label_classifiers,
                settings,
                self.positives,
                self.parents,
                torch.tensor(q.drawn) if q.drawn is not None else None,
            )
        )
        self.loss = loss(self.found, self.positives, q.shortlist_weight, alone(), q.all_labels_weight)


def check(q: Problem) -> Answer:
    leaves = [q.phi, q.w_c, q.b_c, q.w_l, q.b_l, *q.a]
    for leaf in leaves:
        leaf.requires_grad_()
    answer, ours = solve(q), Ours(q)
    explored, _ = ours.cluster_classifiers.explore(ours.phi.detach(), q.alpha, q.beam, ours.parents, q.extra)
    for b, clusters in enumerate(answer.explored):
        assert [c for c in explored[b].tolist() if c != PAD] == clusters
        chosen = [label for label in ours.found.labels_BK[b].tolist() if label != PAD]
        assert chosen == answer.shortlist[b]
        expected = torch.stack([answer.y_hat[b][label] for label in chosen]).detach()
        assert_close(ours.found.log_shortlist_BK[b, : len(chosen)].exp(), expected, "y^")
        expected = torch.stack([answer.p[b][label] for label in chosen]).detach()
        assert_close(ours.found.log_p_BK[b, : len(chosen)].exp(), expected, "p")
        assert (ours.found.log_p_BK[b, len(chosen) :] == -torch.inf).all()
    assert_close(ours.loss.detach(), answer.loss.detach(), "loss")

    ours.loss.backward()
    answer.loss.backward()
    found = {
        "phi": (ours.phi.grad, q.phi.grad),
        "W_C": (ours.cluster_classifiers.weight_grad, q.w_c.grad),
        "b_C": (ours.cluster_classifiers.bias_grad, q.b_c.grad),
        "W_L": (ours.label_classifiers.weight_grad, q.w_l.grad),
        "b_L": (ours.label_classifiers.bias_grad, q.b_l.grad),
    }
    if q.beta is not None:
        for c, weights in enumerate(q.a):
            assert ours.adjacency.weights_grad is not None
            gradient = ours.adjacency.weights_grad[c]
            expected = weights.grad if weights.grad is not None else torch.zeros_like(weights)
            assert_close(gradient[: len(weights)], expected, f"gradient of row {c} of A")
            assert (gradient[len(weights) :] == 0).all()
    for name, (mine, theirs) in found.items():
        assert mine is not None, name
        assert_close(mine, theirs if theirs is not None else torch.zeros_like(mine), f"gradient of {name}")
    return answer


@pytest.mark.parametrize("seed", range(20))
def test_random_problems(seed: int) -> None:
    check(problem(seed))


@pytest.mark.parametrize("seed", range(5))
def test_stage_1_edges_score_one(seed: int) -> None:
    answer = check(problem(seed, beta=None, k=40))
    assert any(len(found) < 40 for found in answer.shortlist)


@pytest.mark.parametrize("drawn", [[0], [3, 8, 23], list(range(24))])
@pytest.mark.parametrize("seed", range(3))
def test_labels_drawn_at_random_tell_the_loss_over_all(seed: int, drawn: list[int]) -> None:
    with_all = check(problem(seed, drawn=drawn, all_labels_weight=0.3))
    assert with_all.loss.detach() > solve(problem(seed)).loss.detach()


@pytest.mark.parametrize("seed", range(5))
def test_saturated_scores_pass_no_gradient(seed: int) -> None:
    answer = check(problem(seed, alpha=50.0, beta=50.0))
    assert any(float(y.detach()) == 1 for reached in answer.y_hat for y in reached.values())


@pytest.mark.parametrize("seed", range(5))
def test_ties_go_to_the_smaller_number(seed: int) -> None:
    q = problem(seed, alpha=50.0, beta=None, k=5)  # every s_c and every edge is 1: all labels tie
    q.w_c, q.b_c = torch.zeros_like(q.w_c), torch.zeros_like(q.b_c)
    answer = check(q)
    for clusters, chosen, reached in zip(answer.explored, answer.shortlist, answer.y_hat, strict=True):
        assert clusters[:2] == [0, 1]
        assert chosen == sorted(reached)[:5]


@pytest.mark.parametrize("seed", range(5))
def test_labels_on_several_paths_keep_the_best(seed: int) -> None:
    q = problem(seed, beam=7, sizes={"labels": 10, "row": 7})
    answer = check(q)
    paths = sum(len(q.rows[c]) for c in answer.explored[0])
    assert paths > len(answer.y_hat[0])


def test_positives_without_a_path_and_points_without_positives() -> None:
    q = problem(3, positives=[[23], [], [22, 23], [0, 23], [], [21]])
    answer = check(q)
    assert 23 not in answer.y_hat[0]
    empty = problem(4, positives=[[]] * 6)
    assert float(check(empty).shortlist_loss) == 0


def test_more_missing_parents_than_extra_clusters() -> None:
    q = problem(5, positives=[list(range(21))] * 6, beam=1, extra=2)
    answer = check(q)
    assert all(len(clusters) == 3 for clusters in answer.explored)


def test_prediction_needs_no_positives_and_makes_no_graph() -> None:
    q = problem(6)
    ours = Ours(q)
    with torch.no_grad():
        found = search(
            ours.phi, ours.cluster_classifiers, ours.adjacency, ours.label_classifiers, Search(q.alpha, q.beam, q.k)
        )
    assert found.log_positives_BP is None
    assert not found.log_p_BK.requires_grad


def test_gradients_add_up_over_steps() -> None:
    once, twice = Ours(problem(7)), Ours(problem(7))
    once.loss.backward()
    for _ in range(2):
        loss(
            search(
                *(twice.phi, twice.cluster_classifiers, twice.adjacency, twice.label_classifiers, Search(2.0, 2, 6, 2)),
                *(twice.positives, twice.parents),
            ),
            *(twice.positives, 0.05, alone()),
        ).backward()
    torch.testing.assert_close(twice.label_classifiers.weight_grad, 2 * once.label_classifiers.weight_grad)
    assert once.adjacency.weights_grad is not None
    assert twice.adjacency.weights_grad is not None
    torch.testing.assert_close(twice.adjacency.weights_grad, 2 * once.adjacency.weights_grad)


@pytest.mark.parametrize("beta", [3.0, None])
def test_constant_embeddings_train_the_tables_all_the_same(beta: float | None) -> None:
    ours, frozen = Ours(problem(8, beta=beta)), Ours(problem(8, beta=beta), frozen=True)
    ours.loss.backward()
    frozen.loss.backward()
    assert frozen.phi.grad is None
    assert frozen.label_classifiers.weight_grad.abs().sum() > 0
    torch.testing.assert_close(frozen.label_classifiers.weight_grad, ours.label_classifiers.weight_grad)
    torch.testing.assert_close(frozen.label_classifiers.bias_grad, ours.label_classifiers.bias_grad)
    torch.testing.assert_close(frozen.cluster_classifiers.weight_grad, ours.cluster_classifiers.weight_grad)
    torch.testing.assert_close(frozen.adjacency.weights_grad, ours.adjacency.weights_grad)


def test_coarse_products_are_near_and_leave_the_setting_as_it_was() -> None:
    g = torch.Generator().manual_seed(4)
    weight, bias = torch.randn(500, 64, generator=g), torch.randn(500, generator=g)
    matmul, found = torch.backends.mkldnn.matmul, []  # type: ignore[attr-defined]
    setting = matmul.fp32_precision
    for coarse in (False, True):
        table = ClusterClassifiers(weight, bias, 500, coarse=coarse)
        embedding = torch.randn(32, 64, generator=torch.Generator().manual_seed(5)).requires_grad_()
        clusters, log_scores = table.explore(embedding, 0.5, 3)
        log_scores.sum().backward()
        assert embedding.grad is not None
        found.append((table.logits(embedding.detach())[0], clusters, embedding.grad, table.weight_grad))
    (logits, clusters, *grads), (logits_coarse, clusters_coarse, *grads_coarse) = found
    torch.testing.assert_close(logits_coarse, logits, rtol=0.02, atol=0.2)
    assert (clusters_coarse == clusters).float().mean() > 0.9
    for coarse_grad, grad in zip(grads_coarse, grads, strict=True):
        assert grad.norm() > 0
        assert (coarse_grad - grad).norm() < 0.2 * grad.norm()
    assert matmul.fp32_precision == setting


def test_loss_is_finite_at_the_ends() -> None:
    logits = torch.tensor([[-200.0, -1.0, 0.0, 1.0, 200.0]]).repeat(6, 1).requires_grad_()
    log_y = torch.tensor([0.0, -1e-30, -1e-7, -0.5, -80.0, -1e4])[:, None].repeat(1, 5).requires_grad_()
    for positive in (False, True):
        value = classification_loss(
            logits, log_y, torch.full(logits.shape, positive), torch.ones(logits.shape, dtype=torch.bool)
        )
        gradients = torch.autograd.grad(value, [logits, log_y])
        assert value.isfinite()
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_nan_is_not_hidden_by_the_search() -> None:
    q = problem(8)
    q.phi[2] = torch.nan
    assert Ours(q).loss.isnan()
    q.phi[2] = torch.inf
    assert Ours(q).loss.isnan()


def test_log_one_minus() -> None:
    log_x = torch.tensor([-1e-6, -0.1, -0.6931, -0.7, -5.0, -100.0, -torch.inf, 0.0])
    expected = torch.log(-torch.expm1(log_x.double())).float()
    torch.testing.assert_close(log_one_minus(log_x), expected)


def test_adjacency_of_clusters() -> None:
    labels_CR = clusters_as_rows(torch.tensor([2, 0, 2, 1, 0, 2]), 4)
    assert labels_CR.tolist() == [[1, 4, PAD], [3, PAD, PAD], [0, 2, 5], [PAD, PAD, PAD]]
    adjacency = Adjacency(labels_CR, torch.zeros(labels_CR.shape), None, 4)
    assert adjacency.parents(7).tolist() == [2, 0, 2, 1, 0, 2, PAD]


def test_parents_are_the_clusters_of_the_best_edge() -> None:
    labels_CR = torch.tensor([[0, 1, PAD], [0, 1, 2], [2, PAD, PAD]], dtype=torch.int32)
    weights_CR = torch.tensor([[0.0, 1.0, 9.0], [0.0, 0.0, 0.0], [5.0, 0.0, 0.0]])
    #  softmax per row: 0 -> .27, 1 -> .73 | 0, 1, 2 -> .33 each | 2 -> 1
    assert Adjacency(labels_CR, weights_CR, 1.0, 3).parents(4).tolist() == [1, 0, 2, PAD]


def test_the_best_labels_are_those_of_highest_p_and_of_equal_ones_the_smaller() -> None:
    zero, low = 0.0, -3.0
    found = Found(
        labels_BK=torch.tensor([[7, 3, PAD, 5, 9]]),
        logits_BK=torch.tensor([[zero, zero, 50.0, zero, 2.0]]),
        log_shortlist_BK=torch.tensor([[zero, zero, zero, low, zero]]),
    )
    labels, p = found.best_labels(4)
    assert labels.tolist() == [[9, 3, 7, 5]]
    torch.testing.assert_close(p, torch.tensor([[1 / (1 + math.exp(-2)), 0.5, 0.5, 0.5 * math.exp(low)]]))
    assert found.best_labels(9)[0].tolist() == [[9, 3, 7, 5, PAD]]
    p_of_less = replace(found, path_power=0.5).best_labels(4)[1]
    torch.testing.assert_close(p_of_less, torch.tensor([[1 / (1 + math.exp(-2)), 0.5, 0.5, 0.5 * math.exp(low / 2)]]))
