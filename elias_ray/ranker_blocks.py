"""Step of a run: the sparse ranker, trained block by block by actors on CPUs wherever the cluster has some.

Labels are cut into blocks of about equal work in the order of their clusters, so that a block's labels share their
points. An actor reads the shards one by one and keeps the rows that its block needs, trains it, and commits it together
with q of the validation and test pairs of its labels: what a lost actor or a killed job costs is the block it was at.

Legend: N points, L labels, B labels of a block, F features, Q pairs of a point and a label.
"""

import hashlib
import posixpath
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray
import scipy.sparse as sp
from tqdm import tqdm

from elias_ray import config as configs
from elias_ray.artifacts import Folder, committed, committing, key_of
from elias_ray.clusters import read_clusters
from elias_ray.data import SPLITS, Prepared, read_vectors
from elias_ray.errors import UserError
from elias_ray.features import psi
from elias_ray.formats.source import SplitName
from elias_ray.memory import GIB
from elias_ray.plan import SCORED, Plan, is_ranked
from elias_ray.predictions import Lists, read_predictions, write_predictions
from elias_ray.sparse_ranker import WEIGHTS, Classifiers, train_classifiers, write_classifiers

ATTEMPTS = 3  # at a block, before it is given up


@dataclass(frozen=True)
class Block:
    folder: Folder
    labels_B: npt.NDArray[np.int32]
    pairs: int  # that it is trained on
    rows: int  # points that these are of
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
    def num_features(self) -> int:
        first_shard = next(iter(self.prepared.shards("train")))
        return self.psi_of_shard("train", first_shard, np.zeros(1, np.int64)).shape[1]

    def candidates_of_shard(self, shard: str) -> sp.csr_matrix:
        """Of training points the labels that were predicted or are true, less those that do not count. (N, L)"""
        lists = read_predictions(self.predictions["train"], shard, ())
        predicted_NL = lists.matrix(self.prepared.num_labels, np.ones(len(lists.labels_Q), np.float32))
        counting_NL = predicted_NL - predicted_NL.multiply(self.prepared.filtered_of_shard(shard))
        candidates_NL = sp.csr_matrix(counting_NL + self.prepared.labels_of_shard(shard))
        candidates_NL.eliminate_zeros()
        return candidates_NL

    def psi_of_shard(self, split: SplitName, shard: str, rows: npt.NDArray[np.int64]) -> sp.csr_matrix:
        vectors_ND = read_vectors(self.embeddings[split], shard)[rows]
        return psi(self.prepared.tfidf_of_shard(shard)[rows], vectors_ND)


def train_ranker(plan: Plan) -> None:
    """All blocks that the run lacks, then q of all pairs into prediction shards."""
    title = plan.title_of("ranker")
    if is_ranked(plan):
        print(f"{title}: done before ({plan.ranker.path})")
        return
    inputs, started = inputs_of(plan), time.monotonic()
    blocks = cut_into_blocks(plan, inputs)
    missing = [block for block in blocks if committed(block.folder, block.made_from) is None]
    peaks = train_blocks(plan, inputs, missing, title) if missing else []
    key = key_of(*(block.folder for block in blocks))
    if committed(plan.ranker / "model", key) is None:
        with committing(plan.ranker / "model", key) as manifest:
            manifest.facts.update(
                blocks=[block.name for block in blocks],
                features=inputs.num_features,
                ranked_from=plan.ranked_from,
                peak_memory=peaks,
            )
    present = {path.partition("/")[0] for path in (plan.ranker / "blocks").files()}
    for name in present - {block.name for block in blocks}:
        (plan.ranker / "blocks" / name).delete()  # of another cut
    for split in SCORED:
        write_scores(inputs, blocks, split, plan.ranked(split), key)
    print(f"{title}: done in {time.monotonic() - started:.0f} s")


def inputs_of(plan: Plan) -> Inputs:
    return Inputs(
        plan.prepared,
        {split: plan.predictions(split) for split in SPLITS},
        {split: plan.embeddings(plan.encoder_name, split) for split in SPLITS},
    )


def cut_into_blocks(plan: Plan, inputs: Inputs) -> list[Block]:
    """In the order of their clusters, about `resources.ranker_pairs_per_block` pairs each; a label is never cut."""
    num_labels = plan.prepared.num_labels
    pairs_L = np.zeros(num_labels, np.int64)
    for shard in plan.prepared.shards("train"):
        pairs_L += np.bincount(inputs.candidates_of_shard(shard).indices, minlength=num_labels)
    order_L = np.argsort(read_clusters(plan.clusters), kind="stable").astype(np.int32)
    before_L = np.cumsum(pairs_L[order_L]) - pairs_L[order_L]
    starts = np.flatnonzero(np.diff(before_L // plan.config.resources.ranker_pairs_per_block, prepend=-1))
    labels_of_blocks = np.split(order_L, starts[1:])
    block_of_L = np.empty(num_labels, np.int64)
    block_of_L[order_L] = np.repeat(np.arange(len(labels_of_blocks)), [len(labels) for labels in labels_of_blocks])
    rows = np.zeros(len(labels_of_blocks), np.int64)
    for shard in plan.prepared.shards("train"):
        candidates = inputs.candidates_of_shard(shard)
        row_of_Q = np.repeat(np.arange(candidates.shape[0]), np.diff(candidates.indptr))
        blocks_of_rows = np.unique(row_of_Q * len(rows) + block_of_L[candidates.indices])
        rows += np.bincount(blocks_of_rows % len(rows), minlength=len(rows))
    key = plan.ranked_from.encode()
    return [
        Block(
            plan.ranker / "blocks" / f"{number:06d}",
            labels_B,
            int(pairs_L[labels_B].sum()),
            int(rows[number]),
            hashlib.sha256(key + labels_B.tobytes()).hexdigest(),
        )
        for number, labels_B in enumerate(labels_of_blocks)
    ]


def train_blocks(plan: Plan, inputs: Inputs, blocks: list[Block], title: str) -> list[int]:
    """The most bytes that each actor may have taken."""
    resources = plan.config.resources
    threads = resources.ranker_threads
    memory = int(GIB * resources.ranker_memory) if resources.ranker_memory else memory_of_actor(inputs, blocks)
    count = min(len(blocks), resources.ranker_actors or room_for_actors(threads, memory))
    labels = sum(len(block.labels_B) for block in blocks)
    print(
        f"{title}: {labels:,} labels in {len(blocks)} blocks, on {count} actors of {threads} CPUs and "
        f"{memory / GIB:.1f} GiB each",
        flush=True,
    )
    actor = ray.remote(num_cpus=threads, memory=memory, max_restarts=-1, max_task_retries=ATTEMPTS - 1)(BlockTrainer)
    actors = [actor.remote(inputs, plan.config.ranker, threads) for _ in range(count)]
    peak = 0
    try:
        with tqdm(total=sum(block.pairs for block in blocks), desc=title, unit=" pairs", unit_scale=True) as bar:
            for made in make_all(actors, blocks, title):
                bar.update(made.pairs)
                peak = max(peak, made.peak_memory)
    except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
        raise UserError(
            f"{title}: an actor was lost {ATTEMPTS} times at one block ({str(error).splitlines()[0]}); if it ran out "
            f"of memory, use resources.ranker_pairs_per_block below {resources.ranker_pairs_per_block} or fewer "
            "resources.ranker_actors; run again to go on with the blocks that are left"
        ) from None
    finally:
        for handle in actors:
            ray.kill(handle)
    print(f"{title}: peak memory of an actor {peak / GIB:.2f} GiB")
    return [peak] * count


def make_all(actors: list[Any], blocks: list[Block], title: str) -> "Iterator[Made]":
    """Blocks as they are made. Only an actor that has started gets one: others may wait for CPUs that never come."""
    left = sorted(blocks, key=lambda block: block.pairs)  # the largest is taken first, so that actors end together
    starting = {actor.started.remote(): actor for actor in actors}
    making: dict[ray.ObjectRef[Any], Any] = {}
    while left or making:
        done, _ = ray.wait([*starting, *making], timeout=60)
        if not done and not making:
            print(f"{title}: waiting for the CPUs and memory of an actor", flush=True)
        for answer in done:
            made = ray.get(answer)
            actor = starting.pop(answer) if answer in starting else making.pop(answer)
            if made is not None:
                yield made
            if left:
                making[actor.make.remote(left.pop())] = actor
            else:
                ray.kill(actor)  # somebody else may be waiting for its CPUs


def memory_of_actor(inputs: Inputs, blocks: list[Block]) -> int:
    """Bytes of the largest block: psi of its rows, twice while they are joined, its pairs, and Python itself."""
    shard, rows = next(iter(inputs.prepared.shards("train").items()))
    sample = np.arange(min(rows, 1000))
    per_row = 8 * inputs.psi_of_shard("train", shard, sample).getnnz() / len(sample)
    return int(max(2 * per_row * block.rows + 40 * block.pairs for block in blocks) + 0.5 * GIB)


def room_for_actors(threads: int, memory: int) -> int:
    """As many as the nodes have CPUs and memory for."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = sum(int(min(node.get("CPU", 0) // threads, node.get("memory", 0) // memory)) for node in nodes)
    if not room:
        most = max(node.get("memory", 0) for node in nodes) / GIB
        raise UserError(
            f"an actor of the ranker takes {threads} CPUs and {memory / GIB:.1f} GiB, which no node has (the largest "
            f"{most:.1f} GiB); use a smaller resources.ranker_pairs_per_block or resources.ranker_threads, or, where "
            "nodes will come, set resources.ranker_actors"
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

    def started(self) -> None:
        """Answers once the actor is there."""

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
        candidates_NB = inputs.candidates_of_shard(shard)[:, labels_B]
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
