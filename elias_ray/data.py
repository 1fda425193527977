"""The prepared data of a run, as the later steps read it.

A split is a list of Parquet shards, one row a point:
  row            number of the point in the user's file, from 0
  text           as it came, less label markup
  input_ids      token ids, special tokens included, not padded
  labels         ids of its labels, ascending
  filtered       ids of labels whose score does not count for it ("LF-" sets)
  tfidf_columns, tfidf_values    psi(x), norm 1
`labels.parquet` holds name and training frequency of every label, in the order of the ids;
`terms.parquet` the terms of the tf-idf columns with document frequency and idf.
"""

import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy.sparse as sp

from elias_ray.artifacts import Folder
from elias_ray.formats.source import SplitName

SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")
LABELS, TERMS = "labels.parquet", "terms.parquet"
SHARD_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("text", pa.large_string()),
        ("input_ids", pa.list_(pa.int32())),
        ("labels", pa.list_(pa.int32())),
        ("filtered", pa.list_(pa.int32())),
        ("tfidf_columns", pa.list_(pa.int32())),
        ("tfidf_values", pa.list_(pa.float32())),
    ]
)


@dataclass(frozen=True)
class Prepared:
    folder: Folder
    facts: dict[str, Any]  # of the manifest

    def __reduce__(self) -> tuple[type["Prepared"], tuple[Folder, dict[str, Any]]]:
        """Sent to others without what was read from it."""
        return Prepared, (self.folder, self.facts)

    @property
    def num_labels(self) -> int:
        return int(self.facts["num_labels"])

    @property
    def num_terms(self) -> int:
        return int(self.facts["num_terms"])

    def num_rows(self, split: SplitName) -> int:
        return int(self.facts["splits"][split]["points"])

    def shards(self, split: SplitName) -> dict[str, int]:
        """Name -> rows, in the order of the rows."""
        return dict(self.facts["splits"][split]["shards"])

    @cached_property
    def label_names(self) -> list[str]:
        return list(self.folder.read_table(LABELS, ["name"])["name"].to_pylist())

    @cached_property
    def label_frequency_L(self) -> npt.NDArray[np.int64]:
        """Training points of each label: (L,)."""
        return self.folder.read_table(LABELS, ["frequency"])["frequency"].to_numpy()

    def labels(self, split: SplitName) -> sp.csr_matrix:
        """Y: (points x L), binary."""
        return self._matrix(self.shards(split), "labels", None, self.num_labels)

    def tfidf(self, split: SplitName) -> sp.csr_matrix:
        """psi: (points x terms)."""
        return self._matrix(self.shards(split), "tfidf_columns", "tfidf_values", self.num_terms)

    def tfidf_of_shard(self, shard: str) -> sp.csr_matrix:
        return self._matrix([shard], "tfidf_columns", "tfidf_values", self.num_terms)

    def labels_of_shard(self, shard: str) -> sp.csr_matrix:
        return self._matrix([shard], "labels", None, self.num_labels)

    def filtered_of_shard(self, shard: str) -> sp.csr_matrix:
        """Pairs whose score does not count."""
        return self._matrix([shard], "filtered", None, self.num_labels)

    def _matrix(self, shards: Iterable[str], columns: str, values: str | None, width: int) -> sp.csr_matrix:
        """List columns of these shards as one sparse matrix."""
        lengths, indices, data = [np.zeros(1, np.int64)], [], []
        for shard in shards:
            table = self.folder.read_table(shard, [columns] + ([values] if values else []))
            for part in table[columns].chunks:
                lengths.append(np.diff(part.offsets.to_numpy()).astype(np.int64))
                indices.append(part.flatten().to_numpy())
            for part in table[values].chunks if values else ():
                data.append(part.flatten().to_numpy())
        flat = np.concatenate(indices) if indices else np.zeros(0, np.int32)
        weights = np.concatenate(data) if data else np.ones(len(flat), np.float32)
        indptr = np.cumsum(np.concatenate(lengths))
        return sp.csr_matrix((weights, flat, indptr), shape=(len(indptr) - 1, width))


def matrix_column(values_NK: npt.NDArray[Any]) -> pa.FixedSizeListArray:
    """A matrix as a column, one row of it a row."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values_NK.reshape(-1)), values_NK.shape[1])


def read_matrix(folder: Folder, name: str, column: str) -> npt.NDArray[Any]:
    """What `matrix_column` made of it: (N, K), not to be written to."""
    lists = folder.read_table(name, [column])[column].combine_chunks()
    return lists.flatten().to_numpy().reshape(len(lists), lists.type.list_size)


def read_vectors(folder: Folder, shard: str) -> npt.NDArray[np.float32]:
    """The embeddings of a shard's rows, from the table of the same name: (rows, D)."""
    return read_matrix(folder, posixpath.basename(shard), "embedding")


def list_column(lengths: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> pa.ListArray:
    """A list column from the lengths of its rows and their values one after the other."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
