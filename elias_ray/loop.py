"""The training loop, one for all stages: some epochs under one schedule, on every worker at once.

A phase trains everything, or with phi frozen only what stands behind it, on cached embeddings.

Legend: B points of a worker, D embedding size, L labels, P positive labels (padded).
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from elias_ray import clock
from elias_ray import model as models
from elias_ray.artifacts import Folder
from elias_ray.averaging import Average
from elias_ray.batches import Batch, steps_of_epoch, stream_epoch
from elias_ray.checkpoints import Checkpoint, Checkpoints, Progress, State
from elias_ray.clock import timed
from elias_ray.config import Config, Stage
from elias_ray.data import Prepared
from elias_ray.engine import Engine, NotFiniteError, Optimisation
from elias_ray.errors import UserError
from elias_ray.journal import Journal
from elias_ray.metrics import PAD
from elias_ray.model import Elias
from elias_ray.predict import VectorsOf, validate
from elias_ray.saved_model import rows_of_tables, tensors_of_tables
from elias_ray.table_optimizer import RowOptimizer, Table, TableOptimizer
from elias_ray.worker_group import Bar, Worker

SHOWN = ("P@1", "P@5", "R@100")
SNAPSHOTS = 50  # of the weights, for their average
AVERAGED = ("encoder", "W_C", "W_L")


@dataclass(frozen=True)
class Phase:
    number: int  # in the stage, from 0
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

    def __init__(
        self,
        worker: Worker,
        model: Elias,
        prepared: Prepared,
        config: Config,
        journal: Journal,
        checkpoints: Checkpoints,
    ) -> None:
        self.worker, self.workers, self.model = worker, worker.workers, model
        self.prepared, self.config, self.journal, self.checkpoints = prepared, config, journal, checkpoints
        self.steps_done = 0  # in the stage

    def run(self, phase: Phase, checkpoint: Checkpoint | None = None) -> None:
        """From its beginning, or behind a checkpoint whose parameters the model has already."""
        shards, batch_size, seed = self.prepared.shards("train"), self.config.training.batch_size, self.config.seed
        numbers = [phase.first_epoch + epoch for epoch in range(phase.epochs)]
        steps_of = [steps_of_epoch(shards, batch_size, seed, number) for number in numbers]
        engine = self.engine(phase, sum(steps_of))
        average = None
        if phase.settings.average_from is not None and phase.last:
            average = Average(self.averaged(phase))
        done = checkpoint.progress if checkpoint is not None else None
        if checkpoint is not None:
            self.restore(engine, average, checkpoint)
        for epoch, number in enumerate(numbers, start=1):
            if done is not None and epoch < done.epoch:
                continue
            title = f"{phase.title}, {'frozen ' if phase.frozen else ''}epoch {epoch}/{phase.epochs}"
            losses: list[float] = []
            parents_L = self.model.adjacency.parents(self.model.label_classifiers.num_labels)
            if checkpoint is not None and done is not None and epoch == done.epoch:
                losses, parents_L = done.losses, checkpoint.whole("parents")["parents"].to(parents_L.device)
            before, started = len(losses), time.monotonic()
            batches = stream_epoch(
                self.prepared.folder, shards, batch_size, self.workers, seed, number, phase.embeddings, skip=before
            )
            self.train_epoch(engine, phase, epoch, title, batches, parents_L, average, losses)
            assert len(losses) == steps_of[epoch - 1], (len(losses), steps_of)
            if average is not None and epoch == phase.epochs:
                average.use()
            self.close_epoch(phase, title, epoch, losses, len(losses) - before, time.monotonic() - started)
        engine.close()

    def train_epoch(
        self,
        engine: Engine,
        phase: Phase,
        epoch: int,
        title: str,
        batches: Iterator[Batch],
        parents_L: Tensor,
        average: Average | None,
        losses: list[float],
    ) -> None:
        """Adds the loss of each step to `losses`, which has those of the epoch's steps before."""
        self.model.encoder.train()
        parents_of = torch.cat([parents_L, parents_L.new_tensor([PAD])])  # PAD, -1, takes the last
        batch_size, total_steps = self.config.training.batch_size, engine.plan.total_steps
        clock.take()
        self.workers.bytes_sent = 0
        for batch in waiting(batches):
            batch = batch.to(self.worker.device)
            self.seed_draws(phase.first_epoch + epoch, len(losses))
            try:
                loss, signals = engine.step(
                    self.loss(batch, parents_of, phase.settings.shortlist_weight), self.checkpoints.signal()
                )
                losses.append(loss)
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
            self.worker.say(Bar(title, done, total, " samples", f"loss {losses[-1]:.4f}", self.steps_done))
            self.journal.scalars(self.steps_done, loss=losses[-1], lr_factor=engine.plan.factor(engine.steps_done))
            state = partial(self.state, engine, phase, epoch, losses, parents_L, average) if engine.complete else None
            if self.checkpoints.after_step(signals, state):
                self.journal.copy()

    def seed_draws(self, *place: int) -> None:
        """What is drawn at a step depends on its place alone, so that it is the same after a loss.

        On cached embeddings it is drawn for all workers, so that their number does not matter; within phi it cannot be.
        """
        shared, own = (
            int(np.random.SeedSequence((self.config.seed, *place, who)).generate_state(1, np.uint64)[0])
            for who in (0, 1 + self.workers.rank)
        )
        self.draw = torch.Generator(self.worker.device).manual_seed(shared)
        torch.manual_seed(own)
        self.drawn_R = self.draw_labels(shared)

    def draw_labels(self, seed: int) -> Tensor | None:
        """The same on every worker, ascending; no more than there are. None where none are wanted."""
        num_labels = self.model.label_classifiers.num_labels
        wanted = min(self.config.training.random_labels, num_labels)
        if not wanted:
            return None
        drawn = np.random.default_rng(seed).choice(num_labels, wanted, replace=False, shuffle=False)
        return torch.from_numpy(np.sort(drawn)).to(self.worker.device)

    def drop(self, embedding_BD: Tensor) -> Tensor:
        """Dropout as on phi(x), of this worker's part of what is drawn for the whole batch."""
        rate, batch_size = self.model.encoder.dropout.p, self.config.training.batch_size
        drawn_GD = torch.rand(batch_size, embedding_BD.shape[1], generator=self.draw, device=embedding_BD.device)
        part = self.workers.block(batch_size)
        return embedding_BD * (drawn_GD[part.start : part.stop] >= rate) / (1 - rate)

    # A checkpoint of it.

    def state(
        self,
        engine: Engine,
        phase: Phase,
        epoch: int,
        losses: list[float],
        parents_L: Tensor,
        average: Average | None,
    ) -> State:
        """As it is now; all workers at once."""
        kept = {"encoder": engine.encoder_state(), **tensors_of_tables(self.model)}
        for table, moments in engine.tables_state().items():
            file, name = table.split(".")
            kept[file].update({f"{name}.{moment}": value for moment, value in moments.items()})
        if average is not None:
            for parameter, mean in average.means.items():
                file, _, name = parameter.partition(".")
                kept[file][f"{name}.mean"] = mean
        progress = Progress(
            phase=phase.number,
            epoch=epoch,
            steps_of_phase=engine.steps_done,
            steps_of_stage=self.steps_done,
            losses=list(losses),
            averaged=average.count if average is not None else 0,
            history=list(self.journal.history),
        )
        whole = {"encoder": kept.pop("encoder"), "parents": {"parents": parents_L}}
        rows_of = rows_of_tables(self.model)
        return State(progress, whole, {file: (rows_of[file], tensors) for file, tensors in kept.items()})

    def restore(self, engine: Engine, average: Average | None, checkpoint: Checkpoint) -> None:
        """The rest of what `state` put there."""
        progress, device = checkpoint.progress, self.worker.device
        encoder, rows_of, moments = checkpoint.whole("encoder"), rows_of_tables(self.model), {}
        for table, kept_of_it in engine.moments.items():
            file, name = table.split(".")
            kept = checkpoint.rows(file, rows_of[file], *(f"{name}.{moment}" for moment in kept_of_it))
            moments[table] = {moment: kept[f"{name}.{moment}"].to(device) for moment in kept_of_it}
        engine.restore(progress.steps_of_phase, encoder, moments)
        if average is not None:
            means = {}
            for parameter in average.means:
                file, _, name = parameter.partition(".")
                kept = encoder if file == "encoder" else checkpoint.rows(file, rows_of[file], f"{name}.mean")
                means[parameter] = kept[f"{name}.mean"].to(device)
            average.restore(progress.averaged, means)
        self.steps_done = progress.steps_of_stage

    def averaged(self, phase: Phase) -> dict[str, Tensor]:
        """What is trained, but A, by its file and name in a checkpoint."""
        tensors = tensors_of_tables(self.model)
        tensors["encoder"] = {} if phase.frozen else dict(self.model.encoder.named_parameters())
        return {f"{file}.{name}": tensor for file in AVERAGED for name, tensor in tensors[file].items()}

    def counts_for_average(self, phase: Phase, engine: Engine) -> bool:
        """SNAPSHOTS times over the later steps: each passes over all of W_L, so not every step can."""
        total = engine.plan.total_steps
        later = total - int((phase.settings.average_from or 0) * total)
        left = total - engine.steps_done
        return left < later and left % max(1, later // SNAPSHOTS) == 0

    def close_epoch(
        self, phase: Phase, title: str, epoch: int, losses: list[float], steps: int, seconds: float
    ) -> None:
        """Validation figures, for the user and for the record. `steps` took the `seconds`; others were done before."""
        breakdown = {part: round(spent / max(1, steps), 5) for part, spent in clock.take().items()}
        bytes_sent = self.workers.bytes_sent // max(1, steps)
        figures = validate(self.worker, self.model, self.prepared, phase.validation_vectors, self.config.metrics)
        loss, speed = float(np.mean(losses)), steps * self.config.training.batch_size / seconds
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
                **figures,
                "seconds_per_step": breakdown,
            },
        )

    def loss(self, batch: Batch, parents_L: Tensor, shortlist_weight: float) -> Tensor:
        with timed("encode"):
            if batch.embedding_BD is not None:
                embedding_BD = self.drop(batch.embedding_BD)
            else:
                embedding_BD = self.model.encoder(batch.input_ids_BT, batch.attention_mask_BT)
        found = self.model.search(embedding_BD, batch.positives_BP, parents_L[batch.positives_BP], self.drawn_R)
        with timed("loss"):
            all_labels_weight = self.config.training.all_labels_weight
            return models.loss(found, batch.positives_BP, shortlist_weight, self.workers, all_labels_weight)

    def engine(self, phase: Phase, total_steps: int) -> Engine:
        model, training = self.model, self.config.training
        clusters, labels, edges = model.cluster_classifiers, model.label_classifiers, model.adjacency
        tables_C = [
            Table("W_C.weight", clusters.weight, clusters.weight_grad, training.weight_decay),
            Table("W_C.bias", clusters.bias, clusters.bias_grad, 0.0),
        ]
        tables = [Table("W_L.bias", labels.bias, labels.bias_grad, 0.0)]
        if edges.weights_grad is not None:
            tables.append(Table("A.weights", edges.weights, edges.weights_grad, 0.0))
        optimisation = Optimisation(
            lr_encoder=phase.settings.lr_encoder,
            lr_classifiers=phase.settings.lr_classifiers,
            weight_decay=training.weight_decay,
            total_steps=total_steps,
            warmup=training.warmup,
            clip=training.clip,
            zero_stage=training.zero_stage,
        )
        every = training.table_update_every
        rates_C, rates = optimisation.rates_of_updates(1), optimisation.rates_of_updates(every)
        optimizers: list[TableOptimizer | RowOptimizer] = []
        if labels.weight.dtype == torch.bfloat16:
            gradients, decay, seed = labels.take_gradients, training.weight_decay, self.config.seed
            optimizers.append(RowOptimizer("W_L.weight", labels.weight, gradients, decay, rates, every, seed))
        else:
            tables.append(Table("W_L.weight", labels.weight, labels.weight_grad, training.weight_decay))
        optimizers += [TableOptimizer(tables_C, rates_C, update_every=1), TableOptimizer(tables, rates, every)]
        return Engine(None if phase.frozen else model.encoder, optimizers, self.workers, optimisation)


def waiting(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, with the time spent waiting for them."""
    while True:
        with timed("data wait"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch
