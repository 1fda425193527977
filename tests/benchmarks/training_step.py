"""Time of a training step beside the encoder's own forward and backward on the same batch, and where the rest goes.

    .venv/bin/python tests/benchmarks/training_step.py

One worker, stage 2, the real default encoder, random texts, labels and edges of the default dataset's shape. Each
figure is the median of the steps, measured in turn with the encoder alone, so that both see the same machine.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from elias_ray import model
from elias_ray.adjacency import Adjacency
from elias_ray.config import load_config
from elias_ray.encoder import Encoder
from elias_ray.label_classifiers import LabelClassifiers
from elias_ray.shortlist import PAD, explore
from elias_ray.table_optimizer import Table, TableOptimizer
from elias_ray.workers import alone

NUM_LABELS, NUM_CLUSTERS, LABELS_PER_POINT = 19_150, 256, 4


class Clock:
    """Seconds of each named part, step by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[part].append(time.perf_counter() - started)

    def median(self, part: str) -> float:
        return statistics.median(self.seconds[part])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=24, help="of the longest text of a batch")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    g = torch.Generator().manual_seed(0)
    config = load_config()
    search = config.search
    encoder = Encoder(config.encoder.name, config.encoder.pooling, config.encoder.dropout).train()
    size = encoder.embedding_size
    cluster_classifiers = nn.Linear(size, NUM_CLUSTERS)
    labels_CR = torch.stack(
        [torch.randperm(NUM_LABELS, generator=g)[: search.labels_per_row].sort().values for _ in range(NUM_CLUSTERS)]
    )
    adjacency = Adjacency(labels_CR.int(), torch.rand(labels_CR.shape, generator=g), search.beta, NUM_CLUSTERS)
    weight = 0.02 * torch.randn(NUM_LABELS, size, generator=g)
    classifiers = LabelClassifiers(weight, torch.zeros(NUM_LABELS), NUM_LABELS)
    assert adjacency.weights_grad is not None
    tables = TableOptimizer(
        [
            Table("W_L", classifiers.weight, classifiers.weight_grad, 0.01),
            Table("b_L", classifiers.bias, classifiers.bias_grad, 0.0),
            Table("A", adjacency.weights, adjacency.weights_grad, 0.0),
        ],
        config.training.table_update_every,
    )
    parents_L = torch.cat([adjacency.parents(NUM_LABELS), torch.tensor([PAD])])
    settings = model.Search(search.alpha, search.beam, search.shortlist)
    clock = Clock()
    for _ in range(arguments.steps):
        lengths = torch.randint(arguments.tokens // 2, arguments.tokens + 1, (arguments.batch, 1), generator=g)
        mask = (torch.arange(arguments.tokens) < lengths).long()
        ids = torch.randint(1000, 20_000, mask.shape, generator=g) * mask
        positives = torch.randint(NUM_LABELS, (arguments.batch, LABELS_PER_POINT), generator=g)
        with clock("encoder alone"):
            encoder(ids, mask).sum().backward()
        step(clock, encoder, cluster_classifiers, adjacency, classifiers, settings, ids, mask, positives, parents_L)
        tables.step(learning_rate=1e-3)
    tables.flush(learning_rate=1e-3)
    report(clock, config.training.table_update_every, tables)


def step(
    clock: Clock,
    encoder: Encoder,
    cluster_classifiers: nn.Linear,
    adjacency: Adjacency,
    classifiers: LabelClassifiers,
    settings: model.Search,
    ids: Tensor,
    mask: Tensor,
    positives: Tensor,
    parents_L: Tensor,
) -> None:
    with clock("encode"):
        embedding = encoder(ids, mask)
    detached = embedding.detach().requires_grad_()
    with clock("search and score"):
        found = model.search(
            detached, cluster_classifiers, adjacency, classifiers, settings, positives, parents_L[positives]
        )
    with clock("loss"):
        value = model.loss(found, positives, 0.05, alone())
    with clock("backward to the embedding and the tables"):
        value.backward()
    with clock("backward of the encoder"):
        embedding.backward(detached.grad)
    with torch.no_grad():  # once more, for the breakdown only
        log_clusters = model.cluster_log_scores(cluster_classifiers, embedding, settings.alpha)
        with clock("(of these: explore and best paths)"):
            clusters = explore(log_clusters, settings.beam, parents_L[positives], settings.extra)
            scores = log_clusters.gather(1, clusters.clamp(min=0))
            best = adjacency.best_paths(clusters, scores, settings.shortlist, positives)
        with clock("(of these: label logits)"):
            classifiers.logits(embedding, best.labels_BK)


def report(clock: Clock, update_every: int, tables: TableOptimizer) -> None:
    started = time.perf_counter()
    tables.accumulated = 1
    tables.flush(learning_rate=1e-3)
    update = (time.perf_counter() - started) / update_every
    whole = update + sum(clock.median(part) for part in clock.seconds if not part.startswith(("(", "encoder")))
    alone_seconds = clock.median("encoder alone")
    for part in clock.seconds:
        print(f"{part:<44}{1000 * clock.median(part):>9.1f} ms{clock.median(part) / alone_seconds:>8.2f}")
    print(f"{f'tables, updated every {update_every} steps':<44}{1000 * update:>9.1f} ms{update / alone_seconds:>8.2f}")
    print(f"{'step':<44}{1000 * whole:>9.1f} ms{whole / alone_seconds:>8.2f}")


if __name__ == "__main__":
    main()
