"""The shortlist against a naive one, where the best paths suffice and where they do not."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elias_ray import shortlist as module
from elias_ray.metrics import PAD
from elias_ray.shortlist import best_by, places_where, shortlist, smallest_by


def naive(labels: list[int], scores: list[float], size: int) -> tuple[list[int], list[int]]:
    best: dict[int, int] = {}
    for path, (label, score) in enumerate(zip(labels, scores, strict=True)):
        if label != PAD and score > -np.inf and (label not in best or score > scores[best[label]]):
            best[label] = path
    chosen = sorted(best, key=lambda label: (-scores[best[label]], label))[:size]
    rest = [PAD] * (size - len(chosen))
    return chosen + rest, [best[label] for label in chosen] + rest


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    points=st.integers(1, 4),
    paths=st.integers(1, 60),
    size=st.integers(1, 12),
    labels=st.integers(1, 40),
    values=st.sampled_from([2, 5, 1000]),  # few different scores make ties
    padded=st.sampled_from([0.0, 0.3, 0.95]),
)
def test_as_the_naive_one(
    seed: int, points: int, paths: int, size: int, labels: int, values: int, padded: float
) -> None:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, labels, (points, paths))
    numbers[rng.random((points, paths)) < padded] = PAD
    scores = -rng.integers(0, values, (points, paths)).astype(np.float32) / 7
    found_labels, found_paths = shortlist(torch.from_numpy(numbers), torch.from_numpy(scores), size)
    for point in range(points):
        expected = naive(numbers[point].tolist(), scores[point].tolist(), size)
        assert (found_labels[point].tolist(), found_paths[point].tolist()) == expected


def test_all_paths_are_looked_at_only_of_points_where_the_best_lead_to_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[tuple[int, ...]] = []
    original = module._best_distinct

    def watched(labels: torch.Tensor, cost: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        looked_at.append(tuple(labels.shape))
        return original(labels, cost, size)

    monkeypatch.setattr(module, "_best_distinct", watched)
    monkeypatch.setattr(module, "PATHS_PER_LABEL", 4)
    scores = -torch.arange(40.0)[None]
    assert shortlist(torch.arange(40)[None], scores, 3)[0].tolist() == [[0, 1, 2]]
    assert looked_at == [(1, 12)]
    one_label_first = [7] * 30 + list(range(10))
    labels, paths = shortlist(torch.tensor([list(range(40)), one_label_first]), scores.repeat(2, 1), 3)
    assert labels.tolist() == [[0, 1, 2], [7, 0, 1]]
    assert paths.tolist() == [[0, 1, 2], [0, 30, 31]]
    assert looked_at == [(1, 12), (2, 12), (1, 40)]


@pytest.mark.parametrize("labels", [360, 4000])  # so that points need all paths, or the best by a sample
@pytest.mark.parametrize("few_threads", [0, 1000])
def test_as_the_naive_one_where_a_sample_tells_the_cost(
    labels: int, few_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEW_THREADS", few_threads)
    rng = np.random.default_rng(0)
    numbers, scores = rng.integers(0, labels, (3, 5000)), np.log(rng.random((3, 5000), np.float32))
    assert module.PATHS_PER_LABEL * 350 // module.SAMPLED > 1
    found_labels, found_paths = shortlist(torch.from_numpy(numbers), torch.from_numpy(scores), 350)
    for point in range(3):
        expected = naive(numbers[point].tolist(), scores[point].tolist(), 350)
        assert (found_labels[point].tolist(), found_paths[point].tolist()) == expected


def test_places_where() -> None:
    chosen = torch.tensor([[True, False, True, True], [False, False, False, False], [False, True, False, False]])
    assert places_where(chosen).tolist() == [[0, 2, 3], [PAD, PAD, PAD], [1, PAD, PAD]]


@pytest.mark.parametrize("columns", [1, 7, 64, 65, 400, 1000])
@pytest.mark.parametrize("values", [1, 3, 10_000])  # few different costs make ties
@pytest.mark.parametrize("few_threads", [0, 1000])  # sorted by torch, and by numpy
def test_smallest_and_best(columns: int, values: int, few_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW_THREADS", few_threads)
    rng = np.random.default_rng(columns + values)
    cost = rng.integers(0, values, (9, columns)).astype(np.float32)
    cost[rng.random(cost.shape) < 0.2] = np.inf
    cost[0, -1], cost[1], cost[2, 0] = np.nan, np.inf, np.nan  # not a number comes first, so that it shows
    most = rng.integers(0, 5, (9, 1)).astype(np.float32)
    clipped = np.maximum(cost - values // 3, 0)  # what is below costs nothing
    for count in {1, min(5, columns), columns}:
        expected, of_clipped = (
            np.nan_to_num(costs, nan=0.0, posinf=np.inf).argsort(axis=1, kind="stable")[:, :count]
            for costs in (cost, clipped)
        )
        assert smallest_by(torch.from_numpy(cost), count).tolist() == expected.tolist()
        score, best = torch.from_numpy(most - cost), torch.from_numpy(most - values // 3)
        assert best_by(score, best, count).tolist() == of_clipped.tolist()
