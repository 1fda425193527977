"""Test predictions in numbers: recall by how many labels are predicted, scores of true labels, errors worth a look.

Legend: N rows of a shard, K labels kept of a row, Q labels of all rows one after the other, L labels.
"""

import heapq
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from elias_ray.artifacts import Folder, committed
from elias_ray.data import Prepared
from elias_ray.final_scores import read_calibration
from elias_ray.metrics import NUM_DECILES, PAD, label_deciles
from elias_ray.plan import Plan
from elias_ray.predictions import TOP_K, Predicted, read_predicted, read_predictions

ERRORS = 20
LETTERS_SHOWN = 400  # of the text of an error
LABELS_SHOWN = 5


def sample_of(shards: Mapping[str, int], most: int, seed: int) -> dict[str, int]:
    """Whole shards, drawn until they have so many rows; all of them if they have no more."""
    if sum(shards.values()) <= most:
        return dict(shards)
    chosen: dict[str, int] = {}
    for place in np.random.default_rng(seed).permutation(len(shards)):
        if sum(chosen.values()) < most:
            name = list(shards)[place]
            chosen[name] = shards[name]
    return {name: rows for name, rows in shards.items() if name in chosen}


def recall(prepared: Prepared, predictions: Folder, shards: Mapping[str, int]) -> dict[str, Any]:
    """Paper, figure 5: R@k for every k from 1 to 100, and what each label decile, head first, adds to R@100."""
    decile_L = label_deciles(prepared.label_frequency_L)
    gains_K, gains_D, labelled = np.zeros(TOP_K), np.zeros(NUM_DECILES), 0
    for shard in shards:
        true_NL = prepared.labels_of_shard(shard)
        labels_NK = counted(read_predicted(predictions, shard), prepared.filtered_of_shard(shard)).best().labels_NK
        rows, places = np.nonzero(is_in(true_NL, labels_NK))
        num_true_N = np.diff(true_NL.indptr)
        gains = 1 / num_true_N[rows]
        gains_K += np.bincount(places, gains, minlength=TOP_K)
        gains_D += np.bincount(decile_L[labels_NK[rows, places]], gains, minlength=NUM_DECILES)
        labelled += int((num_true_N > 0).sum())
    percent = 100 / max(1, labelled)
    return {"at": (percent * np.cumsum(gains_K)).tolist(), "by_decile": (percent * gains_D).tolist()}


def counted(predicted: Predicted, filtered_NL: sp.csr_matrix) -> Predicted:
    """Without the pairs that do not count."""
    labels_NK = np.where(is_in(filtered_NL, predicted.labels_NK), PAD, predicted.labels_NK)
    return Predicted(labels_NK.astype(np.int32), predicted.scores_NK)


def is_in(matrix_NL: sp.csr_matrix, labels_NK: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Whether the matrix has an entry there: (N, K)."""
    if not matrix_NL.nnz:
        return np.zeros(labels_NK.shape, np.bool_)
    num_labels = matrix_NL.shape[1]
    entries = matrix_NL.tocoo()
    pairs = entries.row.astype(np.int64) * num_labels + entries.col
    wanted_NK = np.arange(len(labels_NK))[:, None] * num_labels + labels_NK
    return np.isin(wanted_NK, pairs) & (labels_NK != PAD)


def true_label_scores(plan: Plan, shards: Mapping[str, int]) -> dict[str, Any] | None:
    """Paper, figure 4: by label decile, the quartiles of what true labels among those ranked score; if any are."""
    prepared, frequency_L = plan.prepared, plan.prepared.label_frequency_L
    decile_L = label_deciles(frequency_L)
    calibration = read_calibration(plan.calibration) if committed(plan.calibration / "model") else None
    deciles, all_true = [], 0
    scores: dict[str, list[npt.NDArray[np.float32]]] = {
        name: [] for name in ("p", "q", *(["final"] if calibration else []))
    }
    for shard in shards:
        lists, true_NL = read_predictions(plan.ranked("test"), shard, ("p", "q")), prepared.labels_of_shard(shard)
        true_Q = np.asarray(true_NL[lists.rows_Q, lists.labels_Q]).ravel() > 0
        labels_Q, all_true = lists.labels_Q[true_Q], all_true + true_NL.nnz
        p_Q, q_Q = (lists.values_Q[name][true_Q] for name in ("p", "q"))
        deciles.append(decile_L[labels_Q])
        scores["p"].append(p_Q)
        scores["q"].append(q_Q)
        if calibration:
            scores["final"].append(calibration.scores(p_Q, q_Q, frequency_L[labels_Q]))
    decile_Q = np.concatenate(deciles)
    if not len(decile_Q):
        return None
    return {
        "pairs": len(decile_Q),
        "percent_of_true": 100 * len(decile_Q) / max(1, all_true),
        "quartiles": {name: _quartiles(np.concatenate(parts), decile_Q) for name, parts in scores.items()},
    }


def _quartiles(values_Q: npt.NDArray[np.float32], decile_Q: npt.NDArray[np.int8]) -> list[list[float] | None]:
    parts = [values_Q[decile_Q == decile] for decile in range(NUM_DECILES)]
    return [np.quantile(part, (0.25, 0.5, 0.75)).tolist() if len(part) else None for part in parts]


def surest_errors(
    prepared: Prepared, predictions: Folder, shards: Mapping[str, int], name_of: Callable[[int], str]
) -> list[dict[str, Any]]:
    """Points whose best label is not true, of the highest score; points without labels cannot be wrong."""
    surest: list[tuple[float, str, int]] = []
    for shard in shards:
        true_NL = prepared.labels_of_shard(shard)
        best = counted(read_predicted(predictions, shard), prepared.filtered_of_shard(shard)).best(1)
        wrong_N = ~is_in(true_NL, best.labels_NK)[:, 0] & (best.labels_NK[:, 0] != PAD) & (np.diff(true_NL.indptr) > 0)
        found = ((float(best.scores_NK[row, 0]), shard, int(row)) for row in np.flatnonzero(wrong_N))
        surest = heapq.nlargest(ERRORS, [*surest, *found], key=lambda error: error[0])
    described = {}
    for shard in sorted({shard for _, shard, _ in surest}):
        texts = prepared.folder.read_table(shard, ["text"])["text"]
        true_NL, predicted = prepared.labels_of_shard(shard), read_predicted(predictions, shard)
        best = counted(predicted, prepared.filtered_of_shard(shard)).best(LABELS_SHOWN)
        for row in [row for _, place, row in surest if place == shard]:
            text, true = texts[row].as_py(), true_NL[row].indices.tolist()
            described[shard, row] = {
                "text": text[:LETTERS_SHOWN] + ("…" if len(text) > LETTERS_SHOWN else ""),
                "predicted": [
                    {"label": name_of(label), "score": float(score), "true": label in true}
                    for label, score in zip(best.labels_NK[row].tolist(), best.scores_NK[row], strict=True)
                    if label != PAD
                ],
                "true": [name_of(label) for label in true],
            }
    return [{"score": score, **described[shard, row]} for score, shard, row in surest]
