"""How much of the learned index prediction needs: metrics and time of validation points with fewer and fewer edges.

Paper, table 9. One process on cached embeddings, so the time is that of search and scoring, without the encoder.
"""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import psutil
import torch
from torch import Tensor

from elias_ray.adjacency import Adjacency, prune
from elias_ray.artifacts import Manifest
from elias_ray.cluster_classifiers import ClusterClassifiers
from elias_ray.data import read_vectors
from elias_ray.label_classifiers import LabelClassifiers
from elias_ray.memory import GIB, POINTS_AT_ONCE
from elias_ray.metrics import PAD
from elias_ray.model import Search, search
from elias_ray.plan import Plan
from elias_ray.predictions import TOP_K, new_metrics
from elias_ray.saved_model import read_rows

LEAST_SCORES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9)  # the paper's
EDGES_PER_CLUSTER = (750, 500, 300, 200, 100, 50)
SHOWN = ("P@1", "P@5", "R@10", "R@100")


class Cut(NamedTuple):
    """What is left out of A."""

    least_score: float = 0.0
    edges_per_cluster: int | None = None

    @property
    def title(self) -> str:
        if self.edges_per_cluster is not None:
            return f"best {self.edges_per_cluster:,} of a cluster"
        return f"edges of {self.least_score} or more" if self.least_score else "all edges"


def measure_pruning(
    plan: Plan,
    manifest: Manifest,
    cluster_classifiers: ClusterClassifiers,
    adjacency: Adjacency,
    shards: Mapping[str, int],
    most: int,
) -> dict[str, Any]:
    """Of `most` points of these shards; nothing but a reason where W_L is too large for this machine."""
    prepared, config = plan.prepared, plan.config
    num_labels, num_clusters = prepared.num_labels, adjacency.num_clusters
    needed = num_labels * (cluster_classifiers.weight.shape[1] + 1) * 4
    if needed > psutil.virtual_memory().available / 2:
        return {"skipped": f"W_L takes {needed / GIB:.1f} GiB, more than half of what is free on this machine"}
    table = read_rows(plan.model, manifest, "W_L", range(num_labels))
    label_classifiers = LabelClassifiers(table["weight"], table["bias"], num_labels, trainable=False)
    settings = Search.of(config.search, num_clusters, num_labels)
    cuts = [Cut(), *(Cut(least_score=score) for score in LEAST_SCORES)]
    cuts += [Cut(edges_per_cluster=count) for count in EDGES_PER_CLUSTER if count < adjacency.row_length]
    edges = int((adjacency.labels != PAD).sum())
    embeddings = plan.embeddings(plan.encoder_name, "validation")
    rng, left = np.random.default_rng(config.seed), most
    points: list[tuple[str, npt.NDArray[np.int64], Tensor]] = []
    for shard, count in shards.items():
        if left > 0:
            rows_N = np.sort(rng.permutation(count)[:left])
            points.append((shard, rows_N, torch.from_numpy(read_vectors(embeddings, shard)[rows_N])))
            left -= len(rows_N)
    for _, _, vectors_ND in points[:1]:  # what is done for the first time takes longer
        _best_labels(vectors_ND[:POINTS_AT_ONCE], cluster_classifiers, adjacency, label_classifiers, settings)
    measured = []
    for cut in cuts:
        pruned = prune(adjacency, num_labels, *cut) if cut != Cut() else adjacency
        metrics, seconds = new_metrics(prepared, config.metrics), 0.0
        for shard, rows_N, vectors_ND in points:
            started = time.perf_counter()
            found = [
                _best_labels(part_BD, cluster_classifiers, pruned, label_classifiers, settings)
                for part_BD in vectors_ND.split(POINTS_AT_ONCE)
            ]
            seconds += time.perf_counter() - started
            labels_NK, scores_NK = (torch.cat(parts).numpy() for parts in zip(*found, strict=True))
            true_NL, filtered_NL = prepared.labels_of_shard(shard)[rows_N], prepared.filtered_of_shard(shard)[rows_N]
            metrics.update(labels_NK, scores_NK, true_NL, filtered_NL)
        if metrics.num_points == metrics.num_points_without_labels:
            return {"skipped": "none of the validation points has a label"}
        kept, result = int((pruned.labels != PAD).sum()), metrics.result()
        measured.append(
            {
                "cut": cut.title,
                "least_score": cut.least_score,
                "edges_per_cluster": cut.edges_per_cluster,
                "percent_pruned": 100 * (1 - kept / edges),
                **{name: result[name] for name in SHOWN},
                "milliseconds_per_point": 1000 * seconds / metrics.num_points,
            }
        )
    return {"points": most - left, "of": prepared.num_rows("validation"), "rows": measured}


def _best_labels(
    embedding_BD: Tensor,
    cluster_classifiers: ClusterClassifiers,
    adjacency: Adjacency,
    label_classifiers: LabelClassifiers,
    settings: Search,
) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return search(embedding_BD, cluster_classifiers, adjacency, label_classifiers, settings).best_labels(TOP_K)
