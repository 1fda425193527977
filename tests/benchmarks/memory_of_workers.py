"""Peak memory of each of 1, 2 and 3 workers in stage 2, beside what the memory plan says of it.

    .venv/bin/python tests/benchmarks/memory_of_workers.py --labels 600000

Real processes (gloo), real tables with their AdamW, random embeddings in place of an encoder's.
"""

import argparse
import os
import resource
import socket
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from elias_ray import memory
from elias_ray.adjacency import Adjacency
from elias_ray.cluster_classifiers import ClusterClassifiers
from elias_ray.label_classifiers import LabelClassifiers
from elias_ray.metrics import PAD
from elias_ray.model import Search, loss, search
from elias_ray.table_optimizer import Table, TableOptimizer
from elias_ray.workers import Workers

SIZE, BEAM, EXTRA, SHORTLIST, LABELS_PER_POINT, UPDATE_EVERY = 384, 20, 5, 2000, 4, 2


def work(rank: int, workers_count: int, port: int, arguments: argparse.Namespace, answers: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=workers_count)
    torch.set_num_threads(1)
    workers = Workers(rank, workers_count)
    g = torch.Generator().manual_seed(rank)
    rows_L, rows_C = workers.block(arguments.labels), workers.block(arguments.clusters)
    shape = (len(rows_C), arguments.labels_per_row)
    before = peak()
    labels_CR = torch.randint(arguments.labels, shape, generator=g, dtype=torch.int32).sort(dim=1).values
    adjacency = Adjacency(labels_CR, torch.rand(shape, generator=g), 150.0, arguments.clusters, workers)
    weight = torch.empty(len(rows_L), SIZE).normal_(std=0.02, generator=g)
    classifiers = LabelClassifiers(weight, torch.zeros(len(rows_L)), arguments.labels, workers)
    assert adjacency.weights_grad is not None
    tables = [
        Table("W_L.weight", classifiers.weight, classifiers.weight_grad, 0.01),
        Table("W_L.bias", classifiers.bias, classifiers.bias_grad, 0.0),
        Table("A", adjacency.weights, adjacency.weights_grad, 0.0),
    ]
    weight_CD = torch.empty(len(rows_C), SIZE).normal_(std=0.02, generator=g)
    clusters = ClusterClassifiers(weight_CD, torch.zeros(len(rows_C)), arguments.clusters, workers)
    tables_C = [
        Table("W_C.weight", clusters.weight, clusters.weight_grad, 0.01),
        Table("W_C.bias", clusters.bias, clusters.bias_grad, 0.0),
    ]
    rates = [1e-3] * (2 * UPDATE_EVERY)
    optimizers = [TableOptimizer(tables_C, rates, 1), TableOptimizer(tables, rates, UPDATE_EVERY)]
    parents_L = torch.cat([adjacency.parents(arguments.labels), torch.tensor([PAD])])
    for _ in rates:
        embedding = torch.randn(arguments.batch // workers_count, SIZE, generator=g)
        positives = torch.randint(arguments.labels, (len(embedding), LABELS_PER_POINT), generator=g)
        settings = Search(10.0, BEAM, SHORTLIST, EXTRA)
        found = search(embedding, clusters, adjacency, classifiers, settings, positives, parents_L[positives])
        loss(found, positives, 0.05, workers).backward()
        for optimizer in optimizers:
            optimizer.step()
    answers.put((rank, peak(), before))
    dist.barrier()
    os._exit(0)  # gloo's threads may abort at exit


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, default=600_000)
    parser.add_argument("--clusters", type=int, default=8192)
    parser.add_argument("--labels-per-row", type=int, default=200)
    parser.add_argument("--batch", type=int, default=96)
    arguments = parser.parse_args()
    print(f"{'workers':<10}{'peak of a worker':>18}{'its tables':>14}{'the rest':>14}{'planned':>14}   GiB")
    for workers_count in (1, 2, 3):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        answers = torch.multiprocessing.get_context("spawn").SimpleQueue()
        spawn(work, (workers_count, port, arguments, answers), nprocs=workers_count)
        peaks = [answers.get() for _ in range(workers_count)]
        most = max(peak_bytes for _, peak_bytes, _ in peaks)
        shapes = memory.Shapes(
            workers=workers_count,
            batch_size=arguments.batch,
            tokens=0,
            rows_ahead=0,
            encoder_parameters=0,
            encoder_layers=0,
            encoder_heads=0,
            encoder_width=0,
            embedding_size=SIZE,
            clusters=arguments.clusters,
            labels=arguments.labels,
            row_length=arguments.labels_per_row,
            beam=BEAM,
            explored=BEAM + EXTRA,
            shortlist=SHORTLIST,
            learns_adjacency=True,
            trains_encoder=False,
            averages=False,
            zero_stage=0,
        )
        lines = memory.plan(shapes)
        tables = sum(size for name, size in lines.items() if name.endswith(("W_C", "W_L", "A", "rows here")))
        figures = [most, tables, most - tables, sum(lines.values())]
        print(f"{workers_count:<10}{figures[0] / memory.GIB:>18.2f}", end="")
        print("".join(f"{figure / memory.GIB:>14.2f}" for figure in figures[1:]))


if __name__ == "__main__":
    main()
