"""The training loop, one for all stages: some epochs under one schedule, on every worker at once.

A phase trains everything, or with phi frozen only what stands behind it, on cached embeddings.

Legend: B points of a worker, D embedding size, L labels, P positive labels (padded).
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from elias_ray import clock
from elias_ray import model as models
from elias_ray.artifacts import Folder
from elias_ray.averaging import Average
from elias_ray.batches import Batch, steps_of_epoch, stream_epoch
from elias_ray.clock import timed
from elias_ray.config import Config, Stage
from elias_ray.data import Prepared
from elias_ray.engine import Engine, NotFiniteError, Optimisation
from elias_ray.errors import UserError
from elias_ray.journal import Journal
from elias_ray.metrics import PAD
from elias_ray.model import Elias
from elias_ray.predict import VectorsOf, validate
from elias_ray.table_optimizer import Table
from elias_ray.worker_group import Bar, Worker

SHOWN = ("P@1", "P@5", "R@100")
SNAPSHOTS = 50  # of the weights, for their average


@dataclass(frozen=True)
class Phase:
    title: str  # of the stage, for the user
    section: str  # of the config, for errors
    settings: Stage
    frozen: bool
    last: bool  # of the stage
    epochs: int
    first_epoch: int  # no two epochs of a run have the same number, so none has the same order
    embeddings: Folder | None  # of the training points, where phi is frozen
    validation_vectors: VectorsOf


class Loop:
    """What all phases of a stage have in common."""

    def __init__(self, worker: Worker, model: Elias, prepared: Prepared, config: Config, journal: Journal) -> None:
        self.worker, self.workers, self.model = worker, worker.workers, model
        self.prepared, self.config, self.journal = prepared, config, journal
        self.steps_done = 0  # in the stage

    def run(self, phase: Phase) -> None:
        shards, batch_size, seed = self.prepared.shards("train"), self.config.training.batch_size, self.config.seed
        numbers = [phase.first_epoch + epoch for epoch in range(phase.epochs)]
        steps_of = [steps_of_epoch(shards, batch_size, seed, number) for number in numbers]
        engine = self.engine(phase, sum(steps_of))
        weights = [self.model.label_classifiers.weight, self.model.label_classifiers.bias]
        average = None
        if phase.settings.average_from is not None and phase.last:
            average = Average([*engine.dense.module.parameters(), *weights])
        for epoch, number in enumerate(numbers, start=1):
            title = f"{phase.title}, {'frozen ' if phase.frozen else ''}epoch {epoch}/{phase.epochs}"
            batches = stream_epoch(
                self.prepared.folder, shards, batch_size, self.workers, seed, number, phase.embeddings
            )
            started = time.monotonic()
            losses = self.train_epoch(engine, phase, title, batches, average)
            seconds = time.monotonic() - started
            assert len(losses) == steps_of[epoch - 1], (len(losses), steps_of)
            if average is not None and epoch == phase.epochs:
                average.use()
            self.close_epoch(phase, title, epoch, losses, seconds)
        engine.close()

    def train_epoch(
        self, engine: Engine, phase: Phase, title: str, batches: Iterator[Batch], average: Average | None
    ) -> list[float]:
        """The loss of each step."""
        engine.dense.train()
        self.model.encoder.train()
        parents_L = self.model.adjacency.parents(self.model.label_classifiers.num_labels)
        parents_L = torch.cat([parents_L, parents_L.new_tensor([PAD])])  # PAD, -1, takes the last
        batch_size, total_steps = self.config.training.batch_size, engine.plan.total_steps
        losses: list[float] = []
        clock.take()
        self.workers.bytes_sent = 0
        for batch in waiting(batches):
            batch = batch.to(self.worker.device)
            try:
                losses.append(engine.step(self.loss(batch, parents_L)))
            except NotFiniteError as error:
                rows = torch.cat(self.workers.gather_objects(batch.rows_B.cpu())).tolist()
                raise UserError(
                    f"{title}, batch {len(losses) + 1}: {error}. Lower {phase.section}.lr_classifiers or "
                    f"{phase.section}.lr_encoder, or look at the training points of that batch, rows {rows}"
                ) from None
            self.steps_done += 1
            if average is not None and self.counts_for_average(phase, engine):
                average.add()
            done, total = engine.steps_done * batch_size, total_steps * batch_size
            self.worker.say(Bar(title, done, total, " samples", f"loss {losses[-1]:.4f}"))
            self.journal.scalars(self.steps_done, loss=losses[-1], lr_factor=engine.learning_rate_factor())
        return losses

    def counts_for_average(self, phase: Phase, engine: Engine) -> bool:
        """SNAPSHOTS times over the later steps: each passes over all of W_L, so not every step can."""
        total = engine.plan.total_steps
        later = total - int((phase.settings.average_from or 0) * total)
        left = total - engine.steps_done
        return left < later and left % max(1, later // SNAPSHOTS) == 0

    def close_epoch(self, phase: Phase, title: str, epoch: int, losses: list[float], seconds: float) -> None:
        """Validation figures, for the user and for the record."""
        breakdown = {part: round(spent / len(losses), 5) for part, spent in clock.take().items()}
        bytes_sent = self.workers.bytes_sent // len(losses)
        figures = validate(self.worker, self.model, self.prepared, phase.validation_vectors, self.config.metrics)
        loss, speed = float(np.mean(losses)), len(losses) * self.config.training.batch_size / seconds
        shown = {name: figures[name] for name in SHOWN}
        self.worker.say(
            f"{title}: loss {loss:.4f}, {speed:,.0f} samples/s, validation "
            + ", ".join(f"{name} {value:.2f}" for name, value in shown.items())
        )
        self.journal.epoch(
            self.steps_done,
            {
                "phase": "frozen" if phase.frozen else "everything",
                "epoch": epoch,
                "step": self.steps_done,
                "loss": loss,
                "samples_per_second": speed,
                "bytes_sent_per_step": bytes_sent,
                **shown,
                "seconds_per_step": breakdown,
            },
        )

    def loss(self, batch: Batch, parents_L: Tensor) -> Tensor:
        with timed("encode"):
            if batch.embedding_BD is not None:
                embedding_BD = self.model.encoder.dropout(batch.embedding_BD)
            else:
                embedding_BD = self.model.encoder(batch.input_ids_BT, batch.attention_mask_BT)
        found = self.model.search(embedding_BD, batch.positives_BP, parents_L[batch.positives_BP])
        with timed("loss"):
            return models.loss(found, batch.positives_BP, self.config.loss.shortlist_weight, self.workers)

    def engine(self, phase: Phase, total_steps: int) -> Engine:
        model, training = self.model, self.config.training
        dense: dict[str, nn.Module] = {"cluster_classifiers": model.cluster_classifiers}
        if not phase.frozen:
            dense["encoder"] = model.encoder
        labels, edges = model.label_classifiers, model.adjacency
        tables = [
            Table("W_L.weight", labels.weight, labels.weight_grad, training.weight_decay),
            Table("W_L.bias", labels.bias, labels.bias_grad, 0.0),
        ]
        if edges.weights_grad is not None:
            tables.append(Table("A", edges.weights, edges.weights_grad, 0.0))
        optimisation = Optimisation(
            lr_encoder=phase.settings.lr_encoder,
            lr_classifiers=phase.settings.lr_classifiers,
            weight_decay=training.weight_decay,
            total_steps=total_steps,
            warmup=training.warmup,
            clip=training.clip,
            update_every=training.table_update_every,
            zero_stage=training.zero_stage,
        )
        return Engine(nn.ModuleDict(dense), tables, self.workers, optimisation)


def waiting(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, with the time spent waiting for them."""
    while True:
        with timed("data wait"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch
