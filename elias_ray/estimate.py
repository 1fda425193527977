"""Step between the stages: A' = M^T Y, the labels that each cluster should have edges to."""

import time

import numpy as np
import pyarrow as pa
import ray
import torch
from torch import Tensor

from elias_ray.adjacency import estimate_rows
from elias_ray.artifacts import Folder, committed, committing, key_of
from elias_ray.clusters import read_clusters
from elias_ray.data import Prepared, matrix_column, read_matrix
from elias_ray.metrics import PAD
from elias_ray.predict import read_best_clusters

ROWS = "rows.parquet"


def estimate_adjacency(
    folder: Folder, prepared: Prepared, clusters: Folder, best_clusters: Folder, labels_per_row: int
) -> None:
    """Made now unless it was."""
    made_from = key_of(prepared.folder, clusters, best_clusters)
    if committed(folder, made_from) is not None:
        print(f"adjacency: done before ({folder.path})")
        return
    started = time.monotonic()
    with committing(folder, made_from) as manifest:
        task = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(_estimate)  # not where a trial has its place
        labels_CR = ray.get(task.remote(prepared, clusters, best_clusters, labels_per_row))
        manifest.files[ROWS] = folder.write_table(ROWS, pa.table({"labels": matrix_column(labels_CR)}))
        manifest.facts.update(num_clusters=len(labels_CR), edges=int((labels_CR != PAD).sum()))
    edges, seconds = manifest.facts["edges"], time.monotonic() - started
    print(f"adjacency: {edges:,} edges, {edges / len(labels_CR):,.0f} a cluster, in {seconds:.1f} s")


def read_rows_of_a(folder: Folder) -> Tensor:
    """The labels of each cluster, ascending: (C, R), PAD behind them."""
    return torch.from_numpy(read_matrix(folder, ROWS, "labels").copy())


def _estimate(prepared: Prepared, clusters: Folder, best_clusters: Folder, labels_per_row: int) -> np.ndarray:
    clusters_L = read_clusters(clusters)
    scores_NC = read_best_clusters(prepared, best_clusters, int(clusters_L.max()) + 1)
    return estimate_rows(scores_NC, prepared.labels("train"), clusters_L, labels_per_row).numpy()
