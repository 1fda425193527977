"""Predictions on disk: of every row of a split its best labels and their scores, in shards named like the data's.

Columns: row, labels (best first), scores; the ranker adds p and q. Read without torch, which the ranker does without.

Legend: N rows of a shard, K labels kept of a row, Q labels of all rows one after the other, L labels.
"""

import posixpath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy.sparse as sp

from elias_ray import config as configs
from elias_ray.artifacts import FileEntry, Folder
from elias_ray.data import Prepared, list_column
from elias_ray.formats.source import SplitName
from elias_ray.metrics import PAD, Metrics

TOP_K = 100


class Predicted(NamedTuple):
    """PAD where fewer labels are reachable."""

    labels_NK: npt.NDArray[np.int32]
    scores_NK: npt.NDArray[np.float32]

    @classmethod
    def of_lists(
        cls, counts_N: npt.NDArray[Any], labels_Q: npt.NDArray[Any], scores_Q: npt.NDArray[np.float32]
    ) -> "Predicted":
        present_NK = np.arange(max(1, counts_N.max(initial=0))) < counts_N[:, None]
        labels_NK, scores_NK = np.full(present_NK.shape, PAD, np.int32), np.zeros(present_NK.shape, np.float32)
        labels_NK[present_NK], scores_NK[present_NK] = labels_Q, scores_Q
        return cls(labels_NK, scores_NK)

    def best(self, size: int = TOP_K) -> "Predicted":
        """Sorted by score, equal ones by label, and cut."""
        order_NK = np.lexsort((self.labels_NK, -self.scores_NK, self.labels_NK == PAD), axis=1)[:, :size]
        labels_NK: npt.NDArray[np.int32] = np.take_along_axis(self.labels_NK, order_NK, axis=1)
        scores_NK: npt.NDArray[np.float32] = np.take_along_axis(self.scores_NK, order_NK, axis=1)
        return Predicted(labels_NK, scores_NK)


class Lists(NamedTuple):
    """The same, row after row."""

    counts_N: npt.NDArray[np.int64]
    labels_Q: npt.NDArray[np.int32]
    values_Q: dict[str, npt.NDArray[np.float32]]  # by column

    @property
    def rows_Q(self) -> npt.NDArray[np.int64]:
        return np.repeat(np.arange(len(self.counts_N)), self.counts_N)

    def matrix(self, num_labels: int, values_Q: npt.NDArray[Any]) -> sp.csr_matrix:
        """(N, L)"""
        indptr = np.concatenate([[0], np.cumsum(self.counts_N)])
        return sp.csr_matrix((values_Q, self.labels_Q, indptr), shape=(len(self.counts_N), num_labels))


def write_predictions(folder: Folder, prepared: Prepared, shard: str, lists: Lists) -> FileEntry:
    rows = prepared.folder.read_table(shard, ["row"])["row"]
    columns = {"labels": lists.labels_Q, **lists.values_Q}
    table = pa.table({"row": rows} | {name: list_column(lists.counts_N, values) for name, values in columns.items()})
    return folder.write_table(posixpath.basename(shard), table)


def write_predicted(folder: Folder, prepared: Prepared, shard: str, predicted: Predicted) -> FileEntry:
    present_NK = predicted.labels_NK != PAD
    labels_Q, scores_Q = (values[present_NK] for values in predicted)
    return write_predictions(folder, prepared, shard, Lists(present_NK.sum(axis=1), labels_Q, {"scores": scores_Q}))


def read_predictions(folder: Folder, shard: str, columns: tuple[str, ...] = ("scores",)) -> Lists:
    table = folder.read_table(posixpath.basename(shard), ["labels", *columns])
    lists = {name: table[name].combine_chunks() for name in table.column_names}
    counts_N = np.diff(lists["labels"].offsets.to_numpy()).astype(np.int64)
    values = {name: column.flatten().to_numpy() for name, column in lists.items()}
    return Lists(counts_N, values.pop("labels"), values)


def read_predicted(folder: Folder, shard: str) -> Predicted:
    lists = read_predictions(folder, shard)
    return Predicted.of_lists(lists.counts_N, lists.labels_Q, lists.values_Q["scores"])


def evaluate(prepared: Prepared, predictions: Folder, split: SplitName, settings: configs.Metrics) -> Metrics:
    metrics = new_metrics(prepared, settings)
    for shard in prepared.shards(split):
        predicted = read_predicted(predictions, shard)
        metrics.update(*predicted, prepared.labels_of_shard(shard), prepared.filtered_of_shard(shard))
    return metrics


def new_metrics(prepared: Prepared, settings: configs.Metrics) -> Metrics:
    return Metrics(
        prepared.label_frequency_L,
        prepared.num_rows("train"),
        propensity_a=settings.propensity_a,
        propensity_b=settings.propensity_b,
    )
