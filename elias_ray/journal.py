"""What training says of itself: TensorBoard files, Ray Train's report, the history that is kept with the model."""

import json
import os
import struct
import tempfile
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import Event

from elias_ray.artifacts import Folder
from elias_ray.checkpoints import Progress
from elias_ray.worker_group import Report, Worker

HISTORY = "history.json"  # beside the model
EPOCHS = "epochs_of_run"  # in a report: epochs behind it, over all stages


class Journal:
    """Of one stage; only the first worker writes."""

    def __init__(self, folder: Folder, worker: Worker, epochs_before: int, done: Progress | None = None) -> None:
        """`folder` gets the TensorBoard files; of a stage that is begun anew it keeps the old ones no longer."""
        self.epochs_before = epochs_before  # of the run, in other stages
        self.history: list[dict[str, Any]] = done.history if done is not None else []  # an entry an epoch
        self.folder, self.worker = folder, worker
        self.writer: SummaryWriter | None = None
        if worker.first:
            if done is None:
                folder.delete()
            folder.create()
            for name in folder.files():
                if name.endswith(".partial"):  # which a killed worker was writing
                    folder.remove(name)
            self.scratch = tempfile.TemporaryDirectory()
            behind = done.steps_of_stage + 1 if done is not None else None  # what was drawn of these steps is void
            self.writer = SummaryWriter(self.scratch.name, purge_step=behind)

    def scalars(self, step: int, **values: float) -> None:
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(name, value, step)

    def epoch(self, step: int, entry: dict[str, Any]) -> None:
        """All workers at once."""
        import ray.train

        self.history.append({**entry, EPOCHS: self.epochs_before + len(self.history) + 1})
        figures = figures_of(self.history[-1])
        self.scalars(step, **{f"epoch/{key}": value for key, value in figures.items()})
        ray.train.report(figures)
        self.worker.say(Report(figures))
        self.copy()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.copy()

    def copy(self) -> None:
        """Event files grow in place, which not every filesystem can do: they are copied whole."""
        if self.writer is not None:
            self.writer.flush()
            for name in os.listdir(self.scratch.name):
                self.folder.write(name, Path(self.scratch.name, name).read_bytes())


def figures_of(entry: dict[str, Any]) -> dict[str, float]:
    """Of an epoch: what can be drawn and compared."""
    return {key: value for key, value in entry.items() if isinstance(value, int | float)}


def read_history(model: Folder) -> list[dict[str, Any]]:
    """Of a stage that is trained, an entry an epoch."""
    return list(json.loads(model.read(HISTORY)))


def read_losses(folder: Folder) -> dict[int, float]:
    """The loss of every step from TensorBoard files; of steps that were done again, the last."""
    losses: dict[int, float] = {}
    for name in folder.files():
        if "tfevents" in name:
            losses.update(_losses(folder.read(name)))
    return dict(sorted(losses.items()))


def _losses(content: bytes) -> dict[int, float]:
    """A file of records: length (8 bytes), checksum (4), an event, checksum (4)."""
    losses, place = {}, 0
    while place + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, place)
        event = Event.FromString(content[place + 12 : place + 12 + length])
        for value in event.summary.value:
            if value.tag == "loss":
                losses[event.step] = value.simple_value
        place += length + 16
    return losses
