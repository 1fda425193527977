"""The rows of A for stage 2, against their definition."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elias_ray.adjacency import Adjacency, estimate_rows, prune
from elias_ray.errors import UserError
from elias_ray.metrics import PAD
from elias_ray.padding import pad


def random_problem(
    seed: int, points: int, clusters: int, labels: int
) -> tuple[sp.csr_matrix, sp.csr_matrix, np.ndarray]:
    rng = np.random.default_rng(seed)
    scores = sp.random(points, clusters, 0.4, format="csr", random_state=rng, dtype=np.float32)
    y = sp.random(points, labels, 0.15, format="csr", random_state=rng, dtype=np.float32)
    y.data[:] = 1
    return scores, y, rng.permutation(np.arange(labels) % clusters).astype(np.int32)


def rows_of(labels_CR: np.ndarray) -> list[list[int]]:
    return [[label for label in row if label != PAD] for row in labels_CR.tolist()]


def test_rows_hold_the_heaviest_labels_heaviest_first() -> None:
    scores, y, clusters = random_problem(0, points=60, clusters=5, labels=12)
    dense = scores.toarray().T @ y.toarray()
    found = rows_of(estimate_rows(scores, y, clusters, labels_per_row=12).numpy())
    for c, row in enumerate(found):
        assert row == np.flatnonzero(dense[c]).tolist()


def test_rows_are_cut_but_no_label_is_lost() -> None:
    scores, y, clusters = random_problem(1, points=60, clusters=5, labels=20)
    dense = scores.toarray().T @ y.toarray()
    found = rows_of(estimate_rows(scores, y, clusters, labels_per_row=5).numpy())
    reached = {label for row in found for label in row}
    assert reached == set(range(20))
    for c, row in enumerate(found):
        assert len(row) == len(set(row)) <= 5
        best = sorted(range(20), key=lambda label: (-dense[c, label], label))[:5]
        for label in set(row) - set(best):  # who is not among the best is there because it is at home
            assert clusters[label] == c


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), clusters=st.integers(1, 8), extra=st.integers(0, 5), data=st.data())
def test_every_label_is_reachable_whatever_the_estimate(
    seed: int, clusters: int, extra: int, data: st.DataObject
) -> None:
    labels = data.draw(st.integers(clusters, 40))
    scores, y, cluster_of = random_problem(seed, 30, clusters, labels)
    most = int(np.bincount(cluster_of).max()) + extra
    found = estimate_rows(scores, y, cluster_of, most).numpy()
    assert found.shape[0] == clusters
    assert found.shape[1] <= most
    assert {label for row in rows_of(found) for label in row} == set(range(labels))


def test_rows_shorter_than_a_cluster_are_refused() -> None:
    scores, y, clusters = random_problem(2, points=10, clusters=2, labels=20)
    with pytest.raises(UserError, match=r"search\.labels_per_row=9 .* 10 labels"):
        estimate_rows(scores, y, clusters, labels_per_row=9)


def random_adjacency(seed: int, clusters: int = 6, labels: int = 20, row: int = 9) -> Adjacency:
    """Every label has an edge, rows differ in length."""
    rng = np.random.default_rng(seed)
    rows = [set(rng.choice(labels, size=rng.integers(2, row), replace=False).tolist()) for _ in range(clusters)]
    for label in range(labels):
        rows[label % clusters].add(label)
    labels_CR = pad([sorted(row) for row in rows], PAD).int()
    weights_CR = torch.randn(labels_CR.shape, generator=torch.Generator().manual_seed(seed))
    return Adjacency(labels_CR, weights_CR, beta=3.0, num_clusters=clusters)


def edges_of(adjacency: Adjacency) -> dict[tuple[int, int], float]:
    every_row = torch.arange(adjacency.num_clusters)
    scores_CR = adjacency.log_scores(every_row).exp()
    places = (adjacency.labels != PAD).nonzero().tolist()
    return {(c, int(adjacency.labels[c, r])): float(scores_CR[c, r]) for c, r in places}


@pytest.mark.parametrize(("least", "most"), [(0.0, None), (0.3, None), (0.0, 3), (0.4, 2)])
def test_pruning_keeps_what_scores_and_the_best_edge_of_every_label(least: float, most: int | None) -> None:
    adjacency = random_adjacency(4)
    every, kept = edges_of(adjacency), edges_of(prune(adjacency, 20, least, most))
    expected = set()
    for (c, label), score in every.items():
        better_in_row = sum(1 for (other, _), s in every.items() if other == c and s > score)
        best_of_label = max(s for (_, other), s in every.items() if other == label)
        if (score >= least and (most is None or better_in_row < most)) or score == best_of_label:
            expected.add((c, label))
    assert set(kept) == expected
    assert kept == pytest.approx({edge: every[edge] for edge in kept}, rel=1e-6)  # not normalised anew
    assert {label for _, label in kept} == set(range(20))


def test_a_search_of_an_index_pruned_of_nothing_is_the_same() -> None:
    adjacency = random_adjacency(5)
    pruned = prune(adjacency, 20, 0.0, None)
    generator = torch.Generator().manual_seed(0)
    clusters_BE = torch.stack([torch.randperm(6, generator=generator)[:3] for _ in range(4)])
    log_scores_BE = -torch.rand((4, 3), generator=generator)
    nobody_BP = clusters_BE[:, :0]
    whole, part = (table.best_paths(clusters_BE, log_scores_BE, 8, nobody_BP) for table in (adjacency, pruned))
    assert torch.equal(whole.labels_BK, part.labels_BK)
    rows_BK = clusters_BE.gather(1, part.paths_BK.clamp(min=0) // pruned.row_length)
    places_BK = (part.paths_BK % pruned.row_length).masked_fill(part.paths_BK == PAD, PAD)
    with torch.no_grad():
        scores_BK = pruned.log_scores_of(rows_BK, places_BK, anchor=log_scores_BE)
        expected_BK = adjacency.log_scores_of(
            clusters_BE.gather(1, whole.paths_BK.clamp(min=0) // adjacency.row_length),
            (whole.paths_BK % adjacency.row_length).masked_fill(whole.paths_BK == PAD, PAD),
            anchor=log_scores_BE,
        )
    torch.testing.assert_close(scores_BK, expected_BK)
