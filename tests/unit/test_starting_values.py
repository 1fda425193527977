"""Initial values: the same rows whoever asks for them; centroids as the definition has them."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from elias_ray import starting_values
from elias_ray.starting_values import ROWS_AT_ONCE, SHARPNESS, STANDARD_DEVIATION, centroids, random_rows


@pytest.mark.parametrize("uniform", [False, True])
def test_a_row_does_not_depend_on_who_asks(uniform: bool) -> None:
    count = 2 * ROWS_AT_ONCE + 7
    whole = random_rows("W_L", 3, range(count), 4, uniform)
    assert whole.shape == (count, 4)
    cuts = [0, 5, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 1, count]
    parts = [random_rows("W_L", 3, range(a, b), 4, uniform) for a, b in itertools.pairwise(cuts)]
    assert torch.equal(torch.cat(parts), whole)
    assert random_rows("W_L", 3, range(5, 5), 4, uniform).shape == (0, 4)


def test_tables_seeds_and_rows_differ() -> None:
    rows = [random_rows(name, seed, range(20), 8) for name, seed in (("W_L", 0), ("W_C", 0), ("W_L", 1))]
    assert len({float(table.sum()) for table in rows}) == 3
    assert len({float(row.sum()) for row in rows[0]}) == 20
    assert random_rows("x", 0, range(5000), 8).std().item() == pytest.approx(STANDARD_DEVIATION, rel=0.05)
    uniform = random_rows("A", 0, range(5000), 8, uniform=True)
    assert 0 <= uniform.min() < 0.01 < 0.99 < uniform.max() <= 1


@pytest.mark.parametrize("labels_at_once", [1, 3, 100])
def test_centroids(labels_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting_values, "LABELS_AT_ONCE", labels_at_once)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(9, 5)).astype(np.float32)
    labels = (rng.random((9, 6)) < 0.4).astype(np.float32)
    labels[:, 5] = 0  # never trained
    clusters = np.array([0, 1, 1, 2, 0, 2], np.int32)
    shards = [(vectors[part], sp.csr_matrix(labels[part])) for part in (slice(0, 4), slice(4, 9))]
    found = centroids(lambda: shards, clusters, 3, range(2, 6), embedding_size=5)
    lengths = [float(np.sqrt((v**2).sum())) for v in vectors]
    scale = SHARPNESS / (sum(lengths) / 9)
    for label in range(2, 6):
        total = sum((vectors[i] / lengths[i] for i in range(9) if labels[i, label]), np.zeros(5))
        length = np.sqrt((total**2).sum())
        expected = scale * total / length if length else np.zeros(5)
        assert found.labels_LD[label - 2].numpy() == pytest.approx(expected, abs=1e-5)
    for cluster in range(3):
        total = np.zeros(5)
        for i in range(9):
            for label in range(6):
                if labels[i, label] and clusters[label] == cluster:
                    total += vectors[i] / lengths[i]
        expected = scale * total / np.sqrt((total**2).sum())
        assert found.clusters_CD[cluster].numpy() == pytest.approx(expected, abs=1e-5)
