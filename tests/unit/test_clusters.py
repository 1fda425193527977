"""Label centroids against a naive oracle; clusters by their properties."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from elias_ray import sparse_products
from elias_ray.clusters import balanced_clusters, choose_num_clusters, label_centroids
from elias_ray.config import load_config
from elias_ray.errors import UserError


def random_problem(seed: int, points: int, terms: int, labels: int) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    rng = np.random.default_rng(seed)
    psi = sp.random(points, terms, 0.3, format="csr", random_state=rng, dtype=np.float32)
    y = sp.random(points, labels, 0.2, format="csr", random_state=rng, dtype=np.float32)
    y.data[:] = 1
    return psi, y


def naive_centroids(psi: sp.csr_matrix, y: sp.csr_matrix, most: int) -> np.ndarray:
    result = np.zeros((y.shape[1], psi.shape[1]))
    for label in range(y.shape[1]):
        for point in range(y.shape[0]):
            if y[point, label]:
                result[label] += psi[point].toarray()[0]
        heaviest = sorted(range(psi.shape[1]), key=lambda term: -result[label, term])[:most]
        result[label, [t for t in range(psi.shape[1]) if t not in heaviest]] = 0
        if result[label].any():
            result[label] /= np.linalg.norm(result[label])
    return result


@pytest.mark.parametrize("most", [3, 100])
@pytest.mark.parametrize("block", [1, 50, 1 << 25])
def test_centroids_equal_the_oracle(most: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_products, "BLOCK_ENTRIES", block)
    psi, y = random_problem(0, points=40, terms=23, labels=17)
    y = sp.csr_matrix(y.multiply(np.arange(17) != 5))  # a label without points
    y.eliminate_zeros()
    found = label_centroids(psi, y, most)
    np.testing.assert_allclose(found.toarray(), naive_centroids(psi, y, most), atol=1e-6)
    assert found[5].nnz == 0
    assert np.diff(found.indptr).max() <= most


def test_embeddings_stand_beside_the_terms() -> None:
    psi, y = random_problem(1, points=30, terms=11, labels=9)
    embeddings = np.random.default_rng(2).normal(size=(30, 4)).astype(np.float32)
    found = label_centroids(psi, y, 100, embeddings).toarray()
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    expected = np.hstack([y.T @ psi.toarray(), y.T @ unit])
    expected /= np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1e-12)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(("labels", "paper"), [(131_073, 2048), (670_091, 8192), (501_070, 8192), (2_812_281, 32_768)])
def test_number_of_clusters_is_the_papers(labels: int, paper: int) -> None:
    assert choose_num_clusters(labels, load_config()) == paper


@given(labels=st.integers(1, 10**7), beam=st.integers(1, 100))
def test_number_of_clusters_is_a_possible_power_of_two(labels: int, beam: int) -> None:
    config = load_config(overrides=[f"search.beam={beam}", "search.shortlist=1"])
    count = choose_num_clusters(labels, config)
    assert count & (count - 1) == 0
    assert min(max(beam, labels / 100), labels / 2) <= count <= labels


def test_more_clusters_than_labels_are_refused() -> None:
    with pytest.raises(UserError, match=r"clusters\.count=64 exceeds the number of labels, 63"):
        choose_num_clusters(63, load_config(overrides=["clusters.count=64"]))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), labels=st.integers(1, 300), seed=st.integers(0, 2**31 - 1))
def test_every_label_in_one_cluster_and_sizes_within_one(data: st.DataObject, labels: int, seed: int) -> None:
    halvings = data.draw(st.integers(0, int(np.log2(labels))))
    density = data.draw(st.sampled_from([0.0, 0.1, 0.9]))  # 0: no label has a centroid
    rng = np.random.default_rng(seed)
    centroids = sp.random(labels, 20, density, format="csr", random_state=rng, dtype=np.float32)
    found = balanced_clusters(centroids, 1 << halvings, seed, iterations=5, threads=1)
    assert found.shape == (labels,)
    sizes = np.bincount(found, minlength=1 << halvings)
    assert len(sizes) == 1 << halvings
    assert sizes.sum() == labels
    assert sizes.max() - sizes.min() <= 1


def test_clusters_follow_the_seed_and_nothing_else() -> None:
    psi, y = random_problem(3, points=400, terms=50, labels=200)
    centroids = label_centroids(psi, y, 100)
    one, again, other, parallel = (
        balanced_clusters(centroids, 16, seed, iterations=20, threads=threads)
        for seed, threads in ((0, 1), (0, 1), (1, 1), (0, 2))
    )
    assert (one == again).all()
    assert (one == parallel).all()
    assert (one != other).any()


def test_labels_that_are_alike_come_together() -> None:
    topic = np.repeat(np.arange(8), 25)
    rng = np.random.default_rng(0)
    centroids = sp.csr_matrix(np.eye(8, dtype=np.float32)[topic] + 0.05 * rng.random((200, 8), np.float32))
    found = balanced_clusters(centroids, 8, 0, iterations=20, threads=1)
    for cluster in range(8):
        assert len(set(topic[found == cluster])) == 1
