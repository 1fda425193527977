"""The learned index in numbers: what its edges score, what became of the clusters, which labels are where.

Legend: C clusters, R entries of a row of A, L labels, D embedding size, E edges.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from elias_ray.metrics import NUM_DECILES, PAD, label_deciles

ASSIGNED = 0.25  # a label is in a cluster if the edge between them scores more; paper, C.4
THRESHOLDS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95)
RANKS_SHOWN = 60  # of the edges of a cluster, best first
BINS = 20  # of edge scores, from 0 to 1
ABOUT = 4  # labels that say what a cluster is about
LARGEST, MOST_ASSIGNED, NEAREST = 10, 15, 10
CLUSTERS_COMPARED = 4096  # with all others, to find the nearest


@dataclass(frozen=True)
class Index:
    labels_CR: npt.NDArray[np.int32]  # PAD where a row is shorter
    scores_CR: npt.NDArray[np.float32]  # s_{c,l}; 0 there
    cluster_of_L: npt.NDArray[np.int32]  # before A was learned
    frequency_L: npt.NDArray[np.int64]

    @property
    def present_CR(self) -> npt.NDArray[np.bool_]:
        return self.labels_CR != PAD

    @cached_property
    def clusters_of_label_L(self) -> npt.NDArray[np.int64]:
        """How many clusters each label is in."""
        return np.bincount(self.labels_CR[self.scores_CR > ASSIGNED], minlength=len(self.frequency_L))

    @cached_property
    def labels_of_cluster_C(self) -> npt.NDArray[np.int64]:
        """How many labels are in each cluster."""
        return (self.scores_CR > ASSIGNED).sum(axis=1)

    def best_labels(self, cluster: int, count: int = ABOUT) -> list[int]:
        """Of a cluster, by edge score; of equal ones the most frequent."""
        labels_R, scores_R = self.labels_CR[cluster], self.scores_CR[cluster]
        order_R = np.lexsort((labels_R, -self.frequency_L[labels_R], -scores_R))
        return [int(label) for label in labels_R[order_R] if label != PAD][:count]


def edge_scores(index: Index) -> dict[str, Any]:
    """Paper, figure 3: what the best edge of a cluster scores, the second best, ...; and how many score what."""
    sorted_CR = -np.sort(-index.scores_CR, axis=1)
    width = sorted_CR.shape[1]
    ranks = np.unique(np.geomspace(1, width, RANKS_SHOWN).round().astype(int))
    shown = sorted_CR[:, ranks - 1]
    scores_E = index.scores_CR[index.present_CR]
    counts, limits = np.histogram(scores_E, BINS, (0, 1))
    return {
        "edges": int(scores_E.size),
        "edges_per_cluster": scores_E.size / len(sorted_CR),
        "rank": ranks.tolist(),
        "mean": shown.mean(axis=0).tolist(),
        "tenth": np.quantile(shown, 0.1, axis=0).tolist(),
        "nine_tenths": np.quantile(shown, 0.9, axis=0).tolist(),
        "bins": limits.tolist(),
        "percent_in_bin": (100 * counts / max(1, scores_E.size)).tolist(),
        "median": float(np.median(scores_E)) if scores_E.size else 0.0,
        "percent_assigned": _percent(scores_E > ASSIGNED),
        "percent_nothing": _percent(scores_E < THRESHOLDS[1]),
        "percent_whole": _percent(scores_E >= 1),
    }


def surviving_edges(index: Index) -> dict[str, Any]:
    """Paper, figure 7a: how many of the edges from the first clusters to their labels A has above a threshold."""
    first_CR = index.cluster_of_L[index.labels_CR] == np.arange(len(index.labels_CR))[:, None]
    first_CR &= index.present_CR
    score_L = np.full(len(index.cluster_of_L), -1, np.float32)  # not in A at all
    score_L[index.labels_CR[first_CR]] = index.scores_CR[first_CR]
    return {
        "threshold": list(THRESHOLDS),
        "percent": [_percent(score_L > threshold) for threshold in THRESHOLDS],
        "percent_stored": _percent(score_L >= 0),
        "percent_assigned": _percent(score_L > ASSIGNED),
    }


def clusters_per_label(index: Index) -> dict[str, Any]:
    """Paper, figure 7b: by label decile, head first; None where a decile has no label."""
    decile_L, counts_L = label_deciles(index.frequency_L), index.clusters_of_label_L
    parts = [counts_L[decile_L == decile] for decile in range(NUM_DECILES)]
    return {
        "mean": [float(part.mean()) if len(part) else None for part in parts],
        "labels": [len(part) for part in parts],
        "in_none": int((counts_L == 0).sum()),
        "in_one": int((counts_L == 1).sum()),
        "in_several": int((counts_L > 1).sum()),
    }


def cluster_sizes(index: Index) -> dict[str, Any]:
    """Before and after A was learned; and labels that nothing leads to, of which there must be none."""
    first_C = np.bincount(index.cluster_of_L, minlength=len(index.labels_CR))
    learned_C = index.labels_of_cluster_C
    edges_L = np.bincount(index.labels_CR[index.present_CR], minlength=len(index.frequency_L))
    limits = np.histogram_bin_edges(learned_C, bins=min(40, max(1, len(set(learned_C.tolist())))))
    counts, _ = np.histogram(learned_C, limits)
    return {
        "clusters": len(index.labels_CR),
        "first": _spread(first_C),
        "learned": _spread(learned_C),
        "bins": limits.tolist(),
        "clusters_in_bin": counts.tolist(),
        "unreachable_labels": int((edges_L == 0).sum()),
    }


def largest_clusters(index: Index, name_of: Callable[[int], str]) -> list[dict[str, Any]]:
    order_C = np.argsort(-index.labels_of_cluster_C, kind="stable")[:LARGEST]
    return [
        {
            "cluster": int(cluster),
            "labels": int(index.labels_of_cluster_C[cluster]),
            "about": [name_of(label) for label in index.best_labels(cluster)],
        }
        for cluster in order_C
    ]


def labels_in_most_clusters(index: Index, name_of: Callable[[int], str]) -> list[dict[str, Any]]:
    """Of equal ones the most frequent."""
    order_L = np.lexsort((-index.frequency_L, -index.clusters_of_label_L))[:MOST_ASSIGNED]
    return [
        {
            "label": name_of(int(label)),
            "clusters": int(index.clusters_of_label_L[label]),
            "training_points": int(index.frequency_L[label]),
        }
        for label in order_L
    ]


def nearest_clusters(
    index: Index, classifiers_CD: npt.NDArray[np.float32], name_of: Callable[[int], str], seed: int
) -> dict[str, Any]:
    """Pairs of clusters whose classifiers W_C have the greatest cosine; of many clusters, a sample with all others.

    Clusters of labels that no training point has are left out: nothing has told their classifiers apart.
    """
    trained_C = ((index.frequency_L[index.labels_CR] > 0) & index.present_CR).any(axis=1)
    numbers_C, classifiers_CD = np.flatnonzero(trained_C), classifiers_CD[trained_C]
    norms_C1 = np.linalg.norm(classifiers_CD, axis=1, keepdims=True)
    unit_CD = classifiers_CD / np.maximum(norms_C1, 1e-12)
    count = len(unit_CD)
    sample = np.sort(np.random.default_rng(seed).choice(count, min(count, CLUSTERS_COMPARED), replace=False))
    found: dict[tuple[int, int], float] = {}
    for part in np.array_split(sample, max(1, len(sample) // 256)):
        cosine_BC = unit_CD[part] @ unit_CD.T
        cosine_BC[np.arange(len(part)), part] = -np.inf
        for cluster, other, cosine in zip(part, cosine_BC.argmax(axis=1), cosine_BC.max(axis=1), strict=True):
            if count > 1:
                first, second = sorted((int(numbers_C[cluster]), int(numbers_C[other])))
                found[first, second] = float(cosine)
    best = sorted(found.items(), key=lambda item: -item[1])[:NEAREST]
    pairs = [
        {
            "clusters": list(pair),
            "cosine": cosine,
            "about": [[name_of(label) for label in index.best_labels(cluster)] for cluster in pair],
        }
        for pair, cosine in best
    ]
    return {"compared": len(sample), "clusters": count, "pairs": pairs}


def _spread(sizes_C: npt.NDArray[np.int64]) -> dict[str, float]:
    return {"least": int(sizes_C.min()), "median": float(np.median(sizes_C)), "most": int(sizes_C.max())}


def _percent(true: npt.NDArray[np.bool_]) -> float:
    return float(100 * true.mean()) if true.size else 0.0
