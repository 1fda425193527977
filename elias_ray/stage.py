"""A stage on its workers: what it starts from, its phases of training, and what it leaves.

Legend: D embedding size, C clusters, L labels, R labels of a row of A.
"""

import json
from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from elias_ray import memory
from elias_ray.adjacency import Adjacency, clusters_as_rows
from elias_ray.artifacts import Folder, committed, committing_together, is_committed, key_of
from elias_ray.batches import SHARDS_PER_WINDOW, WINDOWS_AT_ONCE
from elias_ray.checkpoints import Checkpoint, Checkpoints
from elias_ray.cluster_classifiers import ClusterClassifiers
from elias_ray.clusters import read_clusters
from elias_ray.config import Config
from elias_ray.data import read_vectors
from elias_ray.embeddings import embed
from elias_ray.encoder import Encoder, phi
from elias_ray.errors import UserError
from elias_ray.estimate import read_rows_of_a
from elias_ray.formats.source import SplitName
from elias_ray.journal import HISTORY, Journal
from elias_ray.label_classifiers import LabelClassifiers
from elias_ray.loop import Loop, Phase
from elias_ray.model import Elias, Search
from elias_ray.plan import Plan, StageName, settings_of
from elias_ray.predict import best_clusters, predict
from elias_ray.predictions import TOP_K
from elias_ray.saved_model import read_model, read_rows, read_tensors, write_model
from elias_ray.starting_values import START_BIAS, Shard, centroids, random_rows
from elias_ray.worker_group import Worker, machine_memory

EPOCHS_OF_A_STAGE = {"warmup": 0, "stage1": 1_000_000, "stage2": 2_000_000}  # from where they are numbered


def work(plan: Plan, worker: Worker) -> None:
    """All of a stage that the run lacks; on every worker at once."""
    stage = StageOnWorker(plan, worker)
    if is_committed(plan.model, plan.made_from, worker.workers):
        stage.load()
        if worker.first:
            plan.checkpoints.delete()  # if it was lost between these two
    else:
        stage.train()
    stage.write_outputs()


def embed_points(plan: Plan, worker: Worker) -> None:
    """By the encoder as it came."""
    encoder = pretrained_encoder(plan, worker)
    for split in plan.splits_embedded_first:
        folder = plan.embeddings("pretrained", split)
        embed(worker, encoder, plan.prepared, split, folder, key_of(plan.prepared.folder))


def pretrained_encoder(plan: Plan, worker: Worker) -> Encoder:
    return Encoder.of(plan.config.encoder).to(worker.device)


class StageOnWorker:
    def __init__(self, plan: Plan, worker: Worker) -> None:
        self.plan, self.worker = plan, worker
        self.config, self.prepared, self.workers = plan.config, plan.prepared, worker.workers
        self.clusters_L = read_clusters(plan.clusters)
        self.num_clusters = int(self.clusters_L.max()) + 1
        self.num_labels = self.prepared.num_labels
        if self.num_clusters < self.workers.size:
            raise UserError(
                f"{self.num_clusters} clusters are too few for {self.workers.size} workers, each of which owns some; "
                f"use resources.workers={self.num_clusters} or less, or more clusters (clusters.count)"
            )
        self.encoder = pretrained_encoder(plan, worker)
        if plan.before is not None:
            before = committed(plan.before.model)
            assert before is not None
            self.before = before
            self.encoder.load_state_dict(read_tensors(plan.before.model, before, "encoder"))

    def train(self) -> None:
        labels_CR = self.rows_of_a()
        plan = self.plan
        asynchronous = self.announce_memory(row_length=labels_CR.shape[1])
        settings = self.config.checkpoints
        checkpoints = Checkpoints(
            plan.checkpoints, plan.made_from, plan.title, self.worker, settings, asynchronous=asynchronous
        )
        checkpoint = checkpoints.newest()
        self.model = self.start(labels_CR) if checkpoint is None else self.start_from(checkpoint)
        done = checkpoint.progress if checkpoint is not None else None
        if done is not None:
            lost = max(0, self.worker.reached - done.steps_of_stage)
            self.worker.say(
                f"{plan.title}: going on behind step {done.steps_of_stage:,}, where its last checkpoint is"
                + (f"; {lost:,} steps are done again" if lost else "")
            )
        journal = Journal(plan.home / "tensorboard" / plan.name, self.worker, plan.epochs_before, done)
        loop = Loop(self.worker, self.model, self.prepared, self.config, journal, checkpoints)
        for phase in self.phases(first=done.phase if done is not None else 0):
            loop.run(phase, checkpoint)
            checkpoint = None
        journal.close()
        if checkpoints.committed:
            self.planned["planned_memory"] += self.planned_copy
        peaks = self.workers.gather_objects(self.worker.peak_memory)
        self.worker.say(f"{self.plan.title}: peak memory of a worker {max(peaks) / memory.GIB:.2f} GiB")
        with committing_together(self.plan.model, self.plan.made_from, self.workers) as manifest:
            for entry in write_model(self.plan.model, self.model, self.worker.first):
                manifest.files[entry.name] = entry
            if self.worker.first:
                history = json.dumps(journal.history, indent=1).encode()
                manifest.files[HISTORY] = self.plan.model.write(HISTORY, history)
            manifest.facts.update(
                workers=self.workers.size,
                num_clusters=self.num_clusters,
                num_labels=self.num_labels,
                peak_memory=peaks,
                **self.planned,
            )
        checkpoints.close()

    def phases(self, first: int) -> Iterator[Phase]:
        """From the `first` on; those before it would find another encoder than they began with."""
        plan, settings = self.plan, self.plan.settings
        section = "stage2" if plan.name == "stage2" else "stage1"
        first_epoch = EPOCHS_OF_A_STAGE[plan.name]
        common = partial(Phase, title=plan.title, section=section, settings=settings)
        if settings.frozen_epochs and first == 0:
            yield common(
                number=0,
                frozen=True,
                last=settings.epochs == 0,
                epochs=settings.frozen_epochs,
                first_epoch=first_epoch,
                embeddings=self.cached("train"),
                validation_vectors=partial(read_vectors, self.cached("validation")),
            )
        if settings.epochs:
            yield common(
                number=1,
                frozen=False,
                last=True,
                epochs=settings.epochs,
                first_epoch=first_epoch + settings.frozen_epochs,
                embeddings=None,
                validation_vectors=self.encode_shard,
            )

    # What a stage starts from.

    def rows_of_a(self) -> Tensor:
        """The labels of each row of A: its cluster's, or those it was estimated to need. (C, R)"""
        if self.plan.name == "stage2":
            return read_rows_of_a(self.plan.adjacency)
        return clusters_as_rows(torch.from_numpy(self.clusters_L).long(), self.num_clusters)

    def start(self, labels_CR: Tensor) -> Elias:
        """phi and W_C from the stage before or new; W_L new or carried over; A from the clusters or as estimated."""
        plan, seed = self.plan, self.config.seed
        size, dtype = self.encoder.embedding_size, getattr(torch, self.config.training.precision)
        rows_L, rows_C = self.workers.block(self.num_labels), self.workers.block(self.num_clusters)
        bias_C = torch.zeros(len(rows_C))
        bias_L = torch.full((len(rows_L),), START_BIAS)
        if plan.carries_labels:
            assert plan.before is not None
            carried = read_rows(plan.before.model, self.before, "W_L", rows_L)
            weight_LD, bias_L = carried["weight"], carried["bias"]
        elif self.config.training.start == "centroids":
            vectors = self.cached("train")

            def shards() -> Iterator[Shard]:
                for shard in self.prepared.shards("train"):
                    yield read_vectors(vectors, shard), self.prepared.labels_of_shard(shard)

            along = centroids(shards, self.clusters_L, self.num_clusters, rows_L, size, dtype)
            weight_LD, weight_CD = along.labels_LD, along.clusters_CD[rows_C.start : rows_C.stop].clone()
        else:
            weight_LD = random_rows("W_L", seed, rows_L, size, dtype=dtype)
            weight_CD = random_rows("W_C", seed, rows_C, size)
        if plan.name == "stage2":
            assert plan.before is not None
            carried = read_rows(plan.before.model, self.before, "W_C", rows_C)
            weight_CD, bias_C = carried["weight"], carried["bias"]
        labels_CR = labels_CR[rows_C.start : rows_C.stop]
        if plan.name == "stage2":
            weights_CR = random_rows("A", seed, rows_C, labels_CR.shape[1], uniform=True)
        else:
            weights_CR = torch.zeros(labels_CR.shape)
        return self.assemble(weight_CD, bias_C, labels_CR, weights_CR, weight_LD, bias_L)

    def start_from(self, checkpoint: Checkpoint) -> Elias:
        """In the middle, with this worker's rows whoever wrote them."""
        trained = checkpoint.whole("encoder")
        if trained:  # else not yet
            state = self.encoder.state_dict()  # without what the optimizer keeps; buffers as they are
            self.encoder.load_state_dict({name: trained.get(name, value) for name, value in state.items()})
        rows_C, rows_L = self.workers.block(self.num_clusters), self.workers.block(self.num_labels)
        clusters = checkpoint.rows("W_C", rows_C, "weight", "bias")
        edges = checkpoint.rows("A", rows_C, "labels", "weights")
        labels = checkpoint.rows("W_L", rows_L, "weight", "bias")
        return self.assemble(*clusters.values(), *edges.values(), *labels.values())

    def assemble(
        self,
        weight_CD: Tensor,
        bias_C: Tensor,
        labels_CR: Tensor,
        weights_CR: Tensor,
        weight_LD: Tensor,
        bias_L: Tensor,
    ) -> Elias:
        """A model of the encoder and these, this worker's rows."""
        device, coarse = self.worker.device, weight_LD.dtype == torch.bfloat16
        return Elias(
            self.encoder,
            ClusterClassifiers(weight_CD.to(device), bias_C.to(device), self.num_clusters, self.workers, coarse=coarse),
            Adjacency(labels_CR.to(device), weights_CR.to(device), self.beta, self.num_clusters, self.workers),
            LabelClassifiers(weight_LD.to(device), bias_L.to(device), self.num_labels, self.workers),
            self.search_settings(),
        )

    @property
    def beta(self) -> float | None:
        return self.config.search.beta if self.plan.name == "stage2" else None

    def search_settings(self) -> Search:
        return Search.of(self.config.search, self.num_clusters, self.num_labels)

    def load(self) -> None:
        """The model as this stage committed it."""
        manifest = committed(self.plan.model)
        assert manifest is not None
        self.model = read_model(
            self.plan.model,
            manifest,
            self.encoder,
            self.search_settings(),
            self.beta,
            self.workers,
            self.worker.device,
            trainable=False,
        )

    def write_outputs(self) -> None:
        """Embeddings by the encoder as it is now, predictions, and what the next step needs."""
        plan, key = self.plan, key_of(self.plan.model)
        if plan.name == "warmup":
            self.cached("train", after=True)
            return
        if plan.name == "stage1":
            best_clusters(
                self.worker, self.model, self.prepared, self.cached("train", after=True), plan.best_clusters, key
            )
        for split in plan.splits_predicted:
            vectors = self.cached(split, after=True)
            size = self.config.ranker.candidates if plan.name == "stage2" else TOP_K
            predict(self.worker, self.model, self.prepared, split, vectors, size, plan.predictions(split), key)

    # Embeddings and memory.

    def cached(self, split: SplitName, after: bool = False) -> Folder:
        """Embeddings by the encoder as the stage found it, or as it left it; made now unless they are there."""
        plan = self.plan if after else self.plan.before
        name = plan.encoder_name if plan else "pretrained"
        made_from = key_of(self.prepared.folder if name == "pretrained" else self.plan.home / name / "model")
        folder = self.plan.embeddings(name, split)
        return embed(self.worker, self.encoder, self.prepared, split, folder, made_from)

    def encode_shard(self, shard: str) -> npt.NDArray[np.float32]:
        """Embeddings of a shard's rows, by the encoder as it is now."""
        tokens = self.prepared.folder.read_table(shard, ["input_ids"])["input_ids"].to_pylist()
        return phi(self.encoder, tokens, self.worker.device)

    def announce_memory(self, row_length: int) -> bool:
        """What this will take; refuse what cannot fit. Whether checkpoints are copied, to be written on the side."""
        points = self.prepared.num_rows("train")
        shapes = shapes_of(
            self.plan.name,
            self.config,
            self.encoder.transformer,
            self.workers.size,
            points,
            self.num_clusters,
            self.num_labels,
            row_length,
            on_gpu=self.worker.device.type == "cuda",
        )
        lines, available = memory.plan(shapes), min(self.workers.gather_objects(self.worker.memory))
        copy = sum(memory.of_a_checkpoint(shapes))
        room = (
            min(self.workers.gather_objects(machine_memory() // self.worker.local_size)) if shapes.on_gpu else available
        )
        self.planned = {
            "planned_memory": sum(lines.values()),
            "memory_of_tables": sum(
                size for name, size in lines.items() if name.endswith(("W_C", "W_L", "A", "rows here"))
            ),
            "bytes_sent_by_deepspeed": memory.sent(shapes, positives=0).get("gradients of phi", 0),
        }
        asynchronous = self.config.checkpoints.asynchronous
        if asynchronous is None:
            asynchronous = copy + (0 if shapes.on_gpu else sum(lines.values())) <= room
        self.planned_copy = copy if asynchronous and not shapes.on_gpu else 0
        if self.planned_copy:
            lines["a checkpoint while it is written"] = copy
        title, table = self.plan.title, memory.show(lines, available)
        self.worker.say(f"{title}: memory of each of {self.workers.size} workers\n{table}")
        if sum(lines.values()) > available:
            raise UserError(
                f"{title} takes {sum(lines.values()) / memory.GIB:.1f} GiB a worker, but there are "
                f"{available / memory.GIB:.1f} GiB for each; use more workers on more nodes, or a smaller "
                f"training.batch_size, search.shortlist or search.labels_per_row"
            )
        return asynchronous


def shapes_of(
    name: StageName,
    config: Config,
    transformer: PreTrainedModel,
    workers: int,
    points: int,
    num_clusters: int,
    num_labels: int,
    row_length: int,
    on_gpu: bool,
) -> memory.Shapes:
    """Of a stage with so many training points."""
    settings, encoder = settings_of(name, config), transformer.config
    search = Search.of(config.search, num_clusters, num_labels)
    return memory.Shapes(
        workers=workers,
        batch_size=config.training.batch_size,
        tokens=config.encoder.max_length,
        rows_ahead=min(points, WINDOWS_AT_ONCE * SHARDS_PER_WINDOW * config.data.rows_per_shard),
        encoder_parameters=sum(parameter.numel() for parameter in transformer.parameters()),
        encoder_layers=encoder.num_hidden_layers,
        encoder_heads=encoder.num_attention_heads,
        encoder_width=getattr(encoder, "intermediate_size", 4 * encoder.hidden_size),
        embedding_size=encoder.hidden_size,
        clusters=num_clusters,
        labels=num_labels,
        row_length=row_length,
        beam=search.beam,
        explored=search.beam + search.extra,
        shortlist=search.shortlist,
        learns_adjacency=name == "stage2",
        trains_encoder=settings.epochs > 0,
        averages=settings.average_from is not None,
        zero_stage=config.training.zero_stage,
        label_bytes=getattr(torch, config.training.precision).itemsize,
        update_every=config.training.table_update_every,
        random_labels=config.training.random_labels,
        on_gpu=on_gpu,
    )
