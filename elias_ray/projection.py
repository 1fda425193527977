"""Training points of a few labels in the plane: labels that the index has in several clusters, and in one.

Paper, figures 8 and 9. A point belongs to a cluster if its score s_c exceeds ASSIGNED.

Legend: N points, D embedding size, C clusters, L labels.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from sklearn.manifold import TSNE
from sklearn.preprocessing import normalize

from elias_ray.cluster_classifiers import ClusterClassifiers
from elias_ray.data import read_vectors
from elias_ray.index_analysis import ASSIGNED, Index
from elias_ray.memory import POINTS_AT_ONCE
from elias_ray.plan import Plan

PANELS = 6
MOST_CLUSTERS = 5  # of a label that is drawn
POINTS_OF_LABEL = (12, 80)  # drawn: at least if so many labels have them, and at most; also of each of its clusters
PERPLEXITY, ITERATIONS = 20, 500
LABELS_COMPARED = 500  # of each kind, in how alike their points are
LEAST_ALIKE = 5  # points of a label that is compared


class Points(NamedTuple):
    """A sample of the training points."""

    embeddings_ND: npt.NDArray[np.float32]  # norm 1
    labels_NL: sp.csc_matrix
    clusters_NC: sp.csc_matrix


def read_points(plan: Plan, cluster_classifiers: ClusterClassifiers, shards: Mapping[str, int]) -> Points:
    folder, alpha = plan.embeddings(plan.encoder_name, "train"), plan.config.search.alpha
    num_clusters, vectors, members = cluster_classifiers.num_clusters, [], []
    for shard in shards:
        vectors_ND = torch.from_numpy(read_vectors(folder, shard).copy())
        vectors.append(normalize(vectors_ND.numpy()))
        for part_BD in vectors_ND.split(POINTS_AT_ONCE * 4):
            scores_BC = cluster_classifiers.log_scores(part_BD, alpha).exp()
            members.append(sp.csr_matrix((scores_BC > ASSIGNED).numpy()))
    labels_NL = sp.vstack([plan.prepared.labels_of_shard(shard) for shard in shards], format="csc")
    clusters_NC = sp.vstack(members, format="csc") if members else sp.csc_matrix((0, num_clusters))
    return Points(np.concatenate(vectors), labels_NL, clusters_NC)


def project(index: Index, points: Points, name_of: Callable[[int], str], seed: int) -> dict[str, Any]:
    clusters_L, frequency_L = index.clusters_of_label_L, np.diff(points.labels_NL.indptr)
    kinds = {"several": (clusters_L > 1) & (clusters_L <= MOST_CLUSTERS), "one": clusters_L == 1}
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for kind, is_kind_L in kinds.items():
        most_points = np.sort(frequency_L[is_kind_L])[::-1][:PANELS]
        enough = min(
            POINTS_OF_LABEL[0], int(most_points.min(initial=POINTS_OF_LABEL[0]))
        )  # or less, to have all panels
        choice = np.flatnonzero(is_kind_L & (frequency_L >= max(3, enough)))
        chosen = np.sort(rng.choice(choice, min(PANELS, len(choice)), replace=False))
        found[kind] = [_panel(index, points, int(label), name_of, rng) for label in chosen]
        alike = np.flatnonzero(is_kind_L & (frequency_L >= LEAST_ALIKE))
        alike = rng.choice(alike, min(LABELS_COMPARED, len(alike)), replace=False)
        cosines = [mean_cosine(points.embeddings_ND[_rows(points.labels_NL, int(label))]) for label in alike]
        found[f"cosine_{kind}"] = float(np.mean(cosines)) if cosines else None
        found[f"labels_compared_{kind}"] = len(cosines)
    return {"points": len(points.embeddings_ND), **found}


def mean_cosine(unit_ND: npt.NDArray[np.float32]) -> float:
    """Of all pairs of different points."""
    count, sum_D = len(unit_ND), unit_ND.sum(axis=0, dtype=np.float64)
    return float((sum_D @ sum_D - count) / (count * (count - 1)))


def _panel(
    index: Index, points: Points, label: int, name_of: Callable[[int], str], rng: np.random.Generator
) -> dict[str, Any]:
    """Group 0 holds points of the label, group i others of its i-th cluster, best cluster first."""
    rows, columns = np.nonzero((index.labels_CR == label) & (index.scores_CR > ASSIGNED))
    clusters = rows[np.argsort(-index.scores_CR[rows, columns], kind="stable")].tolist()
    most = POINTS_OF_LABEL[1]
    its_own = _rows(points.labels_NL, label)
    groups, taken = [rng.choice(its_own, min(most, len(its_own)), replace=False)], its_own
    for cluster in clusters:
        others = np.setdiff1d(_rows(points.clusters_NC, cluster), taken)
        groups.append(rng.choice(others, min(most, len(others)), replace=False))
        taken = np.union1d(taken, groups[-1])
    places_N2 = flatten(points.embeddings_ND[np.concatenate(groups)], int(rng.integers(2**31)))
    return {
        "label": name_of(label),
        "training_points": int(index.frequency_L[label]),
        "clusters": clusters,
        "about": [[name_of(best) for best in index.best_labels(cluster, 2)] for cluster in clusters],
        "group": np.repeat(np.arange(len(groups)), [len(group) for group in groups]).tolist(),
        "x": places_N2[:, 0].round(2).tolist(),
        "y": places_N2[:, 1].round(2).tolist(),
    }


def flatten(vectors_ND: npt.NDArray[np.float32], seed: int) -> npt.NDArray[np.float32]:
    """By t-SNE: (N, 2)."""
    count = len(vectors_ND)
    if count < 5:  # too few to have neighbours
        return np.pad(vectors_ND, ((0, 0), (0, 2)))[:, :2]
    tsne = TSNE(
        perplexity=min(PERPLEXITY, (count - 1) / 3),
        max_iter=ITERATIONS,
        init="pca",
        random_state=seed,
        method="exact" if count < 400 else "barnes_hut",
        n_jobs=1,
    )
    places_N2: npt.NDArray[np.float32] = tsne.fit_transform(vectors_ND)
    return places_N2


def _rows(matrix: sp.csc_matrix, column: int) -> npt.NDArray[np.int64]:
    return matrix.indices[matrix.indptr[column] : matrix.indptr[column + 1]].astype(np.int64)
