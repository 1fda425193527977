"""A stage of training, on all workers at once: one loop for both stages, and for the epochs before re-clustering.

What differs between stages is what they start from. A stage has up to two phases, each with a schedule and optimizers
of its own: frozen epochs train W_C, W_L (and A) on cached embeddings, then everything is trained, phi too.

Legend: B points of a worker, D embedding size, C clusters, L labels, P positive labels (padded).
"""

import json
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from elias_ray import clock, memory
from elias_ray import config as configs
from elias_ray import model as models
from elias_ray.adjacency import Adjacency, clusters_as_rows
from elias_ray.artifacts import Folder, committed, committing_together, key_of
from elias_ray.averaging import Average
from elias_ray.batches import Batch, read_vectors, steps_of_epoch, stream_epoch
from elias_ray.clock import timed
from elias_ray.clusters import read_clusters
from elias_ray.config import Config
from elias_ray.data import Prepared
from elias_ray.embeddings import embed, phi
from elias_ray.encoder import Encoder
from elias_ray.engine import Engine, NotFiniteError, Optimisation
from elias_ray.errors import UserError
from elias_ray.estimate import read_rows_of_a
from elias_ray.formats.source import SplitName
from elias_ray.journal import Journal
from elias_ray.label_classifiers import LabelClassifiers
from elias_ray.predict import best_clusters, predict, validate
from elias_ray.saved_model import read_rows, read_tensors, write_model
from elias_ray.shortlist import PAD
from elias_ray.starting_values import centroids, random_rows
from elias_ray.table_optimizer import Table
from elias_ray.worker_group import Bar, Worker

StageName = Literal["warmup", "stage1", "stage2"]
TITLES = {"warmup": "before re-clustering", "stage1": "stage 1", "stage2": "stage 2"}
SHOWN = ("P@1", "P@5", "R@100")
START_BIAS = -3.0  # of W_L: most labels of a shortlist are wrong


@dataclass(frozen=True)
class Plan:
    """A stage as the config has it: what it starts from and where it leaves what it makes."""

    run: Folder
    config: Config
    prepared: Prepared
    name: StageName

    @property
    def settings(self) -> configs.Stage:
        if self.name == "warmup":
            epochs = self.config.clusters.recluster_after
            return self.config.stage1.model_copy(update={"frozen_epochs": 0, "epochs": epochs})
        return self.config.stage1 if self.name == "stage1" else self.config.stage2

    @property
    def before(self) -> "Plan | None":
        """The stage whose encoder this one goes on with."""
        if self.name == "stage2":
            return Plan(self.run, self.config, self.prepared, "stage1")
        if self.name == "stage1" and self.config.clusters.recluster_after:
            return Plan(self.run, self.config, self.prepared, "warmup")
        return None

    @property
    def encoder_name(self) -> str:
        """Who made the encoder that this stage ends with."""
        if self.settings.epochs:
            return self.name
        return self.before.encoder_name if self.before else "pretrained"

    @property
    def carries_labels(self) -> bool:
        """Whether W_L goes on from the stage before."""
        return self.name == "stage2" and self.config.stage2.label_classifiers == "carried"

    @property
    def model(self) -> Folder:
        return self.run / self.name / "model"

    @property
    def clusters(self) -> Folder:
        return self.run / ("first_clusters" if self.name == "warmup" else "clusters")

    @property
    def best_clusters(self) -> Folder:
        return self.run / self.name / "best_clusters"

    def predictions(self, split: SplitName) -> Folder:
        return self.run / self.name / "predictions" / split

    def embeddings(self, encoder_name: str, split: SplitName) -> Folder:
        return self.run / "embeddings" / encoder_name / split

    @property
    def made_from(self) -> str:
        """Key of what the model is made from."""
        edges = [self.run / "adjacency"] if self.name == "stage2" else []
        return key_of(self.prepared.folder, self.clusters, *edges, *([self.before.model] if self.before else []))


def outputs(plan: Plan) -> list[Folder]:
    """The artifacts that a stage commits behind its model."""
    if plan.name == "warmup":
        return [plan.embeddings("warmup", "train")]
    return [plan.predictions("validation"), plan.predictions("test")] + (
        [plan.best_clusters] if plan.name == "stage1" else []
    )


def is_done(plan: Plan) -> bool:
    if committed(plan.model, plan.made_from) is None:
        return False
    key = key_of(plan.model)
    return all(committed(folder, key) is not None for folder in outputs(plan))


def work(plan: Plan, worker: Worker) -> None:
    """All of a stage that the run lacks; on every worker at once."""
    stage = StageOnWorker(plan, worker)
    if committed(plan.model, plan.made_from) is None:
        stage.train()
    else:
        stage.load()
    stage.write_outputs()


def embed_training_points(plan: Plan, worker: Worker) -> None:
    """By the encoder as it came."""
    settings = plan.config.encoder
    encoder = Encoder(settings.name, settings.pooling, settings.dropout).to(worker.device)
    folder = plan.embeddings("pretrained", "train")
    embed(worker, encoder, plan.prepared, "train", folder, key_of(plan.prepared.folder))


class StageOnWorker:
    def __init__(self, plan: Plan, worker: Worker) -> None:
        self.plan, self.worker = plan, worker
        self.config, self.prepared, self.workers = plan.config, plan.prepared, worker.workers
        self.clusters_L = read_clusters(plan.clusters)
        self.num_clusters = int(self.clusters_L.max()) + 1
        self.num_labels = self.prepared.num_labels
        settings = self.config.encoder
        self.encoder = Encoder(settings.name, settings.pooling, settings.dropout).to(worker.device)
        if plan.before is not None:
            before = committed(plan.before.model)
            assert before is not None
            self.before = before
            self.encoder.load_state_dict(read_tensors(plan.before.model, before, "encoder"))

    def train(self) -> None:
        model = self.model = self.start()
        self.announce_memory()
        settings = self.plan.settings
        journal = Journal(self.plan.run / "tensorboard" / self.plan.name, self.worker.first)
        torch.manual_seed(self.config.seed + 1000 * self.workers.rank)  # dropout
        step = 0
        for frozen, epochs in ((True, settings.frozen_epochs), (False, settings.epochs)):
            if epochs:
                step = self.train_phase(journal, frozen, epochs, step)
        peaks = self.workers.gather_objects(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        self.worker.say(f"{self.title}: peak memory of a worker {max(peaks) / memory.GIB:.2f} GiB")
        with committing_together(self.plan.model, self.plan.made_from, self.workers) as manifest:
            for entry in write_model(self.plan.model, model, self.worker.first):
                manifest.files[entry.name] = entry
            if self.worker.first:
                history = json.dumps(journal.history, indent=1).encode()
                manifest.files["history.json"] = self.plan.model.write("history.json", history)
            manifest.facts.update(
                workers=self.workers.size, num_clusters=self.num_clusters, num_labels=self.num_labels, peak_memory=peaks
            )

    def train_phase(self, journal: Journal, frozen: bool, epochs: int, first_step: int) -> int:
        """Some epochs under one schedule; the number of steps done by then in the stage."""
        plan, config, model = self.plan, self.config, self.model
        shards, batch_size = self.prepared.shards("train"), config.training.batch_size
        numbers = [self.number_of_epoch(frozen, epoch) for epoch in range(epochs)]
        steps_of = [steps_of_epoch(shards, batch_size, config.seed, number) for number in numbers]
        engine = Engine(self.dense(frozen), self.tables(), self.workers, self.optimisation(sum(steps_of)))
        averaged = [*engine.dense.module.parameters(), model.label_classifiers.weight, model.label_classifiers.bias]
        average = Average(averaged) if plan.settings.average_from is not None else None
        embeddings = self.cached("train") if frozen else None
        vectors_of = partial(read_vectors, self.cached("validation")) if frozen else self.encode_shard
        for epoch, number in enumerate(numbers):
            title = f"{self.title}, {'frozen ' if frozen else ''}epoch {epoch + 1}/{epochs}"
            engine.dense.train()
            self.encoder.train()
            parents_L = torch.cat(
                [model.adjacency.parents(self.num_labels), torch.tensor([PAD], device=self.worker.device)]
            )
            started, losses = time.monotonic(), []
            clock.take()
            self.workers.bytes_sent = 0
            stream = stream_epoch(
                self.prepared.folder, shards, batch_size, self.workers, config.seed, number, embeddings
            )
            for place, batch in enumerate(waiting(stream)):
                batch = batch.to(self.worker.device)
                try:
                    losses.append(engine.step(self.loss(batch, parents_L)))
                except NotFiniteError as error:
                    rows = torch.cat(self.workers.gather_objects(batch.rows_B.cpu())).tolist()
                    raise UserError(
                        f"{title}, batch {place + 1}: {error}. Lower {plan.name}.lr_classifiers or "
                        f"{plan.name}.lr_encoder, or look at the training points of that batch, rows {rows}"
                    ) from None
                if average and engine.steps_done >= (plan.settings.average_from or 0) * engine.plan.total_steps:
                    average.add()
                seconds = time.monotonic() - started
                self.worker.say(
                    Bar(
                        title,
                        (place + 1) * batch_size,
                        steps_of[epoch] * batch_size,
                        " samples",
                        f"loss {losses[-1]:.4f}",
                    )
                )
                journal.scalars(
                    first_step + engine.steps_done, loss=losses[-1], lr_factor=engine.learning_rate_factor()
                )
            assert len(losses) == steps_of[epoch], (len(losses), steps_of[epoch])
            if average and epoch == epochs - 1:
                average.use()
            seconds = time.monotonic() - started
            breakdown = {part: round(s / len(losses), 5) for part, s in clock.take().items()}
            figures = validate(self.worker, model, self.prepared, vectors_of, config.metrics)
            mean_loss, speed = float(np.mean(losses)), len(losses) * batch_size / seconds
            self.worker.say(
                f"{title}: loss {mean_loss:.4f}, {speed:,.0f} samples/s, validation "
                + ", ".join(f"{name} {figures[name]:.2f}" for name in SHOWN)
            )
            journal.epoch(
                first_step + engine.steps_done,
                {
                    "phase": "frozen" if frozen else "everything",
                    "epoch": epoch + 1,
                    "step": first_step + engine.steps_done,
                    "loss": mean_loss,
                    "samples_per_second": speed,
                    "bytes_sent_per_step": self.workers.bytes_sent // len(losses),
                    **{name: figures[name] for name in SHOWN},
                    "seconds_per_step": breakdown,
                },
            )
        engine.close()
        return first_step + engine.steps_done

    def loss(self, batch: Batch, parents_L: Tensor) -> Tensor:
        with timed("encode"):
            embedding_BD = self.embed(batch)
        found = self.model.search(embedding_BD, batch.positives_BP, parents_L[batch.positives_BP])
        with timed("loss"):
            return models.loss(found, batch.positives_BP, self.config.loss.shortlist_weight, self.workers)

    def embed(self, batch: Batch) -> Tensor:
        if batch.embedding_BD is not None:
            cached_BD: Tensor = self.encoder.dropout(batch.embedding_BD)
            return cached_BD
        embedding_BD: Tensor = self.encoder(batch.input_ids_BT, batch.attention_mask_BT)
        return embedding_BD

    # What a stage starts from.

    def start(self) -> models.Elias:
        """phi and W_C from the stage before or new; W_L new or carried over; A from the clusters or as estimated."""
        plan, seed = self.plan, self.config.seed
        size, device = self.encoder.embedding_size, self.worker.device
        rows_L, rows_C = self.workers.block(self.num_labels), self.workers.block(self.num_clusters)
        cluster_classifiers = nn.Linear(size, self.num_clusters)
        weight_LD, bias_L = random_rows("W_L", seed, rows_L, size), torch.full((len(rows_L),), START_BIAS)
        cluster_classifiers.weight.data = random_rows("W_C", seed, range(self.num_clusters), size)
        cluster_classifiers.bias.data.zero_()
        if self.config.training.start == "centroids" and not self.plan.carries_labels:
            vectors = self.cached("train")
            shards = (
                (read_vectors(vectors, shard), self.prepared.labels_of_shard(shard))
                for shard in self.prepared.shards("train")
            )
            along = centroids(shards, self.clusters_L, self.num_clusters, rows_L)
            weight_LD, cluster_classifiers.weight.data = along.labels_LD, along.clusters_CD
        if plan.name == "stage2":
            assert plan.before is not None
            cluster_classifiers.load_state_dict(read_tensors(plan.before.model, self.before, "W_C"))
            if plan.carries_labels:
                carried = read_rows(plan.before.model, self.before, "W_L", rows_L)
                weight_LD, bias_L = carried["weight"], carried["bias"]
            labels_CR = read_rows_of_a(plan.run / "adjacency")[rows_C.start : rows_C.stop]
            weights_CR = random_rows("A", seed, rows_C, labels_CR.shape[1], uniform=True)
            beta: float | None = self.config.search.beta
        else:
            labels_CR = clusters_as_rows(torch.from_numpy(self.clusters_L).long(), self.num_clusters)
            labels_CR = labels_CR[rows_C.start : rows_C.stop]
            weights_CR, beta = torch.zeros(labels_CR.shape), None
        return models.Elias(
            self.encoder,
            cluster_classifiers.to(device),
            Adjacency(labels_CR.to(device), weights_CR.to(device), beta, self.num_clusters, self.workers),
            LabelClassifiers(weight_LD.to(device), bias_L.to(device), self.num_labels, self.workers),
            self.search_settings(),
        )

    def search_settings(self) -> models.Search:
        """As configured, but no wider than there is anything to search."""
        search = self.config.search
        beam, shortlist = min(search.beam, self.num_clusters), min(search.shortlist, self.num_labels)
        return models.Search(search.alpha, beam, shortlist, search.extra_clusters)

    def load(self) -> None:
        """The model as this stage committed it."""
        folder, device = self.plan.model, self.worker.device
        manifest = committed(folder)
        assert manifest is not None
        self.encoder.load_state_dict(read_tensors(folder, manifest, "encoder"))
        cluster_classifiers = nn.Linear(self.encoder.embedding_size, self.num_clusters)
        cluster_classifiers.load_state_dict(read_tensors(folder, manifest, "W_C"))
        edges = read_rows(folder, manifest, "A", self.workers.block(self.num_clusters))
        labels = read_rows(folder, manifest, "W_L", self.workers.block(self.num_labels))
        beta = self.config.search.beta if self.plan.name == "stage2" else None
        self.model = models.Elias(
            self.encoder,
            cluster_classifiers.to(device),
            Adjacency(edges["labels"].to(device), edges["weights"].to(device), beta, self.num_clusters, self.workers),
            LabelClassifiers(labels["weight"].to(device), labels["bias"].to(device), self.num_labels, self.workers),
            self.search_settings(),
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
        for split in ("validation", "test"):
            vectors = self.cached(split, after=True)
            predict(self.worker, self.model, self.prepared, split, vectors, plan.predictions(split), key)

    # The parts of training.

    def dense(self, frozen: bool) -> nn.ModuleDict:
        modules: dict[str, nn.Module] = {"cluster_classifiers": self.model.cluster_classifiers}
        return nn.ModuleDict(modules if frozen else {"encoder": self.encoder, **modules})

    def tables(self) -> list[Table]:
        labels, edges = self.model.label_classifiers, self.model.adjacency
        tables = [
            Table("W_L.weight", labels.weight, labels.weight_grad, self.config.training.weight_decay),
            Table("W_L.bias", labels.bias, labels.bias_grad, 0.0),
        ]
        if edges.weights_grad is not None:
            tables.append(Table("A", edges.weights, edges.weights_grad, 0.0))
        return tables

    def optimisation(self, total_steps: int) -> Optimisation:
        settings, training = self.plan.settings, self.config.training
        return Optimisation(
            lr_encoder=settings.lr_encoder,
            lr_classifiers=settings.lr_classifiers,
            weight_decay=training.weight_decay,
            total_steps=total_steps,
            warmup=training.warmup,
            clip=training.clip,
            update_every=training.table_update_every,
            zero_stage=training.zero_stage,
        )

    def number_of_epoch(self, frozen: bool, epoch: int) -> int:
        """No two epochs of a run have the same number, so none has the same order."""
        stage = ("warmup", "stage1", "stage2").index(self.plan.name)
        return 1_000_000 * stage + (0 if frozen else self.plan.settings.frozen_epochs) + epoch

    @property
    def title(self) -> str:
        return TITLES[self.plan.name]

    def cached(self, split: SplitName, after: bool = False) -> Folder:
        """Embeddings by the encoder as the stage found it, or as it left it; made now unless they are there."""
        plan = self.plan if after else self.plan.before
        name = plan.encoder_name if plan else "pretrained"
        trained = [] if name == "pretrained" else [self.plan.run / name / "model"]
        made_from = key_of(self.prepared.folder, *trained)
        folder = self.plan.embeddings(name, split)
        return embed(self.worker, self.encoder, self.prepared, split, folder, made_from)

    def encode_shard(self, shard: str) -> npt.NDArray[np.float32]:
        """Embeddings of a shard's rows, by the encoder as it is now."""
        tokens = self.prepared.folder.read_table(shard, ["input_ids"])["input_ids"].to_pylist()
        return phi(self.encoder, tokens, self.worker.device)

    def announce_memory(self) -> None:
        """What this will take; refuse what cannot fit."""
        settings, training, transformer = self.plan.settings, self.config.training, self.encoder.transformer.config
        shapes = memory.Shapes(
            workers=self.workers.size,
            batch_size=training.batch_size,
            tokens=self.config.encoder.max_length,
            encoder_parameters=sum(parameter.numel() for parameter in self.encoder.parameters()),
            encoder_layers=transformer.num_hidden_layers,
            encoder_heads=transformer.num_attention_heads,
            encoder_width=transformer.intermediate_size,
            embedding_size=self.encoder.embedding_size,
            clusters=self.num_clusters,
            labels=self.num_labels,
            row_length=self.model.adjacency.row_length,
            explored=self.model.settings.beam + self.model.settings.extra,
            shortlist=self.model.settings.shortlist,
            learns_adjacency=self.model.adjacency.beta is not None,
            trains_encoder=settings.epochs > 0,
            averages=settings.average_from is not None,
            zero_stage=training.zero_stage,
        )
        lines, available = memory.plan(shapes), min(self.workers.gather_objects(self.worker.memory))
        self.worker.say(f"{self.title}: memory of each of {self.workers.size} workers\n{memory.show(lines, available)}")
        if sum(lines.values()) > available:
            raise UserError(
                f"{self.title} takes {sum(lines.values()) / memory.GIB:.1f} GiB a worker, but there are "
                f"{available / memory.GIB:.1f} GiB for each; use more workers on more nodes, or a smaller "
                f"training.batch_size, search.shortlist or search.labels_per_row"
            )


def waiting(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, with the time spent waiting for them."""
    while True:
        with timed("data wait"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch
