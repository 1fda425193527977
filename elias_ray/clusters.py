"""Step 2 of a run: labels with similar centroids into C clusters of equal size.

Legend: N training points, L labels, C clusters, F terms, D embedding size.
"""

import math
import time

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray
import scipy.sparse as sp
from pecos.xmc.base import HierarchicalKMeans
from sklearn.preprocessing import normalize

from elias_ray.artifacts import Folder, committed, committing, key_of
from elias_ray.config import Config
from elias_ray.data import Prepared, read_vectors
from elias_ray.errors import UserError
from elias_ray.sparse_products import heaviest_product

CLUSTERS = "clusters.parquet"
ROWS_AT_ONCE = 2**14


def choose_num_clusters(num_labels: int, config: Config) -> int:
    """C as configured, else a power of two: the first at or above L/100 (the paper's) and b, but never above L."""
    count = config.clusters.count
    if count is None:
        wanted = max(num_labels / 100, config.search.beam)
        count = min(1 << math.ceil(math.log2(wanted)), 1 << int(math.log2(num_labels)))
    elif count > num_labels:
        raise UserError(f"clusters.count={count} exceeds the number of labels, {num_labels}; use null or less")
    largest = math.ceil(num_labels / count)
    if largest > config.search.labels_per_row:
        raise UserError(
            f"{num_labels} labels in {count} clusters are up to {largest} a cluster, more than "
            f"search.labels_per_row={config.search.labels_per_row}; use more of either"
        )
    return count


def make_clusters(
    folder: Folder, prepared: Prepared, config: Config, seed: int, embeddings: Folder | None = None
) -> None:
    """Made now unless they were, on tf-idf and, where given, the embeddings of the training points beside it."""
    num_clusters = choose_num_clusters(prepared.num_labels, config)
    made_from = key_of(prepared.folder, *([embeddings] if embeddings else []))
    if committed(folder, made_from) is not None:
        print(f"clusters: done before ({folder.path})")
        return
    started = time.monotonic()
    on = "tf-idf and embeddings" if embeddings else "tf-idf"
    print(f"clusters: {prepared.num_labels:,} labels into {num_clusters:,} clusters, on {on}")
    with committing(folder, made_from) as manifest:
        # On whichever node has the most CPUs: the head of a cluster of nodes may have none to give.
        cpus = int(max(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]))
        booked = max(1, cpus // (2 * (config.resources.models_at_once or 1)))  # others may hold some for hours
        task = ray.remote(num_cpus=booked, scheduling_strategy="SPREAD")(_cluster_prepared)  # not a trial's own place
        clusters_L = ray.get(task.remote(prepared, num_clusters, config, seed, embeddings, threads=cpus))
        sizes = np.bincount(clusters_L, minlength=num_clusters)
        manifest.files[CLUSTERS] = folder.write_table(CLUSTERS, pa.table({"cluster": clusters_L}))
        manifest.facts.update(num_clusters=num_clusters, smallest=int(sizes.min()), largest=int(sizes.max()))
    seconds = time.monotonic() - started
    print(f"clusters: {num_clusters:,} of {sizes.min():,} to {sizes.max():,} labels, in {seconds:.1f} s")


def read_clusters(folder: Folder) -> npt.NDArray[np.int32]:
    """The cluster of each label: (L,)."""
    return folder.read_table(CLUSTERS)["cluster"].to_numpy()


def label_centroids(
    psi_NF: sp.csr_matrix,
    labels_NL: sp.csr_matrix,
    terms_per_centroid: int,
    embeddings_ND: npt.NDArray[np.float32] | None = None,
) -> sp.csr_matrix:
    """mu_l, the normalised sum of psi over the points of label l: (L x F), or (L x (F + D)) with embeddings.

    Of the terms of a centroid the heaviest are kept: a label with many points would else hold most of the vocabulary,
    and three million of them would not fit. A label without points has an empty row.
    """
    points_LN = labels_NL.T.tocsr().astype(np.float32)
    centroids = heaviest_product(points_LN, psi_NF, terms_per_centroid)
    if embeddings_ND is not None:
        return _beside_embeddings(centroids, points_LN, normalize(embeddings_ND))
    return normalize(centroids, copy=False)


def _beside_embeddings(
    terms_LF: sp.csr_matrix, points_LN: sp.csr_matrix, unit_ND: npt.NDArray[np.float32]
) -> sp.csr_matrix:
    """[terms, points @ unit], rows of length 1: (L x (F + D)). Filled in place, by blocks: at scale it is huge."""
    (num_labels, num_terms), size = terms_LF.shape, unit_ND.shape[1]
    indptr = terms_LF.indptr.astype(np.int64) + size * np.arange(num_labels + 1)
    data, indices = np.empty(indptr[-1], np.float32), np.empty(indptr[-1], np.int32)
    for start in range(0, num_labels, ROWS_AT_ONCE):
        rows = slice(start, min(start + ROWS_AT_ONCE, num_labels))
        block = terms_LF[rows]
        counts = np.diff(block.indptr)
        first = indptr[rows]
        terms_at = np.repeat(first - block.indptr[:-1], counts) + np.arange(block.nnz)
        sums = points_LN[rows] @ unit_ND
        lengths = np.sqrt(np.asarray(block.power(2).sum(axis=1)).ravel() + (sums**2).sum(axis=1))
        lengths[lengths == 0] = 1
        data[terms_at], indices[terms_at] = block.data / np.repeat(lengths, counts), block.indices
        dense_at = (first + counts)[:, None] + np.arange(size)
        data[dense_at], indices[dense_at] = sums / lengths[:, None], num_terms + np.arange(size)
    joined = sp.csr_matrix((num_labels, num_terms + size), dtype=np.float32)
    joined.data, joined.indices, joined.indptr = data, indices, indptr  # as they are: no copy to wider indices
    return joined


def balanced_clusters(
    centroids: sp.csr_matrix, num_clusters: int, seed: int, iterations: int, threads: int
) -> npt.NDArray[np.int32]:
    """The cluster of each label, (L,), by repeated balanced 2-means; sizes differ by one at most."""
    num_labels = centroids.shape[0]
    assert num_clusters <= num_labels, (num_clusters, num_labels)
    centroids = centroids.astype(np.float32, copy=False)
    # With unsigned indices, as libpecos wants them; views, so that nothing is copied.
    unsigned = sp.csr_matrix(centroids.shape, dtype=np.float32)
    unsigned.data, unsigned.indices = centroids.data, centroids.indices.astype(np.int32, copy=False).view(np.uint32)
    unsigned.indptr = centroids.indptr.astype(np.uint64)
    chain = HierarchicalKMeans.gen(
        unsigned,
        nr_splits=2,
        max_leaf_size=math.ceil(num_labels / num_clusters),  # of which libpecos takes as many halvings as give C
        seed=seed,
        kmeans_max_iter=iterations,
        spherical=True,
        threads=threads,
    )
    assignment = chain[-1].tocsr()  # (L x C), one entry a row
    assert assignment.shape == (num_labels, num_clusters), assignment.shape
    assert assignment.nnz == num_labels
    return assignment.indices.astype(np.int32)


def _cluster_prepared(
    prepared: Prepared, num_clusters: int, config: Config, seed: int, embeddings: Folder | None, threads: int
) -> npt.NDArray[np.int32]:
    psi_NF, labels_NL = prepared.tfidf("train"), prepared.labels("train")
    vectors_ND = None
    if embeddings is not None:
        vectors_ND = np.concatenate([read_vectors(embeddings, shard) for shard in prepared.shards("train")])
    centroids = label_centroids(psi_NF, labels_NL, config.clusters.terms_per_centroid, vectors_ND)
    return balanced_clusters(centroids, num_clusters, seed, config.clusters.iterations, threads)
