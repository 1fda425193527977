"""Time and peak memory of label centroids and clusters on a generated set of Amazon-3M's shape.

    .venv/bin/python tests/benchmarks/clusters_at_scale.py --labels 2812281

Points draw their words from a topic's own words and from all words (both with a Zipf tail), and their labels likewise,
so that labels have something to be clustered by. The number of points follows from the number of labels.
"""

import argparse
import resource
import time

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.preprocessing import normalize

from elias_ray.clusters import balanced_clusters, choose_num_clusters, label_centroids
from elias_ray.config import load_config

POINTS_PER_LABEL = 1_717_899 / 2_812_281
LABELS_PER_POINT = 46  # drawn; about 36 are different
TERMS = 337_067
TERMS_PER_POINT = 66  # drawn; about 60 are different
LABELS_PER_TOPIC = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, default=100_000)
    parser.add_argument("--terms-per-centroid", type=int, default=256)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    psi, labels, topics_L = generate(arguments.labels, np.random.default_rng(0))
    per_point = f"{labels.nnz / labels.shape[0]:.1f} labels, {psi.nnz / psi.shape[0]:.1f} terms each"
    report(f"points ({per_point})", psi.shape[0])

    started = time.monotonic()
    centroids = label_centroids(psi, labels, arguments.terms_per_centroid)
    report("centroids", centroids.nnz, time.monotonic() - started)
    del psi, labels

    started = time.monotonic()
    num_clusters = choose_num_clusters(arguments.labels, load_config())
    clusters_L = balanced_clusters(centroids, num_clusters, 0, arguments.iterations, arguments.threads)
    report("clusters", num_clusters, time.monotonic() - started)
    sizes = np.bincount(clusters_L, minlength=num_clusters)
    print(f"cluster sizes {sizes.min()} to {sizes.max()}")
    print(f"labels of their cluster's main topic: {purity(clusters_L, topics_L):.1%}")


def generate(num_labels: int, rng: np.random.Generator) -> tuple[sp.csr_matrix, sp.csr_matrix, npt.NDArray[np.int64]]:
    num_points, num_topics = int(num_labels * POINTS_PER_LABEL), max(1, num_labels // LABELS_PER_TOPIC)
    topic_of_point = rng.integers(num_topics, size=num_points)
    topics_L = np.arange(num_labels) % num_topics
    labels = rows_of(num_points, num_labels, LABELS_PER_POINT, rng, topic_of_point, num_topics, own=0.95)
    labels.data[:] = 1
    psi = rows_of(num_points, TERMS, TERMS_PER_POINT, rng, topic_of_point, num_topics, own=0.5)
    return normalize(psi, copy=False), labels, topics_L


def rows_of(
    rows: int,
    columns: int,
    per_row: int,
    rng: np.random.Generator,
    topic_of_row: npt.NDArray[np.int64],
    num_topics: int,
    own: float,
) -> sp.csr_matrix:
    """Columns of each row: those of its topic (column % topics == topic) with probability `own`, else any."""
    shape = (rows, per_row)
    within = columns // num_topics
    # log-uniform ranks have a Zipf tail
    ranks = np.exp(rng.random(shape, np.float32) * np.log(within)).astype(np.int32) - 1
    indices = ranks * num_topics + topic_of_row.astype(np.int32)[:, None]
    anywhere = rng.random(shape, np.float32) >= own
    indices[anywhere] = rng.integers(columns, size=int(anywhere.sum()), dtype=np.int32)
    indptr = np.arange(0, rows * per_row + 1, per_row, dtype=np.int64)
    matrix = sp.csr_matrix((np.ones(rows * per_row, np.float32), indices.ravel(), indptr), shape=(rows, columns))
    matrix.sum_duplicates()
    return matrix


def purity(clusters_L: npt.NDArray[np.int32], topics_L: npt.NDArray[np.int64]) -> float:
    table = sp.csr_matrix((np.ones(len(clusters_L)), (clusters_L, topics_L)))
    return float(table.max(axis=1).sum() / len(clusters_L))


def report(what: str, entries: int, seconds: float | None = None) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    took = f" in {seconds:.0f} s" if seconds is not None else ""
    print(f"{what}: {entries:,}{took}; peak memory so far {peak:.1f} GiB", flush=True)


if __name__ == "__main__":
    main()
