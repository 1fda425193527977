"""P, nDCG, PSP and R of ranked labels: streamed over prediction shards, in per cent, in total and per label decile.

Conventions, which are those of the published figures (xclib) except for the last:
  * A ranking is by score, highest first; equal scores by label id, smallest first. Input order means nothing.
  * Filtered pairs (the reciprocal pairs of the "LF-" sets) leave the predictions before ranking, but not the
    truth: a true label that is filtered can never be hit and still counts in every ideal and denominator.
  * nDCG@k divides by the ideal over min(k, number of true labels). P@k divides by k, even where a point has fewer
    true labels or predictions.
  * PSP@k is a ratio of two sums over all points: what was achieved over the best that any ranking could achieve.
  * A point without true labels is left out of every mean and counted apart (xclib counts it as a miss).

Legend: B points of a shard, K predictions per point, L labels, T true pairs of a shard, H hits, M metrics, D deciles.
A "pair" is a (point, label), held as one integer so that sorting and searching need no loop.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

IntArray = npt.NDArray[np.integer[Any]]
FloatArray = npt.NDArray[np.floating[Any]]

PAD = -1  # where a row has fewer labels than others, here and wherever labels stand in a table
NUM_DECILES = 10
# In the paper's column order, which is also the order of every table and of the axis M.
METRICS = [(family, k) for family in ("P", "nDCG", "PSP") for k in (1, 3, 5)] + [("R", k) for k in (10, 20, 100)]
METRIC_NAMES = [f"{family}@{k}" for family, k in METRICS]

# Entry r - 1 belongs to rank r. nDCG goes no deeper than 5.
_IDEAL_DCG = np.cumsum(1 / np.log2(np.arange(1, 6) + 1))


def label_deciles(label_frequency_L: IntArray) -> npt.NDArray[np.int8]:
    """The decile, 0 (head) to 9 (tail), of each label: (L,).

    Labels stand in order of training frequency, highest first, equal ones by id. A decile holds a tenth of their
    volume (the sum of the frequencies), not of their number; a label belongs to the decile in which its own volume
    begins. Labels never trained have no volume and go to the last decile.
    """
    frequency_L = label_frequency_L.astype(np.int64)
    order_L = np.argsort(-frequency_L, kind="stable")
    sorted_L = frequency_L[order_L]
    volume_before_L = np.cumsum(sorted_L) - sorted_L
    sorted_deciles_L = NUM_DECILES * volume_before_L // max(1, int(frequency_L.sum()))
    deciles_L = np.empty(frequency_L.size, dtype=np.int8)
    deciles_L[order_L] = np.where(sorted_L == 0, NUM_DECILES - 1, sorted_deciles_L)
    return deciles_L


def inverse_propensity(label_frequency_L: IntArray, num_train_points: int, a: float, b: float) -> FloatArray:
    """1 / p_l of Jain et al. for each label: (L,)."""
    c = (np.log(num_train_points) - 1) * (b + 1) ** a
    weight_L: FloatArray = 1 + c * (label_frequency_L + b) ** -a
    return weight_L


class Metrics:
    """Sums over the points seen so far; `update` adds a shard, `merge` adds what another process has seen.

    Pickled, it weighs 9 bytes per label. `num_points` counts all points, `num_points_without_labels` those of
    them that no mean includes.
    """

    def __init__(
        self, label_frequency_L: IntArray, num_train_points: int, *, propensity_a: float, propensity_b: float
    ) -> None:
        """label_frequency_L: (L,), the number of training points that carry each label."""
        frequency_L = np.asarray(label_frequency_L)
        if frequency_L.ndim != 1 or frequency_L.size == 0 or not np.issubdtype(frequency_L.dtype, np.integer):
            found = f"{frequency_L.dtype} of shape {frequency_L.shape}"
            raise ValueError(f"label_frequency_L must be integers of shape (L,), L > 0, but is {found}")
        outside_L = (frequency_L < 0) | (frequency_L > num_train_points)
        if outside_L.any():
            label = int(outside_L.argmax())
            found = f"label {label} has training frequency {frequency_L[label]}"
            raise ValueError(f"{found}, which is not within 0..num_train_points = {num_train_points}")
        # Below 3 points log N < 1 and the propensity formula gives rare labels the smaller weights.
        if num_train_points < 3:
            raise ValueError(f"num_train_points must be at least 3 for propensities, but is {num_train_points}")
        if not (0 <= propensity_a < np.inf and 0 < propensity_b < np.inf):
            raise ValueError(f"propensity_a must be >= 0 and b > 0, but they are {propensity_a} and {propensity_b}")
        self.num_labels = frequency_L.size
        self.num_points = 0
        self.num_points_without_labels = 0
        self._inverse_propensity_L = inverse_propensity(frequency_L, num_train_points, propensity_a, propensity_b)
        self._decile_L = label_deciles(frequency_L)
        self._achieved_MD = np.zeros((len(METRICS), NUM_DECILES))
        self._possible_M = np.zeros(len(METRICS))

    def update(
        self,
        predicted_labels_BK: IntArray,
        scores_BK: FloatArray,
        true_labels_BL: sp.csr_matrix,
        filtered_BL: sp.csr_matrix | None = None,
    ) -> None:
        """Adds the points of one shard; a shard that raises adds nothing.

        predicted_labels_BK, scores_BK: (B, K), in any order; label -1 pads a point with fewer predictions.
        true_labels_BL, filtered_BL: (B, L) sparse; each non-zero entry is a true, or a filtered, pair.
        """
        labels_BK, scores_BK = self._sorted_by_label(np.asarray(predicted_labels_BK), np.asarray(scores_BK))
        num_points, depth = labels_BK.shape
        true_pairs_T = self._pairs(true_labels_BL, num_points, "true_labels_BL")
        predicted_pairs = self._as_pairs(np.arange(num_points)[:, None], labels_BK).ravel()
        if filtered_BL is not None:
            filtered_pairs = self._pairs(filtered_BL, num_points, "filtered_BL")
            scores_BK.flat[_find(filtered_pairs, predicted_pairs)] = -np.inf

        # A stable sort of what is sorted by label breaks ties by label. Removed predictions, at -inf, come last.
        order_BK = np.argsort(-scores_BK, axis=1, kind="stable")
        rank_BK = np.empty_like(order_BK)
        np.put_along_axis(rank_BK, order_BK, np.arange(1, depth + 1)[None, :], axis=1)

        position_H = _find(true_pairs_T, predicted_pairs)
        position_H = position_H[scores_BK.ravel()[position_H] > -np.inf]
        label_H, rank_H = labels_BK.ravel()[position_H], rank_BK.ravel()[position_H]
        true_point_T, slot_T = np.divmod(true_pairs_T, self.num_labels + 1)
        num_true_B = np.bincount(true_point_T, minlength=num_points)
        num_true_H = num_true_B[position_H // max(1, depth)]
        num_labelled = int(np.count_nonzero(num_true_B))

        # A point's true labels in the best order for PSP: the rarest, hence heaviest, first.
        weight_T = self._inverse_propensity_L[slot_T - 1]
        best_weight_T = weight_T[np.lexsort((-weight_T, true_point_T))]
        best_rank_T = 1 + np.arange(true_pairs_T.size) - (np.cumsum(num_true_B) - num_true_B)[true_point_T]

        for m, (family, k) in enumerate(METRICS):
            possible: float = num_labelled
            if family == "P":
                gain_H = np.ones(rank_H.size)
                possible = k * num_labelled
            elif family == "nDCG":
                gain_H = 1 / np.log2(rank_H + 1) / _IDEAL_DCG[np.minimum(k, num_true_H) - 1]
            elif family == "PSP":
                gain_H = self._inverse_propensity_L[label_H]
                possible = float(best_weight_T[best_rank_T <= k].sum())
            else:
                gain_H = 1 / num_true_H
            in_top_H = rank_H <= k
            self._achieved_MD[m] += np.bincount(
                self._decile_L[label_H[in_top_H]], weights=gain_H[in_top_H], minlength=NUM_DECILES
            )
            self._possible_M[m] += possible
        self.num_points += num_points
        self.num_points_without_labels += num_points - num_labelled

    def merge(self, other: "Metrics") -> None:
        """Adds the points that `other` has seen; both must have been made for the same labels and propensities."""
        if not (
            np.array_equal(self._inverse_propensity_L, other._inverse_propensity_L)
            and np.array_equal(self._decile_L, other._decile_L)
        ):
            raise ValueError("cannot merge metrics made with different label frequencies, num_train_points or a, b")
        self._achieved_MD += other._achieved_MD
        self._possible_M += other._possible_M
        self.num_points += other.num_points
        self.num_points_without_labels += other.num_points_without_labels

    def result(self) -> dict[str, float]:
        """Every metric of METRIC_NAMES, in per cent."""
        return dict(zip(METRIC_NAMES, self._percent(self._achieved_MD.sum(axis=1)).tolist(), strict=True))

    def by_decile(self) -> dict[str, list[float]]:
        """What each label decile, head first, contributes to every metric, in per cent: ten values per metric.

        A contribution counts only the hits of the decile's labels but keeps the metric's denominator, so the ten
        values sum to the metric ("decile wise contribution" in the paper's figure 5); it is not the metric of a
        test set reduced to those labels.
        """
        return dict(zip(METRIC_NAMES, self._percent(self._achieved_MD.T).T.tolist(), strict=True))

    def _percent(self, achieved_M: FloatArray) -> FloatArray:
        if self.num_points == self.num_points_without_labels:
            raise ValueError(f"no metric is defined: none of the {self.num_points} points seen has a true label")
        return 100 * achieved_M / self._possible_M

    def _sorted_by_label(self, labels_BK: IntArray, scores_BK: FloatArray) -> tuple[IntArray, FloatArray]:
        """Checked copies with each row in order of label, padding first and its scores -inf."""
        if labels_BK.ndim != 2 or labels_BK.shape != scores_BK.shape:
            found = f"{labels_BK.shape} and {scores_BK.shape}"
            raise ValueError(f"predicted labels and scores must both be (B, K), but are {found}")
        if not np.issubdtype(labels_BK.dtype, np.signedinteger):
            raise ValueError(f"predicted labels must be signed integers (-1 pads), but are {labels_BK.dtype}")
        order_BK = np.argsort(labels_BK, axis=1)
        labels_BK = np.take_along_axis(labels_BK, order_BK, axis=1)
        scores_BK = np.take_along_axis(scores_BK, order_BK, axis=1)
        is_padding_BK = labels_BK == PAD
        is_outside_BK = (labels_BK < -1) | (labels_BK >= self.num_labels)
        _refuse(is_outside_BK, labels_BK, f"a predicted label outside 0..{self.num_labels - 1} (-1 pads)")
        _refuse(~np.isfinite(scores_BK) & ~is_padding_BK, scores_BK, "a score that is not finite")
        is_repeated_BK = (labels_BK[:, 1:] == labels_BK[:, :-1]) & ~is_padding_BK[:, 1:]
        _refuse(is_repeated_BK, labels_BK[:, 1:], "a label predicted twice")
        return labels_BK, np.where(is_padding_BK, -np.inf, scores_BK)

    def _as_pairs(self, points: IntArray, labels: IntArray) -> npt.NDArray[np.int64]:
        # Slot 0 of each point is its padding, so that the padding of one point is not a label of the one before.
        pairs: npt.NDArray[np.int64] = points.astype(np.int64) * (self.num_labels + 1) + labels + 1
        return pairs

    def _pairs(self, matrix_BL: sp.csr_matrix, num_points: int, name: str) -> npt.NDArray[np.int64]:
        """The non-zero entries as pairs, sorted, each once."""
        if matrix_BL.shape != (num_points, self.num_labels):
            raise ValueError(f"{name} must be (B, L) = {num_points, self.num_labels}, but is {matrix_BL.shape}")
        entries = matrix_BL.tocoo()
        pairs: npt.NDArray[np.int64] = np.unique(self._as_pairs(entries.row, entries.col)[entries.data != 0])
        return pairs


def _find(wanted: npt.NDArray[np.int64], sorted_pairs: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Positions in `sorted_pairs` of those `wanted` pairs that it holds."""
    position = np.searchsorted(sorted_pairs, wanted, side="left")
    is_found = position < np.searchsorted(sorted_pairs, wanted, side="right")
    return position[is_found]


def _refuse(is_bad_BK: npt.NDArray[np.bool_], values_BK: npt.NDArray[Any], what: str) -> None:
    if is_bad_BK.any():
        row, column = np.argwhere(is_bad_BK)[0]
        raise ValueError(f"row {row} of the shard holds {what}: {values_BK[row, column]}")


def format_table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Rows such as "+ stage 2" by metrics as aligned text, in the paper's column order, with two decimals.

    A metric that no row has gets no column; one that only some rows have shows as "-" in the others.
    """
    for row_name, row in rows.items():
        if unknown := sorted(set(row) - set(METRIC_NAMES)):
            raise ValueError(f"row {row_name!r} has unknown metrics {unknown}; known are {METRIC_NAMES}")
    columns = [name for name in METRIC_NAMES if any(name in row for row in rows.values())]
    return format_rows(columns, {title: [row.get(name) for name in columns] for title, row in rows.items()})


def format_rows(columns: Sequence[str], rows: Mapping[str, Sequence[float | None]]) -> str:
    """As aligned text with two decimals; "-" for None."""
    lines = [["", *columns]]
    for title, values in rows.items():
        lines.append([title, *("-" if value is None else f"{value:.2f}" for value in values)])
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    # Names to the left, figures to the right.
    form = "  ".join(f"{{:{'>' if i else '<'}{width}}}" for i, width in enumerate(widths))
    return "\n".join(form.format(*line) for line in lines)
