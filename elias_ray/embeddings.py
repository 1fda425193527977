"""phi(x) of the points of a split, kept beside their shards: a table of the same name with one vector a row.

Frozen epochs, centroids, clustering, the best clusters of a point and predictions all start from these.
"""

import posixpath

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elias_ray.artifacts import Folder, committing_together, is_committed
from elias_ray.data import Prepared, matrix_column
from elias_ray.encoder import Encoder, phi
from elias_ray.formats.source import SplitName
from elias_ray.worker_group import Bar, Worker


def embed(
    worker: Worker, encoder: Encoder, prepared: Prepared, split: SplitName, folder: Folder, made_from: str
) -> Folder:
    """The folder, filled now unless it was. Whole shards are dealt to the workers in turn; one that is done stays done.

    So a job that is killed after hours of this has lost no more than a shard.
    """
    if is_committed(folder, made_from, worker.workers):
        return folder
    shards = prepared.shards(split)
    mine = worker.workers.in_turn(list(shards))
    total, embedded = sum(shards[shard] for shard in mine), 0
    with committing_together(folder, made_from, worker.workers, go_on=True) as manifest:
        for shard in mine:
            name = posixpath.basename(shard)
            if folder.exists(name):
                manifest.files[name], embedded = folder.entry(name), embedded + shards[shard]
                continue
            tokens = prepared.folder.read_table(shard, ["input_ids"])["input_ids"].to_pylist()

            def show(count: int, before: int = embedded) -> None:
                worker.say(Bar(f"embed {split}", before + count, total, " texts"))

            vectors_ND = phi(encoder, tokens, worker.device, show)
            embedded += len(tokens)
            manifest.files[name] = folder.write_table(name, vector_table(vectors_ND))
    return folder


def vector_table(vectors_ND: npt.NDArray[np.float32]) -> pa.Table:
    return pa.table({"embedding": matrix_column(vectors_ND)})
