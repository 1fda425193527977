"""Time of a training step beside the encoder's own forward and backward on the same batch, and where the rest goes.

    .venv/bin/python tests/benchmarks/training_step.py

One worker, stage 2, the real default encoder, random texts, labels and edges of the default dataset's shape. Each
figure is the median of the steps, measured in turn with the encoder alone, so that both see the same machine. What
waiting for data takes stands in the history of a run, `stage2/model/history.json`.
"""

import argparse
import statistics
from collections import defaultdict

import torch

from elias_ray import clock
from elias_ray.adjacency import Adjacency
from elias_ray.clock import timed
from elias_ray.cluster_classifiers import ClusterClassifiers
from elias_ray.config import load_config
from elias_ray.encoder import Encoder
from elias_ray.label_classifiers import LabelClassifiers
from elias_ray.metrics import PAD
from elias_ray.model import Elias, Search, loss
from elias_ray.table_optimizer import Table, TableOptimizer
from elias_ray.workers import alone

NUM_LABELS, NUM_CLUSTERS, LABELS_PER_POINT = 19_150, 256, 4
ALONE, IN_BFLOAT16, UPDATE = "encoder alone", "encoder alone, bfloat16", "update of W_L and A"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=24, help="of the longest text of a batch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--labels-per-row", type=int, default=1000, help="kappa")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    g = torch.Generator().manual_seed(0)
    model = make_model(arguments.labels_per_row, g)
    clusters, labels, edges = model.cluster_classifiers, model.label_classifiers, model.adjacency
    assert edges.weights_grad is not None
    tables = [
        Table("W_L.weight", labels.weight, labels.weight_grad, 0.01),
        Table("W_L.bias", labels.bias, labels.bias_grad, 0.0),
        Table("A", edges.weights, edges.weights_grad, 0.0),
    ]
    update_every = load_config().training.table_update_every
    tables_C = [
        Table("W_C.weight", clusters.weight, clusters.weight_grad, 0.01),
        Table("W_C.bias", clusters.bias, clusters.bias_grad, 0.0),
    ]
    rates = [1e-3] * arguments.steps
    optimizer_C = TableOptimizer(tables_C, rates, update_every=1)
    optimizer = TableOptimizer(tables, rates, update_every=1)  # measured at every step, counted once in `update_every`
    parents_L = torch.cat([edges.parents(NUM_LABELS), torch.tensor([PAD])])
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(arguments.steps):
        lengths = torch.randint(arguments.tokens // 2, arguments.tokens + 1, (arguments.batch, 1), generator=g)
        mask = (torch.arange(arguments.tokens) < lengths).long()
        ids = torch.randint(1000, 20_000, mask.shape, generator=g) * mask
        positives = torch.randint(NUM_LABELS, (arguments.batch, LABELS_PER_POINT), generator=g)
        with timed(ALONE):
            model.encoder(ids, mask).sum().backward()
        model.encoder.precision = "bfloat16"
        with timed(IN_BFLOAT16):
            model.encoder(ids, mask).sum().backward()
        model.encoder.precision = "float32"
        with timed("encode"):
            embedding = model.encoder(ids, mask)
        detached = embedding.detach().requires_grad_()
        found = model.search(detached, positives, parents_L[positives])
        with timed("loss"):
            value = loss(found, positives, 0.05, alone())
        with timed("backward to phi(x) and the tables"):
            value.backward()
        with timed("backward of the encoder"):
            embedding.backward(detached.grad)
        with timed("update of W_C"):
            optimizer_C.step()
        with timed(UPDATE):
            optimizer.step()
        for part, spent in clock.take().items():
            seconds[part].append(spent / update_every if part == UPDATE else spent)
    medians = {part: statistics.median(spent) for part, spent in seconds.items()}
    medians["step"] = sum(spent for part, spent in medians.items() if part not in (ALONE, IN_BFLOAT16))
    for part, spent in medians.items():
        print(f"{part:<44}{1000 * spent:>9.1f} ms{spent / medians[ALONE]:>8.2f}")


def make_model(labels_per_row: int, g: torch.Generator) -> Elias:
    config = load_config()
    search = config.search
    encoder = Encoder.of(config.encoder).train()
    size = encoder.embedding_size
    rows = [torch.randperm(NUM_LABELS, generator=g)[:labels_per_row].sort().values for _ in range(NUM_CLUSTERS)]
    labels_CR = torch.stack(rows).int()
    weight = 0.02 * torch.randn(NUM_LABELS, size, generator=g)
    return Elias(
        encoder,
        ClusterClassifiers(
            0.02 * torch.randn(NUM_CLUSTERS, size, generator=g), torch.zeros(NUM_CLUSTERS), NUM_CLUSTERS
        ),
        Adjacency(labels_CR, torch.rand(labels_CR.shape, generator=g), search.beta, NUM_CLUSTERS),
        LabelClassifiers(weight, torch.zeros(NUM_LABELS), NUM_LABELS),
        Search(search.alpha, search.beam, search.shortlist, search.extra_clusters),
    )


if __name__ == "__main__":
    main()
