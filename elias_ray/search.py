"""A search over settings with Ray Tune. Every trial is a run of its own, up to the model of its last stage.

Trials are compared by what they reach on the validation points after each epoch; test points are not looked at. What
trials have in common they share (sharing.py). Their reports are kept with them, so a search that was killed is told the
old ones again and goes on where it was.
"""

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

from elias_ray.artifacts import Folder
from elias_ray.config import Config, Stage, flatten, with_values
from elias_ray.errors import UserError
from elias_ray.journal import EPOCHS
from elias_ray.metrics import METRIC_NAMES
from elias_ray.sharing import READS, is_read
from elias_ray.space import Trial

USER_ERROR = "user_error"


@dataclass
class Record:
    """What is known of a trial."""

    reports: list[dict[str, float]] = field(default_factory=list)  # one an epoch
    state: str = "not begun"  # running, done, stopped (by the scheduler), failed
    error: str = ""
    seconds: float = 0.0  # that it took, without waiting for its turn

    @property
    def epochs(self) -> int:
        return int(self.reports[-1][EPOCHS]) if self.reports else 0

    def figure(self, metric: str) -> float | None:
        return self.reports[-1][metric] if self.reports else None


def home_of(folder: Folder, trial: Trial) -> Folder:
    return folder / "trials" / trial.name


def read_record(folder: Folder, trial: Trial) -> Record:
    with suppress(FileNotFoundError):
        return Record(**json.loads((folder / "reports").read(f"{trial.name}.json")))
    return Record()


def write_record(folder: Folder, trial: Trial, record: Record) -> None:
    (folder / "reports").write(f"{trial.name}.json", json.dumps(asdict(record), indent=1).encode())


def search(folder: Folder, trials: Sequence[Trial], metric: str, scheduler: str) -> dict[str, Record]:
    """All trials, or what a killed search left of them. Name -> what became of it."""
    from elias_ray.pipeline import models_at_once

    at_once = models_at_once(trials[0].config, len(trials))
    values = {"resources.models_at_once": at_once}
    by_name = {trial.name: replace(trial, config=with_values(trial.config, values)) for trial in trials}
    watch, account = Watch(folder, by_name, metric), folder / "ray_tune"
    account.delete()
    account.create()
    (folder / "reports").create()
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # a trial may fail before it has any
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the user is told by us
    tuner = tune.Tuner(
        # A trial itself does little but wait for its workers, which are booked apart; it must ask for something.
        tune.with_resources(partial(run_trial, folder, by_name), {"memory": 1}),
        param_space={"trial": tune.grid_search(list(by_name))},
        tune_config=tune.TuneConfig(
            metric=metric,
            mode="max",
            scheduler=halving(trials) if scheduler == "asha" else FIFOScheduler(),
            max_concurrent_trials=at_once,
            reuse_actors=False,
        ),
        run_config=tune.RunConfig(
            name="search",
            storage_path=account.path,
            storage_filesystem=account.filesystem,
            failure_config=tune.FailureConfig(max_failures=trials[0].config.resources.failures),
            callbacks=[watch],
            verbose=0,
        ),
    )
    try:
        tuner.fit()
    finally:
        account.delete()
    if any(record.state in ("not begun", "running") for record in watch.records.values()):
        raise KeyboardInterrupt  # which Ray Tune keeps to itself
    return watch.records


def halving(trials: Sequence[Trial]) -> ASHAScheduler:
    """The better half goes on behind epoch 2, 4, 8 ...; where some share their first stage, not within it."""
    epochs, first = max(epochs_of(trial.config) for trial in trials), 2
    if len({_first_stage(trial.config) for trial in trials}) < len(trials):
        first = max(epochs_of(trial.config) - _epochs(trial.config.stage2) for trial in trials) + 1
    while epochs in (first << doubled for doubled in range(epochs.bit_length() + 1)):
        first += 1  # not behind the last epoch, where it would spare nothing and cost the model
    return ASHAScheduler(time_attr=EPOCHS, max_t=max(epochs + 1, first), grace_period=first, reduction_factor=2)


def epochs_of(config: Config) -> int:
    """Over all stages of a run."""
    return (config.clusters.recluster_after or 0) + _epochs(config.stage1) + _epochs(config.stage2)


def _epochs(stage: Stage) -> int:
    return stage.frozen_epochs + stage.epochs


def _first_stage(config: Config) -> str:
    return str([value for key, value in flatten(config).items() if any(is_read(key, step) for step in READS)])


def run_trial(folder: Folder, trials: Mapping[str, Trial], chosen: dict[str, str]) -> None:
    """In a process that Ray Tune has started for it."""
    trial = trials[chosen["trial"]]
    run = home_of(folder, trial)
    known = read_record(folder, trial)
    for report in known.reports:  # which tells the scheduler what it knew before the search was killed
        tune.report(report)
    if known.state == "done":
        return
    from elias_ray import pipeline

    try:
        pipeline.train_trial(run, trial.config, folder / "shared")
    except UserError as error:  # would be the same another time
        tune.report({USER_ERROR: str(getattr(error, "cause", error))})


class Watch(tune.Callback):
    """Tells the user what trials report, and keeps it."""

    def __init__(self, folder: Folder, trials: Mapping[str, Trial], metric: str) -> None:
        self.folder, self.trials, self.metric = folder, trials, metric
        self.records = {name: read_record(folder, trial) for name, trial in trials.items()}
        self.began: dict[str, float] = {}
        self.epochs = {name: epochs_of(trial.config) for name, trial in trials.items()}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        name, record = self._of(trial)
        self.began[name] = time.monotonic()
        if record.state != "done":
            place = list(self.trials).index(name) + 1
            print(f"trial {place} of {len(self.trials)}: {name}", flush=True)
            record.state, record.error = "running", ""

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        name, record = self._of(trial)
        if USER_ERROR in result:
            record.state, record.error = "failed", result[USER_ERROR]
        elif EPOCHS in result and result[EPOCHS] > record.epochs:  # else told again
            record.reports.append({key: result[key] for key in (EPOCHS, *METRIC_NAMES)})
            place = f"epoch {record.epochs} of {self.epochs[name]}"
            print(f"  {name}: {place}, {self.metric} {result[self.metric]:.2f}", flush=True)
        self._keep(name)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        name, record = self._of(trial)
        if record.state == "running":
            record.seconds += time.monotonic() - self.began[name]
            record.state = "done" if record.epochs == self.epochs[name] else "stopped"
            said = f"done in {record.seconds:.0f} s" if record.state == "done" else "stopped, since others are better"
            print(f"  {name}: {said}", flush=True)
        elif record.state == "failed":
            print(f"  {name}: failed: {record.error}", flush=True)
        self._keep(name)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        name, record = self._of(trial)
        text = ""
        with suppress(OSError, TypeError):  # no such file
            text = Path(trial.error_file).read_text()
        record.state, record.error = "failed", (text.strip().splitlines() or ["its process was lost"])[-1]
        print(f"  {name}: failed: {record.error}", flush=True)
        self._keep(name)

    def _of(self, trial: Any) -> tuple[str, Record]:
        name = trial.config["trial"]
        return name, self.records[name]

    def _keep(self, name: str) -> None:
        write_record(self.folder, self.trials[name], self.records[name])
