"""Averages over the union, against a naive sum in a dictionary."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elias_ray.ensemble import average
from elias_ray.metrics import PAD
from elias_ray.predictions import Predicted


def predicted(*rows: dict[int, float]) -> Predicted:
    counts = np.array([len(row) for row in rows])
    labels = np.array([label for row in rows for label in row], np.int32)
    scores = np.array([score for row in rows for score in row.values()], np.float32)
    return Predicted.of_lists(counts, labels, scores)


def test_by_hand() -> None:
    united = average([predicted({3: 0.9, 1: 0.5}), predicted({1: 0.8, 2: 0.7, 5: 0.1})], size=3)
    assert united.labels_NK.tolist() == [[1, 3, 2]]
    np.testing.assert_allclose(united.scores_NK, [[0.65, 0.45, 0.35]], rtol=1e-6)


def test_of_equal_scores_the_smaller_label_comes_first() -> None:
    assert average([predicted({9: 0.5, 4: 0.5, 7: 0.5})]).labels_NK.tolist() == [[4, 7, 9]]


# Scores and numbers of members whose means are exact in any order of adding up.
rows = st.dictionaries(st.integers(0, 9), st.sampled_from([0.0, 0.25, 0.5, 1.0]), max_size=6)
shapes = st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 4]))
members = shapes.flatmap(
    lambda shape: st.lists(st.lists(rows, min_size=shape[0], max_size=shape[0]), min_size=shape[1], max_size=shape[1])
)


@given(members, st.integers(1, 12))
def test_equals_a_naive_average(models: list[list[dict[int, float]]], size: int) -> None:
    united = average([predicted(*model) for model in models], size)
    for row in range(len(models[0])):
        sums: dict[int, float] = {}
        for model in models:
            for label, score in model[row].items():
                sums[label] = sums.get(label, 0) + score / len(models)
        expected = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:size]
        found = zip(united.labels_NK[row].tolist(), united.scores_NK[row].tolist(), strict=True)
        assert [(label, score) for label, score in found if label != PAD] == expected
