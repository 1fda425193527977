"""Step of a run: the sparse ranker, trained block by block by actors on CPUs wherever the cluster has some.

Labels are cut into blocks of about equal work in the order of their clusters, so that a block's labels share their
points. An actor reads the rows that a block needs and nothing else, trains it, and commits it together with q of the
validation and test pairs of its labels: what a lost actor or a killed job costs is the block it was at.

Legend: N points, L labels, B labels of a block, F features, Q pairs of a point and a label.
"""

import hashlib
import posixpath
import resource
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray
import scipy.sparse as sp
from ray.util import ActorPool
from tqdm import tqdm

from elias_ray import config as configs
from elias_ray.artifacts import Folder, committed, committing, key_of
from elias_ray.clusters import read_clusters
from elias_ray.data import SPLITS, Prepared, read_vectors
from elias_ray.errors import UserError
from elias_ray.features import psi
from elias_ray.formats.source import SplitName
from elias_ray.memory import GIB
from elias_ray.plan import Plan, said_of
from elias_ray.predictions import Lists, read_predictions, write_predictions
from elias_ray.sparse_ranker import WEIGHTS, Classifiers, train_classifiers, write_classifiers

SCORED: tuple[SplitName, ...] = ("validation", "test")
ATTEMPTS = 3  # at a block, before it is given up


@dataclass(frozen=True)
class Block:
    folder: Folder
    labels_B: npt.NDArray[np.int32]
    pairs: int  # that it is trained on, at most
    made_from: str

    @property
    def name(self) -> str:
        return posixpath.basename(self.folder.path)


@dataclass(frozen=True)
class Inputs:
    """What a block is made from: folders with one table a shard of the data."""

    prepared: Prepared
    predictions: dict[SplitName, Folder]
    embeddings: dict[SplitName, Folder]

    @property
    def key(self) -> str:
        return key_of(self.prepared.folder, *self.predictions.values(), *self.embeddings.values())

    @property
    def num_features(self) -> int:
        first_shard = next(iter(self.prepared.shards("train")))
        return self.psi_of_shard("train", first_shard, np.zeros(1, np.int64)).shape[1]

    def psi_of_shard(self, split: SplitName, shard: str, rows: npt.NDArray[np.int64]) -> sp.csr_matrix:
        vectors_ND = read_vectors(self.embeddings[split], shard)[rows]
        return psi(self.prepared.tfidf_of_shard(shard)[rows], vectors_ND)


def train_ranker(plan: Plan) -> None:
    """All blocks that the run lacks, then q of all pairs into prediction shards."""
    title = said_of(plan.member, plan.config) + "ranker"
    inputs, started = inputs_of(plan), time.monotonic()
    blocks = cut_into_blocks(plan, inputs)
    missing = [block for block in blocks if committed(block.folder, block.made_from) is None]
    if missing:
        train_blocks(plan, inputs, missing, title)
    key = key_of(*(block.folder for block in blocks))
    if committed(plan.ranker / "model", key) is None:
        with committing(plan.ranker / "model", key) as manifest:
            manifest.facts.update(blocks=[block.name for block in blocks], features=inputs.num_features)
    for split in SCORED:
        write_scores(inputs, blocks, split, plan.ranked(split), key)
    print(f"{title}: " + (f"done in {time.monotonic() - started:.0f} s" if missing else "done before"))


def inputs_of(plan: Plan) -> Inputs:
    return Inputs(
        plan.prepared,
        {split: plan.predictions(split) for split in SPLITS},
        {split: plan.embeddings(plan.encoder_name, split) for split in SPLITS},
    )


def cut_into_blocks(plan: Plan, inputs: Inputs) -> list[Block]:
    """In the order of their clusters, about `ranker.pairs_per_block` pairs a block; a label is never cut."""
    pairs_L = np.array(plan.prepared.label_frequency_L)  # positives, and then what was predicted
    for shard in plan.prepared.shards("train"):
        labels_Q = read_predictions(inputs.predictions["train"], shard, ()).labels_Q
        pairs_L += np.bincount(labels_Q, minlength=len(pairs_L))
    order_L = np.argsort(read_clusters(plan.clusters), kind="stable").astype(np.int32)
    before_L = np.cumsum(pairs_L[order_L]) - pairs_L[order_L]
    starts = np.flatnonzero(np.diff(before_L // plan.config.ranker.pairs_per_block, prepend=-1))
    key = inputs.key.encode()
    return [
        Block(
            plan.ranker / "blocks" / f"{number:06d}",
            labels_B,
            int(pairs_L[labels_B].sum()),
            hashlib.sha256(key + labels_B.tobytes()).hexdigest(),
        )
        for number, labels_B in enumerate(np.split(order_L, starts[1:]))
    ]


def train_blocks(plan: Plan, inputs: Inputs, blocks: list[Block], title: str) -> None:
    resources = plan.config.resources
    threads = resources.ranker_threads
    memory = int(GIB * resources.ranker_memory) if resources.ranker_memory else memory_of_actor(inputs, blocks)
    count = min(len(blocks), resources.ranker_actors or room_for_actors(threads, memory))
    actor = ray.remote(num_cpus=threads, memory=memory, max_restarts=-1, max_task_retries=ATTEMPTS - 1)(BlockTrainer)
    pool = ActorPool([actor.remote(inputs, plan.config.ranker, threads) for _ in range(count)])
    labels = sum(len(block.labels_B) for block in blocks)
    print(
        f"{title}: {labels:,} labels in {len(blocks)} blocks, on {count} actors of {threads} CPUs and "
        f"{memory / GIB:.1f} GiB each",
        flush=True,
    )
    peak = 0
    with tqdm(total=sum(block.pairs for block in blocks), desc=title, unit=" pairs", unit_scale=True) as bar:
        # Large blocks first, so that actors end together.
        largest_first = sorted(blocks, key=lambda block: -block.pairs)
        try:
            for made in pool.map_unordered(lambda actor, block: actor.make.remote(block), largest_first):
                bar.update(made.pairs)
                peak = max(peak, made.peak_memory)
        except ray.exceptions.RayActorError as error:
            raise UserError(
                f"{title}: an actor was lost {ATTEMPTS} times at one block ({str(error).splitlines()[0]}); if it ran "
                f"out of memory, use ranker.pairs_per_block below {plan.config.ranker.pairs_per_block} or fewer "
                "resources.ranker_actors; run again to go on with the blocks that are left"
            ) from None
    print(f"{title}: peak memory of an actor {peak / GIB:.2f} GiB")


def memory_of_actor(inputs: Inputs, blocks: list[Block]) -> int:
    """Bytes: psi of the rows of the largest block, twice while they are joined, the pairs, and Python itself."""
    shard, rows = next(iter(inputs.prepared.shards("train").items()))
    per_row = 8 * inputs.psi_of_shard("train", shard, np.arange(min(rows, 1000))).getnnz() / min(rows, 1000)
    pairs = max(block.pairs for block in blocks)
    return int(2 * per_row * min(pairs, inputs.prepared.num_rows("train")) + 40 * pairs + 0.3 * GIB)


def room_for_actors(threads: int, memory: int) -> int:
    """As many as the nodes have CPUs and memory for now."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = sum(int(min(node.get("CPU", 0) // threads, node.get("memory", 0) // memory)) for node in nodes)
    if not room:
        most = max(node.get("memory", 0) for node in nodes) / GIB
        raise UserError(
            f"an actor of the ranker takes {threads} CPUs and {memory / GIB:.1f} GiB, which no node has (the largest "
            f"{most:.1f} GiB); use a smaller ranker.pairs_per_block or resources.ranker_threads"
        )
    return room


@dataclass(frozen=True)
class Made:
    pairs: int
    peak_memory: int  # of the actor so far


class BlockTrainer:
    """An actor. It keeps nothing between blocks."""

    def __init__(self, inputs: Inputs, settings: configs.Ranker, threads: int) -> None:
        self.inputs, self.settings, self.threads = inputs, settings, threads

    def make(self, block: Block) -> Made:
        """Unless it was: this may be the second attempt."""
        if committed(block.folder, block.made_from) is None:
            with committing(block.folder, block.made_from) as manifest:
                problem = training_problem(self.inputs, block.labels_B)
                weights_FB = train_classifiers(*problem, self.settings, self.threads)
                classifiers = Classifiers(block.labels_B, weights_FB)
                manifest.files[WEIGHTS] = write_classifiers(block.folder, classifiers)
                for split in SCORED:
                    name = f"{split}.parquet"
                    scores = scores_of_pairs(self.inputs, split, classifiers, self.threads)
                    manifest.files[name] = block.folder.write_table(name, scores)
        return Made(block.pairs, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def training_problem(
    inputs: Inputs, labels_B: npt.NDArray[np.int32]
) -> tuple[sp.csr_matrix, sp.csr_matrix, sp.csr_matrix]:
    """psi (N, F), positives and candidates (N, B) of the training points that have any of these labels among either."""
    prepared, parts = inputs.prepared, []
    for shard in prepared.shards("train"):
        positives_NB = prepared.labels_of_shard(shard)[:, labels_B]
        lists = read_predictions(inputs.predictions["train"], shard, ())
        predicted_NB = lists.matrix(prepared.num_labels, np.ones(len(lists.labels_Q), np.float32))[:, labels_B]
        # What does not count for a point teaches nothing about it.
        counting_NB = predicted_NB - predicted_NB.multiply(prepared.filtered_of_shard(shard)[:, labels_B])
        candidates_NB = sp.csr_matrix(counting_NB + positives_NB)
        candidates_NB.eliminate_zeros()
        rows = np.flatnonzero(np.diff(candidates_NB.indptr))
        if len(rows):
            parts.append((inputs.psi_of_shard("train", shard, rows), positives_NB[rows], candidates_NB[rows]))
    if not parts:  # nobody has these labels; libpecos wants a row
        widths = (inputs.num_features, len(labels_B), len(labels_B))
        parts = [tuple(sp.csr_matrix((1, width), dtype=np.float32) for width in widths)]
    return tuple(sp.vstack(matrices, format="csr") for matrices in zip(*parts, strict=True))


def scores_of_pairs(inputs: Inputs, split: SplitName, classifiers: Classifiers, threads: int) -> pa.Table:
    """q of every predicted pair of the split whose label is of the block; pairs are numbered through the split."""
    pairs, scores, before = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)], 0
    for shard in inputs.prepared.shards(split):
        lists = read_predictions(inputs.predictions[split], shard, ())
        numbers_Q = np.arange(1, len(lists.labels_Q) + 1)  # 0 would be no entry
        asked = lists.matrix(inputs.prepared.num_labels, numbers_Q)[:, classifiers.labels_B].tocoo()
        rows, row_of_Q = np.unique(asked.row, return_inverse=True)
        if len(rows):
            psi_NF = inputs.psi_of_shard(split, shard, rows)
            scores.append(classifiers.scores(psi_NF, row_of_Q, asked.col, threads))
            pairs.append(asked.data - 1 + before)
        before += len(numbers_Q)
    return pa.table({"pair": np.concatenate(pairs), "q": np.concatenate(scores)})


def write_scores(inputs: Inputs, blocks: list[Block], split: SplitName, folder: Folder, made_from: str) -> None:
    """The predictions of the split once more, with p, q and, as their score, p * q; unless they are there."""
    if committed(folder, made_from) is not None:
        return
    shards = inputs.prepared.shards(split)
    lists = {shard: read_predictions(inputs.predictions[split], shard) for shard in shards}
    q_Q = np.full(sum(len(part.labels_Q) for part in lists.values()), np.nan, np.float32)
    for block in blocks:
        table = block.folder.read_table(f"{split}.parquet")
        q_Q[table["pair"].to_numpy()] = table["q"].to_numpy()
    assert not np.isnan(q_Q).any(), f"a predicted pair of {split} is in no block"
    with committing(folder, made_from) as manifest:
        for shard, part in lists.items():
            p, q, q_Q = part.values_Q["scores"], q_Q[: len(part.labels_Q)], q_Q[len(part.labels_Q) :]
            values = {"scores": p * q, "p": p, "q": q}
            entry = write_predictions(folder, inputs.prepared, shard, Lists(part.counts_N, part.labels_Q, values))
            manifest.files[entry.name] = entry
