"""What the parameters are before training; the same for any number of workers.

Legend: N points of a shard, L labels, C clusters, D embedding size.
"""

import zlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from sklearn.preprocessing import normalize
from torch import Tensor

ROWS_AT_ONCE = 4096
STANDARD_DEVIATION = 0.02  # of random weights, as BERT's
START_BIAS = -6.0  # of W_L: nearly all labels of a shortlist are wrong
SHARPNESS = 10.0  # logit of a point that lies on its centroid, over that of one at right angles to it


class Centroids(NamedTuple):
    """Classifiers along the centroids of their points."""

    clusters_CD: Tensor
    labels_LD: Tensor  # of the rows asked for


def random_rows(name: str, seed: int, rows: range, width: int, uniform: bool = False) -> Tensor:
    """Rows of a random table, normal or uniform(0, 1); a row depends on its number, the name and the seed alone."""
    parts = []
    for block in range(rows.start // ROWS_AT_ONCE, -(-rows.stop // ROWS_AT_ONCE)):
        rng = np.random.default_rng((seed, zlib.crc32(name.encode()), block))
        shape = (ROWS_AT_ONCE, width)
        values = (
            rng.random(shape, np.float32) if uniform else STANDARD_DEVIATION * rng.standard_normal(shape, np.float32)
        )
        first = block * ROWS_AT_ONCE
        parts.append(values[max(rows.start - first, 0) : rows.stop - first])
    return torch.from_numpy(np.concatenate(parts) if parts else np.zeros((0, width), np.float32))


def centroids(
    shards: Iterable[tuple[npt.NDArray[np.float32], sp.csr_matrix]],
    clusters_L: npt.NDArray[np.int32],
    num_clusters: int,
    rows: range,
    embedding_size: int,
) -> Centroids:
    """`shards` are the embeddings and the labels of training points.

    Scaled so that w . phi is SHARPNESS times the cosine for a point of mean length.
    """
    num_labels = len(clusters_L)
    in_cluster_LC = sp.csr_matrix(
        (np.ones(num_labels, np.float32), (np.arange(num_labels), clusters_L)), shape=(num_labels, num_clusters)
    )
    clusters_CD = np.zeros((num_clusters, embedding_size), np.float32)
    labels_LD = np.zeros((len(rows), embedding_size), np.float32)
    length, num_points = 0.0, 0
    for vectors_ND, labels_NL in shards:
        lengths_N = np.linalg.norm(vectors_ND, axis=1)
        length, num_points = length + float(lengths_N.sum()), num_points + len(lengths_N)
        unit_ND = vectors_ND / np.maximum(lengths_N, 1e-12)[:, None]
        clusters_CD += (labels_NL @ in_cluster_LC).T @ unit_ND
        mine_NL = labels_NL[:, rows.start : rows.stop]
        seen = np.unique(mine_NL.indices)  # few of three million
        labels_LD[seen] += mine_NL[:, seen].T @ unit_ND
    scale = SHARPNESS / max(length / max(1, num_points), 1e-12)
    for table in (clusters_CD, labels_LD):
        normalize(table, copy=False)
        table *= scale
    return Centroids(torch.from_numpy(clusters_CD), torch.from_numpy(labels_LD))
