"""The rows of A for stage 2, against their definition."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from elias_ray.adjacency import estimate_rows
from elias_ray.errors import UserError
from elias_ray.shortlist import PAD


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
