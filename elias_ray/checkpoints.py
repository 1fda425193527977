"""Checkpoints of a stage that is being trained: where it was, so that it goes on there after a loss.

A checkpoint is an artifact like any other, so without its manifest it does not count. Its rows of W_C, W_L and A, with
all that belongs to them, are in files that any number of workers can read. It is copied in a moment and written while
training goes on, where memory has room for the copy; a step's own exchange tells everybody that a checkpoint is due,
and later that all have written theirs.

  encoder.safetensors          phi (once it is trained), with AdamW's moments and averages
  parents.safetensors          the clusters that lead to each label, as they were at the beginning of the epoch
  W_C-…, W_L-…, A-….safetensors    as in a model, with AdamW's moments and averages
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from elias_ray.artifacts import FileEntry, Folder, Manifest, NoSpaceError, committed, write_manifest
from elias_ray.config import Checkpoints as Settings
from elias_ray.errors import UserError
from elias_ray.saved_model import read_rows, read_tensors, write_rows, write_tensors
from elias_ray.worker_group import Worker

DUE, WRITTEN, ASK = 1, 2, 4  # what a worker may tell the others with its loss
SECONDS_BETWEEN_QUESTIONS = 5.0  # whether a node is about to be taken away


@dataclass(frozen=True)
class Progress:
    """How far a stage has come."""

    phase: int  # which of the stage's, from 0
    epoch: int  # of the phase, from 1
    steps_of_phase: int
    steps_of_stage: int
    losses: list[float]  # of the epoch
    averaged: int  # snapshots in the averages
    history: list[dict[str, Any]]  # of the epochs before


@dataclass(frozen=True)
class State:
    """All that a stage is made of in the middle of its training, as one worker has it."""

    progress: Progress
    whole: dict[str, dict[str, Tensor]]  # file -> tensors that all workers have
    rows: dict[str, tuple[range, dict[str, Tensor]]]  # table -> this worker's rows of it

    def copy(self, whole: bool) -> "State":
        """`whole`: with what all workers have, for the one that writes it."""
        return replace(
            self,
            whole={file: _copies(tensors) for file, tensors in self.whole.items()} if whole else {},
            rows={table: (rows, _copies(tensors)) for table, (rows, tensors) in self.rows.items()},
        )


@dataclass(frozen=True)
class Checkpoint:
    """One on disk, of whatever number of workers."""

    folder: Folder
    manifest: Manifest

    @property
    def progress(self) -> Progress:
        return Progress(**self.manifest.facts["progress"])

    def whole(self, file: str) -> dict[str, Tensor]:
        return read_tensors(self.folder, self.manifest, file)

    def rows(self, table: str, rows: range, *names: str) -> dict[str, Tensor]:
        return read_rows(self.folder, self.manifest, table, rows, names)


class Checkpoints:
    def __init__(
        self, folder: Folder, made_from: str, title: str, worker: Worker, settings: Settings, asynchronous: bool
    ) -> None:
        """`asynchronous`: there is memory for a copy that is written while training goes on."""
        self.folder, self.made_from, self.title = folder, made_from, title
        self.worker, self.workers, self.settings = worker, worker.workers, settings
        self.asynchronous = asynchronous
        self.wanted = self.preempted = False
        self.committed = 0
        self.begun = self.asked = time.monotonic()
        self.writing: threading.Thread | None = None

    def newest(self) -> Checkpoint | None:
        """The newest that is whole, and none behind it any more; one that is not is told of."""
        names = self.workers.gather_objects(sorted(self._names(), reverse=True))[0]
        newest = None
        for name in names:
            newest = self._whole(self.folder / name)
            if newest is not None:
                break
            if self.worker.first:  # else it would count among those to be kept
                (self.folder / name).delete()
        return newest

    def _whole(self, folder: Folder) -> Checkpoint | None:
        found, damage = None, ""
        try:
            found = committed(folder, self.made_from)
            if found is not None:
                self._check(folder, found)
        except (UserError, OSError) as error:
            damage = str(error)
        answers = self.workers.gather_objects((found is not None, damage))
        damages = [each for _, each in answers if each]
        if damages:
            self.worker.say(f"{self.title}: a checkpoint is passed over: {damages[0]}")
        everybody = all(there for there, _ in answers) and not damages
        return Checkpoint(folder, found) if everybody and found is not None else None

    def signal(self) -> int:
        """What this worker has to say to the others before a step."""
        now, said = time.monotonic(), 0
        if self.worker.first and now - self.begun >= 60 * self.settings.minutes:
            said |= DUE
        if self.worker.first and now - self.asked >= SECONDS_BETWEEN_QUESTIONS:
            said |= ASK
        if self.writing is not None and not self.writing.is_alive():
            said |= WRITTEN
        return said

    def after_step(self, signals: list[int], state: Callable[[], State] | None) -> bool:
        """All workers, with what all of them said; `state` where the step is one that a checkpoint may follow.

        Whether one was committed.
        """
        committed_before = self.committed
        if any(said & ASK for said in signals):
            self.asked = time.monotonic()
            self._ask_for_preemption()
        if self.writing is not None and all(said & WRITTEN for said in signals):
            self._commit()
        self.wanted = self.wanted or any(said & DUE for said in signals)
        if self.wanted and state is not None and self.writing is None:
            self._begin(state())
            if self.preempted and self.writing is not None:
                self._commit()
        return self.committed > committed_before

    def close(self) -> None:
        """When the stage has something better to show: no checkpoint is needed any more."""
        if self.writing is not None:
            self.writing.join()
        self.workers.gather_objects(None)
        if self.worker.first:
            self.folder.delete()

    def _begin(self, state: State) -> None:
        self.begun, self.wanted = time.monotonic(), False
        self.target = self.folder / f"{state.progress.steps_of_stage:08d}"
        failure = ""
        if self.worker.first:
            try:
                self.target.delete()
                self.target.create()
            except OSError as error:
                failure = str(error)
        if self.workers.gather_objects(failure)[0]:
            self.worker.say(f"{self.title}: no checkpoint behind step {state.progress.steps_of_stage}: {failure}")
            return
        self.state = state.copy(self.worker.first) if self.asynchronous else state
        self.entries: list[FileEntry] = []
        self.failure = "not all of it was written"
        self.writing = threading.Thread(target=self._write, daemon=True)
        self.writing.start()
        if not self.asynchronous:
            self._commit()

    def _write(self) -> None:
        try:
            if self.worker.first:
                for file, tensors in self.state.whole.items():
                    self.entries.append(write_tensors(self.target, file, tensors))
            for table, (rows, tensors) in self.state.rows.items():
                self.entries.extend(write_rows(self.target, table, rows, tensors))
            self.failure = ""
        except (OSError, NoSpaceError) as error:
            self.failure = str(error)

    def _commit(self) -> None:
        """All workers at once, each when it has written its part."""
        assert self.writing is not None
        self.writing.join()
        self.writing = None
        parts = self.workers.gather_objects((self.entries, self.failure))
        progress, step = self.state.progress, self.state.progress.steps_of_stage
        del self.state
        failures = [failure for _, failure in parts if failure]
        if not failures:
            self.committed += 1
        if self.worker.first:
            try:
                if failures:
                    raise OSError(failures[0])
                facts = {"made_from": self.made_from, "workers": self.workers.size, "progress": asdict(progress)}
                write_manifest(self.target, Manifest({e.name: e for entries, _ in parts for e in entries}, facts))
            except (OSError, NoSpaceError) as error:  # the ones before are there
                self.worker.say(f"{self.title}: no checkpoint behind step {step}: {error}")
                self._forget([self.target])
            else:
                self._forget([self.folder / name for name in sorted(self._names())[: -self.settings.keep]])

    def _forget(self, folders: list[Folder]) -> None:
        for folder in folders:
            with suppress(OSError):  # it takes room, no more
                folder.delete()

    def _ask_for_preemption(self) -> None:
        import ray.train

        info = ray.train.get_preemption_info()
        if info is not None and not self.preempted:
            self.preempted = self.wanted = True
            self.worker.say(f"{self.title}: {len(info.preempted_node_ids)} of its nodes will be taken away; checkpoint")

    def _names(self) -> list[str]:
        return list({name.split("/")[0] for name in self.folder.files()})

    def _check(self, folder: Folder, manifest: Manifest) -> None:
        """Of this worker's part of the files."""
        for name in self.workers.in_turn(sorted(manifest.files)):
            if folder.checksum(name) != manifest.files[name].sha256:
                raise UserError(f"{folder.path}/{name} is damaged: its SHA-256 is not the manifest's")


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
