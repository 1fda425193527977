"""Numbers of an index that is small enough to count by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from elias_ray import index_analysis
from elias_ray.index_analysis import Index
from elias_ray.metrics import NUM_DECILES

# Two clusters of three edges, labels 0 to 4. Label 4 has no edge. Before: labels 0, 1, 4 in cluster 0; 2, 3 in 1.
INDEX = Index(
    labels_CR=np.array([[0, 1, 2], [0, 3, -1]], np.int32),
    scores_CR=np.array([[1.0, 0.2, 0.5], [0.3, 0.005, 0.0]], np.float32),
    cluster_of_L=np.array([0, 0, 1, 1, 0], np.int32),
    frequency_L=np.array([50, 30, 10, 10, 0]),
)


def name_of(label: int) -> str:
    return "abcde"[label]


def test_edge_scores() -> None:
    found = index_analysis.edge_scores(INDEX)
    assert found["edges"] == 5
    assert found["edges_per_cluster"] == 2.5
    assert found["rank"] == [1, 2, 3]
    assert found["mean"] == pytest.approx([0.65, 0.2525, 0.1])  # of 1 and 0.3, 0.5 and 0.005, 0.2 and nothing
    assert found["nine_tenths"][0] == pytest.approx(0.93)
    assert found["median"] == pytest.approx(0.3)
    assert found["percent_assigned"] == pytest.approx(60)
    assert found["percent_nothing"] == pytest.approx(20)
    assert found["percent_whole"] == pytest.approx(20)
    assert sum(found["percent_in_bin"]) == pytest.approx(100)
    assert found["percent_in_bin"][0] == pytest.approx(20)
    assert found["percent_in_bin"][-1] == pytest.approx(20)


def test_edges_that_survive() -> None:
    found = index_analysis.surviving_edges(INDEX)
    at = dict(zip(found["threshold"], found["percent"], strict=True))
    # Of the five: 0 with 1.0, 1 with 0.2, 3 with 0.005; 2 and 4 have no edge to their first cluster any more.
    assert found["percent_stored"] == pytest.approx(60)
    assert at[0.0] == pytest.approx(60)
    assert at[0.01] == pytest.approx(40)
    assert at[0.2] == pytest.approx(20)  # not above it
    assert at[0.95] == pytest.approx(20)
    assert found["percent_assigned"] == pytest.approx(20)


def test_clusters_of_labels_by_decile() -> None:
    assert INDEX.clusters_of_label_L.tolist() == [2, 0, 1, 0, 0]
    found = index_analysis.clusters_per_label(INDEX)
    # Volume 100: label 0 begins decile 1, label 1 the sixth, 2 and 3 the last two, and 4 was never trained.
    expected: list[Any] = [None] * NUM_DECILES
    expected[0], expected[5], expected[8], expected[9] = 2, 0, 1, 0
    assert found["mean"] == expected
    assert found["labels"] == [1, 0, 0, 0, 0, 1, 0, 0, 1, 2]
    assert (found["in_none"], found["in_one"], found["in_several"]) == (3, 1, 1)


def test_sizes_and_labels_that_nothing_leads_to() -> None:
    found = index_analysis.cluster_sizes(INDEX)
    assert found["first"] == {"least": 2, "median": 2.5, "most": 3}
    assert found["learned"] == {"least": 1, "median": 1.5, "most": 2}
    assert sum(found["clusters_in_bin"]) == found["clusters"] == 2
    assert found["unreachable_labels"] == 1


def test_by_name() -> None:
    assert index_analysis.largest_clusters(INDEX, name_of) == [
        {"cluster": 0, "labels": 2, "about": ["a", "c", "b"]},
        {"cluster": 1, "labels": 1, "about": ["a", "d"]},
    ]
    most = index_analysis.labels_in_most_clusters(INDEX, name_of)
    assert [(label["label"], label["clusters"]) for label in most] == [("a", 2), ("c", 1), ("b", 0), ("d", 0), ("e", 0)]
    assert most[0]["training_points"] == 50


def test_equal_edges_are_named_by_frequency() -> None:
    index = Index(
        np.array([[0, 1, 2]], np.int32), np.ones((1, 3), np.float32), np.zeros(3, np.int32), np.array([1, 9, 5])
    )
    assert index.best_labels(0, 2) == [1, 2]


def test_nearest_clusters() -> None:
    classifiers = np.array([[2.0, 0.0], [1.0, 1.0]], np.float32)
    found = index_analysis.nearest_clusters(INDEX, classifiers, name_of, seed=0)
    (pair,) = found["pairs"]
    assert pair["clusters"] == [0, 1]
    assert pair["cosine"] == pytest.approx(0.5**0.5)
    assert (found["compared"], found["clusters"]) == (2, 2)


def test_one_cluster_has_no_neighbour() -> None:
    one = replace(INDEX, labels_CR=INDEX.labels_CR[:1], scores_CR=INDEX.scores_CR[:1])
    found = index_analysis.nearest_clusters(one, np.ones((1, 2), np.float32), name_of, seed=0)
    assert found["pairs"] == []


def test_clusters_that_no_training_point_goes_to_are_nobodys_neighbours() -> None:
    """Their classifiers are all alike."""
    labels = np.array([[0], [1], [2], [3]], np.int32)
    index = Index(labels, np.ones((4, 1), np.float32), np.arange(4, dtype=np.int32), np.array([0, 5, 0, 2]))
    classifiers = np.array([[1, 0], [0, 1], [1, 0], [1, 1]], np.float32)
    found = index_analysis.nearest_clusters(index, classifiers, str, seed=0)
    assert [pair["clusters"] for pair in found["pairs"]] == [[1, 3]]
    assert (found["compared"], found["clusters"]) == (2, 2)


def test_of_many_clusters_a_sample_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_analysis, "CLUSTERS_COMPARED", 3)
    count = 8
    index = Index(
        np.zeros((count, 1), np.int32), np.ones((count, 1), np.float32), np.zeros(1, np.int32), np.ones(1, np.int64)
    )
    vectors = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    found = index_analysis.nearest_clusters(index, vectors, name_of, seed=1)
    assert (found["compared"], found["clusters"]) == (3, 8)
    assert 1 <= len(found["pairs"]) <= 3
