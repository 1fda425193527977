"""What the parameters are before training; the same for any number of workers.

Legend: N points of a shard, L labels, C clusters, D embedding size.
"""

import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from sklearn.preprocessing import normalize
from torch import Tensor

ROWS_AT_ONCE = 4096
LABELS_AT_ONCE = 2**17
STANDARD_DEVIATION = 0.02  # of random weights, as BERT's
START_BIAS = -6.0  # of W_L: nearly all labels of a shortlist are wrong
SHARPNESS = 10.0  # logit of a point that lies on its centroid, over that of one at right angles to it

Shard = tuple[npt.NDArray[np.float32], sp.csr_matrix]  # embeddings and labels of its points


class Centroids(NamedTuple):
    """Classifiers along the centroids of their points."""

    clusters_CD: Tensor
    labels_LD: Tensor  # of the rows asked for


def random_rows(
    name: str, seed: int, rows: range, width: int, uniform: bool = False, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Rows of a random table, normal or uniform(0, 1); a row depends on its number, the name and the seed alone."""
    table = torch.empty(len(rows), width, dtype=dtype)
    for block in range(rows.start // ROWS_AT_ONCE, -(-rows.stop // ROWS_AT_ONCE)):
        rng = np.random.default_rng((seed, zlib.crc32(name.encode()), block))
        shape = (ROWS_AT_ONCE, width)
        values = (
            rng.random(shape, np.float32) if uniform else STANDARD_DEVIATION * rng.standard_normal(shape, np.float32)
        )
        first = block * ROWS_AT_ONCE
        wanted = values[max(rows.start - first, 0) : rows.stop - first]
        start = max(first - rows.start, 0)
        table[start : start + len(wanted)] = torch.from_numpy(wanted)
    return table


def centroids(
    shards: Callable[[], Iterable[Shard]],
    clusters_L: npt.NDArray[np.int32],
    num_clusters: int,
    rows: range,
    embedding_size: int,
    dtype: torch.dtype = torch.float32,
) -> Centroids:
    """`shards` gives the embeddings and the labels of training points, as often as it is asked; `dtype` is W_L's.

    Scaled so that w . phi is SHARPNESS times the cosine for a point of mean length.
    """
    num_labels = len(clusters_L)
    in_cluster_LC = sp.csr_matrix(
        (np.ones(num_labels, np.float32), (np.arange(num_labels), clusters_L)), shape=(num_labels, num_clusters)
    )
    clusters_CD = np.zeros((num_clusters, embedding_size), np.float32)
    length, num_points = 0.0, 0
    for vectors_ND, labels_NL in shards():
        length, num_points = length + float(np.linalg.norm(vectors_ND, axis=1).sum()), num_points + len(vectors_ND)
        clusters_CD += (labels_NL @ in_cluster_LC).T @ _unit(vectors_ND)
    scale = SHARPNESS / max(length / max(1, num_points), 1e-12)
    labels_LD = torch.empty(len(rows), embedding_size, dtype=dtype)
    at_once = min(LABELS_AT_ONCE, max(ROWS_AT_ONCE, len(rows) // 4))  # no more of them are there in float32
    for start in range(0, len(rows), at_once):
        part = rows[start : start + at_once]
        part_LD = np.zeros((len(part), embedding_size), np.float32)
        for vectors_ND, labels_NL in shards():
            mine_NL = labels_NL[:, part.start : part.stop]
            seen = np.unique(mine_NL.indices)  # few of three million
            part_LD[seen] += mine_NL[:, seen].T @ _unit(vectors_ND)
        labels_LD[start : start + len(part)] = torch.from_numpy(_scaled(part_LD, scale))
    return Centroids(torch.from_numpy(_scaled(clusters_CD, scale)), labels_LD)


def _scaled(table: npt.NDArray[np.float32], length: float) -> npt.NDArray[np.float32]:
    """In place, all rows to one length; what is 0 stays."""
    normalize(table, copy=False)
    table *= length
    return table


def _unit(vectors_ND: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return vectors_ND / np.maximum(np.linalg.norm(vectors_ND, axis=1), 1e-12)[:, None]
