"""Metrics against hand-made arithmetic and against the definitions written as plain loops."""

import math
import pickle
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from elias_ray.metrics import METRIC_NAMES, Metrics, format_table, inverse_propensity, label_deciles

A, B = 0.55, 1.5
NUM_TRAIN = 100
Ranked = Sequence[Sequence[tuple[int, float]]]  # per point: (label, score)
LabelSets = Sequence[Sequence[int]]  # per point: labels


def new_metrics(label_frequency: Sequence[int]) -> Metrics:
    return Metrics(np.array(label_frequency), NUM_TRAIN, propensity_a=A, propensity_b=B)


def binary(label_sets: LabelSets, num_labels: int) -> sp.csr_matrix:
    dense = np.zeros((len(label_sets), num_labels), dtype=np.float32)
    for i, labels in enumerate(label_sets):
        dense[i, list(labels)] = 1
    return sp.csr_matrix(dense)


def padded(predictions: Ranked, width: int = 0) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    width = max([width, *map(len, predictions)])
    labels = np.full((len(predictions), width), -1)
    scores = np.full((len(predictions), width), np.nan)  # the score of padding must not matter
    for i, row in enumerate(predictions):
        for j, (label, score) in enumerate(row):
            labels[i, j], scores[i, j] = label, score
    return labels, scores


def measured(
    frequency: Sequence[int], predictions: Ranked, truth: LabelSets, filtered: LabelSets | None = None
) -> Metrics:
    metrics = new_metrics(frequency)
    filtered_matrix = None if filtered is None else binary(filtered, len(frequency))
    metrics.update(*padded(predictions), binary(truth, len(frequency)), filtered_matrix)
    return metrics


def naive(
    frequency: Sequence[int], predictions: Ranked, truth: LabelSets, filtered: LabelSets, labels_that_hit: set[int]
) -> dict[str, float]:
    """The definitions, one point and one rank at a time; only `labels_that_hit` may score."""
    c = (math.log(NUM_TRAIN) - 1) * (B + 1) ** A
    weight = [1 + c / (n + B) ** A for n in frequency]
    result = {}
    for name in METRIC_NAMES:
        family, k = name.split("@")[0], int(name.split("@")[1])
        achieved = possible = 0.0
        for row, true, hidden in zip(predictions, truth, filtered, strict=True):
            if not true:
                continue
            ranking = [label for label, _ in sorted(row, key=lambda pair: (-pair[1], pair[0])) if label not in hidden]
            hit_ranks = {
                rank: label
                for rank, label in enumerate(ranking[:k], start=1)
                if label in true and label in labels_that_hit
            }
            if family == "P":
                achieved += len(hit_ranks) / k
                possible += 1
            elif family == "R":
                achieved += len(hit_ranks) / len(true)
                possible += 1
            elif family == "nDCG":
                ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(k, len(true)) + 1))
                achieved += sum(1 / math.log2(rank + 1) for rank in hit_ranks) / ideal
                possible += 1
            else:
                achieved += sum(weight[label] for label in hit_ranks.values())
                possible += sum(sorted((weight[label] for label in true), reverse=True)[:k])
        result[name] = 100 * achieved / possible
    return result


# ---- by hand


def test_the_names_are_the_papers_columns_in_order() -> None:
    expected = ["P@1", "P@3", "P@5", "nDCG@1", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@10", "R@20", "R@100"]
    assert expected == METRIC_NAMES
    metrics = measured([5], [[(0, 1.0)]], [[0]])
    assert list(metrics.result()) == expected
    assert list(metrics.by_decile()) == expected


def test_two_points_by_hand() -> None:
    frequency = [50, 20, 10, 5, 1, 0]
    # Point 0 is true at ranks 1 and 3 and misses label 5; point 1 is true at rank 2 only.
    predictions = [[(2, 0.1), (0, 0.9), (3, 0.5)], [(0, 0.8), (1, 0.7), (2, 0.6)]]
    result = measured(frequency, predictions, [[0, 2, 5], [1]]).result()

    assert result["P@1"] == pytest.approx(100 * (1 + 0) / 2)
    assert result["P@3"] == pytest.approx(100 * (2 / 3 + 1 / 3) / 2)
    assert result["P@5"] == pytest.approx(100 * (2 / 5 + 1 / 5) / 2)

    # Discounts: rank 1: 1/log2(2) = 1, rank 2: 1/log2(3) = 0.6309298, rank 3: 1/log2(4) = 0.5.
    # Point 0: (1 + 0.5) / (1 + 0.6309298 + 0.5) = 0.7039181; point 1: 0.6309298 / 1.
    assert result["nDCG@1"] == pytest.approx(50)
    assert result["nDCG@3"] == pytest.approx(100 * (0.7039181 + 0.6309298) / 2, abs=1e-4)
    assert result["nDCG@5"] == pytest.approx(result["nDCG@3"])  # three true labels at most, nothing at ranks 4, 5

    # C = (ln 100 - 1) * 2.5^0.55 = 3.605170 * 1.655263 = 5.967505; the weight is 1 + C * (frequency + 1.5)^-0.55:
    w0 = 1.682808  # 1 + 5.967505 * 51.5^-0.55 = 1 + 5.967505 * 0.114421
    w1 = 2.103956  # 1 + 5.967505 * 21.5^-0.55 = 1 + 5.967505 * 0.184995
    w2 = 2.557432  # 1 + 5.967505 * 11.5^-0.55 = 1 + 5.967505 * 0.260985
    w5 = 5.774661  # 1 + 5.967505 * 1.5^-0.55 = 1 + 5.967505 * 0.800110
    # Best for point 0 is the order 5, 2, 0; for point 1 it is label 1 alone.
    assert result["PSP@1"] == pytest.approx(100 * (w0 + 0) / (w5 + w1), abs=1e-4)
    assert result["PSP@3"] == pytest.approx(100 * ((w0 + w2) + w1) / ((w5 + w2 + w0) + w1), abs=1e-4)
    assert result["PSP@5"] == pytest.approx(result["PSP@3"])

    for name in ("R@10", "R@20", "R@100"):
        assert result[name] == pytest.approx(100 * (2 / 3 + 1 / 1) / 2)


def test_ties_go_to_the_smaller_label_whatever_the_input_order() -> None:
    tied = [[(3, 0.5), (1, 0.5), (2, 0.5)]]
    # The ranking is 1, 2, 3.
    assert measured([9] * 4, tied, [[1]]).result()["P@1"] == 100
    assert measured([9] * 4, tied, [[3]]).result()["P@1"] == 0
    # Label 2 stands at rank 2: nDCG@3 = 1/log2(3).
    assert measured([9] * 4, tied, [[2]]).result()["nDCG@3"] == pytest.approx(100 / math.log2(3))
    assert measured([9] * 4, tied, [[2]]).result() == measured([9] * 4, [tied[0][::-1]], [[2]]).result()


def test_negative_and_zero_scores_are_scores() -> None:
    # The ranking is 2 (0.0), 0 (-1.0), 1 (-5.0); the padding of the first point does not come before them.
    predictions = [[(0, -1.0), (1, -5.0), (2, 0.0)], [(0, 3.0), (1, 2.0), (2, 1.0), (3, 0.0)]]
    result = measured([9] * 4, predictions, [[2], [0]]).result()
    assert result["P@1"] == 100


def test_a_filtered_pair_leaves_the_ranking_but_not_the_truth() -> None:
    frequency = [50, 20, 10, 5]
    predictions = [[(0, 0.9), (1, 0.8), (2, 0.7)]]
    # Label 0, false and filtered, makes room: 1 is first.
    moved_up = measured(frequency, predictions, [[1]], filtered=[[0]])
    assert moved_up.result()["P@1"] == 100
    assert measured(frequency, predictions, [[1]]).result()["P@1"] == 0
    # Label 0, true and filtered, cannot be hit and still counts: R = 1/2, and the ideals hold two labels.
    result = measured(frequency, predictions, [[0, 1]], filtered=[[0]]).result()
    assert result["R@10"] == pytest.approx(50)
    assert result["nDCG@3"] == pytest.approx(100 * 1 / (1 + 1 / math.log2(3)))
    weight = inverse_propensity(np.array(frequency), NUM_TRAIN, A, B)
    assert result["PSP@3"] == pytest.approx(100 * weight[1] / (weight[0] + weight[1]))
    # A pair is of one point: the filter of the first does not touch the second.
    two = measured(frequency, [predictions[0], predictions[0]], [[0], [0]], filtered=[[0], []])
    assert two.result()["P@1"] == pytest.approx(50)


def test_fewer_predictions_than_k_are_misses() -> None:
    # One prediction, two true labels, one found: P@5 = 1/5, R@100 = 1/2.
    result = measured([9] * 4, [[(1, 0.3)]], [[1, 2]]).result()
    assert result["P@5"] == pytest.approx(20)
    assert result["R@100"] == pytest.approx(50)
    assert set(measured([9] * 4, [[]], [[1, 2]]).result().values()) == {0.0}  # (1, 0) arrays
    # Everything filtered away.
    assert set(measured([9] * 4, [[(1, 0.3)]], [[1]], filtered=[[1]]).result().values()) == {0.0}


def test_padding_of_a_point_is_not_the_last_label_of_the_point_before() -> None:
    # Point 0 carries the last label, unpredicted; point 1 is nothing but padding.
    labels, scores = padded([[(0, 1.0)], []], width=2)
    for filtered in (None, binary([[0], []], 2)):
        metrics = new_metrics([9, 9])
        metrics.update(labels, scores, binary([[1], [1]], 2), filtered)
        assert set(metrics.result().values()) == {0.0}


def test_a_point_without_labels_is_in_no_mean_and_is_counted() -> None:
    predictions = [[(0, 0.9), (1, 0.2)], [(1, 0.9)], [(2, 0.4)]]
    metrics = measured([9, 8, 7], predictions, [[0], [], [2, 1]])
    without = measured([9, 8, 7], [predictions[0], predictions[2]], [[0], [2, 1]])
    assert metrics.result() == without.result()
    assert (metrics.num_points, metrics.num_points_without_labels) == (3, 1)
    assert (without.num_points, without.num_points_without_labels) == (2, 0)


def test_no_point_with_labels_is_an_error_not_a_nan() -> None:
    empty = new_metrics([9, 9])
    with pytest.raises(ValueError, match="none of the 0 points"):
        empty.result()
    with pytest.raises(ValueError, match="none of the 2 points"):
        measured([9, 9], [[(0, 1.0)], []], [[], []]).by_decile()


def test_a_label_never_trained_can_be_hit_and_weighs_most() -> None:
    frequency = [60, 3, 0]
    weight = inverse_propensity(np.array(frequency), NUM_TRAIN, A, B)
    assert weight[0] < weight[1] < weight[2] < math.inf
    metrics = measured(frequency, [[(2, 0.9), (0, 0.8)]], [[0, 2]])
    assert metrics.result()["PSP@1"] == pytest.approx(100)
    assert metrics.by_decile()["P@1"] == pytest.approx([0] * 9 + [100])


def test_explicit_zeros_and_repeated_entries_of_a_sparse_truth() -> None:
    # (0, 1) is stored as 0 and hence not true; (0, 0) is stored twice and is one true label.
    truth = sp.csr_matrix((np.array([1.0, 1.0, 0.0]), np.array([0, 0, 1]), np.array([0, 3])), shape=(1, 2))
    metrics = new_metrics([9, 9])
    metrics.update(*padded([[(0, 0.9), (1, 0.8)]]), truth)
    assert metrics.result()["R@10"] == 100
    assert metrics.result()["P@3"] == pytest.approx(100 / 3)


def test_sparse_arrays_and_small_types_count_the_same() -> None:
    labels, scores = padded([[(0, 0.5), (2, 0.25)], [(1, 1.0), (2, 0.5)]])
    truth = binary([[2], [1, 0]], 3)
    wide, narrow = new_metrics([9, 5, 1]), new_metrics([9, 5, 1])
    wide.update(labels, scores, truth)
    narrow.update(labels.astype(np.int8), scores.astype(np.float16), sp.csr_array(truth.astype(bool)))
    assert wide.result() == narrow.result()


def test_update_leaves_its_inputs_alone() -> None:
    labels, scores = padded([[(2, 0.5), (0, 0.5)], [(1, 0.1)]])
    truth, filtered = binary([[0], [1]], 3), binary([[2], []], 3)
    before = [labels.copy(), scores.copy(), truth.toarray(), filtered.toarray()]
    new_metrics([9, 9, 9]).update(labels, scores, truth, filtered)
    for old, new in zip(before, [labels, scores, truth.toarray(), filtered.toarray()], strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_perfect_prediction() -> None:
    rng = np.random.default_rng(0)
    frequency = rng.integers(0, 60, 200).tolist()
    weight = inverse_propensity(np.array(frequency), NUM_TRAIN, A, B)
    truth = [rng.choice(200, size=size, replace=False).tolist() for size in (5, 6, 9, 10, 7)]
    # Scored by weight, so that PSP, too, is at its best.
    result = measured(frequency, [[(label, weight[label]) for label in row] for row in truth], truth).result()
    assert result == pytest.approx(dict.fromkeys(METRIC_NAMES, 100.0))
    # With a single true label P@3 can be no better than 1/3, all else stays at 100.
    result = measured(frequency, [[(4, 1.0)]], [[4]]).result()
    expected = dict.fromkeys(METRIC_NAMES, 100.0) | {"P@3": 100 / 3, "P@5": 20.0}
    assert result == pytest.approx(expected)


# ---- deciles


def test_deciles_hold_volume_head_first() -> None:
    # Volume 100, label 3 first: it begins at 0, label 0 at 50, label 1 at 70, labels 2 and 5 at 80 and 90.
    frequency = np.array([20, 10, 10, 50, 0, 10])
    assert label_deciles(frequency).tolist() == [5, 7, 8, 0, 9, 9]


def test_deciles_of_equal_labels_are_tenths_by_id() -> None:
    assert label_deciles(np.full(20, 7)).tolist() == [d for d in range(10) for _ in range(2)]


def test_deciles_of_untrained_labels_are_the_last() -> None:
    assert label_deciles(np.zeros(3, dtype=np.int64)).tolist() == [9, 9, 9]
    assert label_deciles(np.array([0, 1, 0])).tolist() == [9, 0, 9]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60))
def test_deciles_fall_with_frequency_and_none_overflows_by_more_than_a_label(frequency: list[int]) -> None:
    deciles = label_deciles(np.array(frequency))
    order = sorted(range(len(frequency)), key=lambda label: (-frequency[label], label))
    in_order = deciles[order].tolist()
    assert in_order == sorted(in_order)
    assert set(in_order) <= set(range(10))
    for d in range(10):
        volume = sum(n for n, decile in zip(frequency, deciles, strict=True) if decile == d)
        largest = max((n for n, decile in zip(frequency, deciles, strict=True) if decile == d), default=0)
        assert volume <= sum(frequency) / 10 + largest


def test_a_decile_is_a_contribution_over_the_unchanged_denominator() -> None:
    # Ten labels of equal frequency: label l is decile l. One point, four true labels, of which 1 and 6 are found.
    by_decile = measured([7] * 10, [[(1, 0.9), (6, 0.8), (0, 0.1)]], [[1, 6, 8, 9]]).by_decile()
    assert by_decile["R@10"] == pytest.approx([0, 25, 0, 0, 0, 0, 25, 0, 0, 0])
    assert by_decile["P@1"] == pytest.approx([0, 100, 0, 0, 0, 0, 0, 0, 0, 0])


# ---- against the definitions, and in pieces


@st.composite
def shards(draw: st.DrawFn) -> tuple[list[int], Ranked, LabelSets, LabelSets]:
    """Few labels and few distinct scores, so that ties, filtered hits and empty points are common."""
    num_labels = draw(st.integers(1, 14))
    frequency = draw(st.lists(st.integers(0, 30), min_size=num_labels, max_size=num_labels))
    num_points = draw(st.integers(1, 8))
    labels = st.lists(st.integers(0, num_labels - 1), unique=True)
    score = st.sampled_from([-1.5, 0.0, 0.25, 0.5, 2.0]) | st.floats(-1e3, 1e3, width=32)
    prediction = labels.flatmap(lambda row: st.tuples(*(st.tuples(st.just(label), score) for label in row)))
    truth = draw(st.lists(labels, min_size=num_points, max_size=num_points).filter(any))
    predictions = draw(st.lists(prediction, min_size=num_points, max_size=num_points))
    filtered = draw(st.lists(labels, min_size=num_points, max_size=num_points))
    return frequency, predictions, truth, filtered


@settings(deadline=None, max_examples=150)
@given(shards())
def test_equals_the_definitions(shard: tuple[list[int], Ranked, LabelSets, LabelSets]) -> None:
    frequency, predictions, truth, filtered = shard
    all_labels = set(range(len(frequency)))
    nothing: LabelSets = [[] for _ in truth]
    assert measured(frequency, predictions, truth).result() == pytest.approx(
        naive(frequency, predictions, truth, nothing, all_labels)
    )
    metrics = measured(frequency, predictions, truth, filtered)
    assert metrics.result() == pytest.approx(naive(frequency, predictions, truth, filtered, all_labels))

    deciles = label_deciles(np.array(frequency))
    for d in range(10):
        expected = naive(frequency, predictions, truth, filtered, set(np.flatnonzero(deciles == d).tolist()))
        assert {name: values[d] for name, values in metrics.by_decile().items()} == pytest.approx(expected)


def random_shard(seed: int) -> tuple[list[int], Ranked, LabelSets, LabelSets]:
    """Deep rankings (up to 150 of 300 labels), unlike the small ones above: R@10, @20 and @100 all differ."""
    rng = np.random.default_rng(seed)
    frequency = np.minimum(rng.zipf(1.5, 300), NUM_TRAIN) - 1
    predictions, truth, filtered = [], [], []
    for _ in range(60):
        predicted = rng.choice(300, size=rng.integers(0, 150), replace=False)
        predictions.append([(int(label), float(rng.integers(0, 40)) / 8) for label in predicted])
        truth.append(rng.choice(300, size=rng.integers(0, 30), replace=False).tolist())
        filtered.append(rng.choice(300, size=rng.integers(0, 20), replace=False).tolist())
    return frequency.tolist(), predictions, truth, filtered


@pytest.mark.parametrize("seed", range(3))
def test_deep_rankings_equal_the_definitions_and_deciles_sum_to_the_total(seed: int) -> None:
    frequency, predictions, truth, filtered = random_shard(seed)
    metrics = measured(frequency, predictions, truth, filtered)
    result = metrics.result()
    assert result == pytest.approx(naive(frequency, predictions, truth, filtered, set(range(300))))
    assert 0 < result["R@10"] < result["R@20"] < result["R@100"] < 100
    by_decile = metrics.by_decile()
    assert len(by_decile) == 12
    for name, values in by_decile.items():
        assert len(values) == 10
        assert sum(values) == pytest.approx(result[name])


@pytest.mark.parametrize("seed", range(3))
def test_random_pieces_merged_equal_one_update(seed: int) -> None:
    frequency, predictions, truth, filtered = random_shard(seed)
    whole = measured(frequency, predictions, truth, filtered)

    rng = np.random.default_rng(seed)
    labels, scores = padded(predictions)
    true_matrix, filter_matrix = binary(truth, 300), binary(filtered, 300)
    processes = [new_metrics(frequency) for _ in range(3)]
    cuts = np.sort(rng.integers(0, len(truth), 7))  # equal cuts make empty pieces
    for piece in np.split(rng.permutation(len(truth)), cuts):
        process = processes[rng.integers(3)]
        process.update(labels[piece], scores[piece], true_matrix[piece], filter_matrix[piece])
    merged = new_metrics(frequency)
    for process in processes:
        merged.merge(pickle.loads(pickle.dumps(process)))

    assert merged.result() == pytest.approx(whole.result(), rel=1e-12)
    for name, values in merged.by_decile().items():
        assert values == pytest.approx(whole.by_decile()[name], rel=1e-12)
    assert merged.num_points == whole.num_points == 60
    assert merged.num_points_without_labels == whole.num_points_without_labels


# ---- errors


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([(0, 0.5), (2, 0.4), (0, 0.3)], "row 1 of the shard holds a label predicted twice: 0"),
        ([(0, 0.5), (3, 0.4)], "row 1 of the shard holds a predicted label outside 0..2 (-1 pads): 3"),
        ([(-2, 0.5), (1, 0.4)], "row 1 of the shard holds a predicted label outside 0..2 (-1 pads): -2"),
        ([(0, 0.5), (1, math.nan)], "row 1 of the shard holds a score that is not finite: nan"),
        ([(0, 0.5), (1, -math.inf)], "row 1 of the shard holds a score that is not finite: -inf"),
    ],
)
def test_a_bad_prediction_is_named_and_adds_nothing(row: list[tuple[int, float]], message: str) -> None:
    metrics = measured([9, 9, 9], [[(1, 0.5)]], [[1]])
    before = metrics.result()
    with pytest.raises(ValueError, match=re.escape(message)):
        metrics.update(*padded([[(0, 1.0)], row]), binary([[0], [1]], 3))
    assert (metrics.result(), metrics.num_points) == (before, 1)


def test_shapes_and_types_that_do_not_fit() -> None:
    metrics = new_metrics([9, 9, 9])
    labels, scores = padded([[(0, 1.0)], [(1, 1.0)]])
    truth = binary([[0], [1]], 3)
    with pytest.raises(ValueError, match=re.escape("must both be (B, K), but are (2, 1) and (1, 1)")):
        metrics.update(labels, scores[:1], truth)
    with pytest.raises(ValueError, match=r"signed integers .* float64"):
        metrics.update(labels.astype(np.float64), scores, truth)
    with pytest.raises(ValueError, match=re.escape("true_labels_BL must be (B, L) = (2, 3), but is (1, 3)")):
        metrics.update(labels, scores, truth[:1])
    with pytest.raises(ValueError, match=re.escape("filtered_BL must be (B, L) = (2, 3), but is (2, 2)")):
        metrics.update(labels, scores, truth, truth[:, :2])
    assert metrics.num_points == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label_frequency_L": np.array([0.5, 1.0])}, "must be integers"),
        ({"label_frequency_L": np.array([], dtype=np.int64)}, "L > 0"),
        ({"label_frequency_L": np.array([5, -1])}, "label 1 has training frequency -1"),
        ({"label_frequency_L": np.array([5, 101])}, "label 1 has training frequency 101"),
        ({"label_frequency_L": np.array([1, 1]), "num_train_points": 2}, "at least 3"),
        ({"propensity_b": 0.0}, "b > 0"),
        ({"propensity_a": math.nan}, "propensity_a"),
    ],
)
def test_bad_arguments_are_named(changed: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "label_frequency_L": np.array([5, 1]),
        "num_train_points": NUM_TRAIN,
        "propensity_a": A,
        "propensity_b": B,
    }
    Metrics(**good)
    with pytest.raises(ValueError, match=message):
        Metrics(**(good | changed))


def test_only_metrics_of_the_same_labels_merge() -> None:
    metrics = new_metrics([9, 5])
    for other in (
        new_metrics([5, 9]),
        new_metrics([9, 5, 1]),
        Metrics(np.array([9, 5]), NUM_TRAIN, propensity_a=0.6, propensity_b=2.6),
    ):
        with pytest.raises(ValueError, match="cannot merge"):
            metrics.merge(other)


# ---- table and imports


def test_table_is_aligned_in_the_papers_order() -> None:
    rows = {"stage 1": {"R@100": 58.814, "P@1": 36.956, "P@5": 5.0}, "+ stage 2": {"P@1": 100.0, "R@100": 62.88}}
    assert format_table(rows).split("\n") == [
        "              P@1   P@5  R@100",
        "stage 1     36.96  5.00  58.81",
        "+ stage 2  100.00     -  62.88",
    ]
    with pytest.raises(ValueError, match=re.escape("row 'x' has unknown metrics ['P@2']")):
        format_table({"x": {"P@2": 1.0}})


def test_a_full_row_has_every_metric() -> None:
    header, row = format_table({"all": measured([9], [[(0, 1.0)]], [[0]]).result()}).split("\n")
    assert header.split() == METRIC_NAMES
    assert row.split() == ["all", "100.00", "33.33", "20.00", *["100.00"] * 9]


def test_the_module_needs_neither_ray_nor_torch_nor_deepspeed() -> None:
    code = "import sys, elias_ray.metrics; print(sorted({'ray', 'torch', 'deepspeed'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"
