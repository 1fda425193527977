"""What a model predicts of a split: the best labels of every row, exactly once, for any number of workers.

Whole shards are dealt to the workers in turn. A search takes all workers at once, so one that is through with its
shards goes on searching for nothing until the last is through.

Legend: N rows of a shard, B points of a search, K labels kept of a row, C clusters, b beam, L labels.
"""

import posixpath
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy.sparse as sp
import torch

from elias_ray import config as configs
from elias_ray.artifacts import Folder, committing_together, is_committed
from elias_ray.data import Prepared, matrix_column, read_vectors
from elias_ray.formats.source import SplitName
from elias_ray.memory import points_at_once
from elias_ray.model import Elias
from elias_ray.predictions import TOP_K, Predicted, new_metrics, write_predicted
from elias_ray.worker_group import Bar, Worker

VectorsOf = Callable[[str], npt.NDArray[np.float32]]  # the embeddings of a shard's rows
SearchOf = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # of points: what was found, and its scores


def predict(
    worker: Worker,
    model: Elias,
    prepared: Prepared,
    split: SplitName,
    embeddings: Folder,
    size: int,
    folder: Folder,
    made_from: str,
) -> None:
    """The `size` best labels of every row in shards into `folder` (row, labels, scores; named like the data's).

    Unless they are there.
    """
    if is_committed(folder, made_from, worker.workers):
        return
    shards, done = prepared.shards(split), 0
    total, started = sum(dealt(shards, worker)[0].values()), time.monotonic()
    with committing_together(folder, made_from, worker.workers) as manifest:
        vectors_of = partial(read_vectors, embeddings)
        for shard, predicted in predict_shards(worker, model, shards, vectors_of, size):
            entry = write_predicted(folder, prepared, shard, predicted)
            manifest.files[entry.name] = entry
            done += len(predicted.labels_NK)
            worker.say(Bar(f"predict {split}", done, total, " rows"))
        manifest.facts["seconds"] = time.monotonic() - started


def predict_shards(
    worker: Worker, model: Elias, shards: dict[str, int], vectors_of: VectorsOf, size: int = TOP_K
) -> Iterator[tuple[str, Predicted]]:
    """The predictions of this worker's shards. All workers must exhaust it, at the same time."""
    best_labels = partial(model.best_labels, size=size)
    for shard, labels_NK, scores_NK in search_shards(worker, model, shards, vectors_of, best_labels):
        yield shard, Predicted(labels_NK, scores_NK)


def search_shards(
    worker: Worker, model: Elias, shards: dict[str, int], vectors_of: VectorsOf, search: SearchOf
) -> Iterator[tuple[str, npt.NDArray[Any], npt.NDArray[np.float32]]]:
    """What `search` finds of this worker's shards, and its scores. All workers must exhaust it, at the same time."""
    mine, searches = dealt(shards, worker)
    points = points_at_once(worker.workers.size)
    nothing_BD = torch.zeros(points, model.encoder.embedding_size, device=worker.device)
    for shard in mine:
        vectors_ND = torch.from_numpy(vectors_of(shard))
        parts = []
        for part_BD in vectors_ND.split(points):
            filled_BD = nothing_BD.clone()
            filled_BD[: len(part_BD)] = part_BD.to(worker.device)
            parts.append([values[: len(part_BD)].cpu() for values in search(filled_BD)])
            searches -= 1
        found_NK, scores_NK = (torch.cat(values).numpy() for values in zip(*parts, strict=True))
        yield shard, found_NK, scores_NK
    for _ in range(searches):
        search(nothing_BD)


def dealt(shards: dict[str, int], worker: Worker) -> tuple[dict[str, int], int]:
    """This worker's shards, and the searches that every worker makes."""
    workers, points = worker.workers, points_at_once(worker.workers.size)
    assert all(shards.values()), "a shard without rows"
    parts = [{name: shards[name] for name in workers.in_turn(list(shards), rank)} for rank in range(workers.size)]
    return parts[workers.rank], max(sum(-(-rows // points) for rows in part.values()) for part in parts)


def validate(
    worker: Worker, model: Elias, prepared: Prepared, vectors_of: VectorsOf, settings: configs.Metrics
) -> dict[str, float]:
    """The metrics of the validation points, the same on every worker."""
    metrics = new_metrics(prepared, settings)
    for shard, predicted in predict_shards(worker, model, prepared.shards("validation"), vectors_of):
        metrics.update(*predicted, prepared.labels_of_shard(shard), prepared.filtered_of_shard(shard))
    parts = worker.workers.gather_objects(metrics)
    for part in parts[1:]:
        parts[0].merge(part)
    return parts[0].result()


def best_clusters(
    worker: Worker, model: Elias, prepared: Prepared, embeddings: Folder, folder: Folder, made_from: str
) -> None:
    """M: the b best clusters of every training point and their scores, in shards, unless they are there."""
    if is_committed(folder, made_from, worker.workers):
        return
    with committing_together(folder, made_from, worker.workers) as manifest:
        shards, vectors_of = prepared.shards("train"), partial(read_vectors, embeddings)
        for shard, clusters_Nb, scores_Nb in search_shards(worker, model, shards, vectors_of, model.best_clusters):
            name = posixpath.basename(shard)
            columns = {"clusters": matrix_column(clusters_Nb), "scores": matrix_column(scores_Nb)}
            manifest.files[name] = folder.write_table(name, pa.table(columns))


def read_best_clusters(prepared: Prepared, folder: Folder, num_clusters: int) -> sp.csr_matrix:
    """M: (N, C)."""
    tables = [folder.read_table(posixpath.basename(shard)) for shard in prepared.shards("train")]
    table = pa.concat_tables(tables)
    clusters, scores = (table[column].combine_chunks() for column in ("clusters", "scores"))
    indptr = np.arange(len(table) + 1) * clusters.type.list_size
    data, indices = scores.flatten().to_numpy(), clusters.flatten().to_numpy().astype(np.int32)
    return sp.csr_matrix((data, indices, indptr), shape=(len(table), num_clusters))
