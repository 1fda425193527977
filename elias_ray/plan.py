"""The stages of a run as its config has them: what each starts from, and where it leaves what it makes.

A run has one or more members, models that differ in the seed of their clusters. What depends on the data alone lies in
the run's folder, the rest in the member's.
"""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal

from elias_ray import config as configs
from elias_ray.artifacts import CONFIG, Folder, committed, key_of
from elias_ray.config import Config, parse_config, with_overrides
from elias_ray.data import SPLITS, Prepared
from elias_ray.errors import UserError
from elias_ray.formats.source import SplitName
from elias_ray.sharing import Shared

StageName = Literal["warmup", "stage1", "stage2"]
ENCODER = "encoder"  # folder of an exported model: config and tokenizer of phi
SCORED: tuple[SplitName, ...] = ("validation", "test")  # by the ranker
TITLES = {"warmup": "before re-clustering", "stage1": "stage 1", "stage2": "stage 2"}


@dataclass(frozen=True)
class Plan:
    """Of one stage of one member."""

    run: Folder
    config: Config
    prepared: Prepared
    name: StageName
    member: int = 1
    predicted: tuple[SplitName, ...] | None = None  # splits, where no ranker will follow
    shared: Shared | None = None  # in a trial of a search, which ends with its last model and leaves test points alone

    @property
    def home(self) -> Folder:
        return self.run / f"member{self.member}"

    def stage(self, name: StageName) -> "Plan":
        """Of another stage of the same member."""
        return replace(self, name=name)

    @property
    def settings(self) -> configs.Stage:
        return settings_of(self.name, self.config)

    @property
    def clusters_seed(self) -> int:
        """Which is what members differ in."""
        return self.config.seed + self.member - 1

    @property
    def splits_embedded_first(self) -> tuple[SplitName, ...]:
        """What a first stage wants of the encoder as it came."""
        if not self.settings.frozen_epochs:
            return ("train",)
        return ("train", "validation") if self.shared else SPLITS

    @property
    def splits_predicted(self) -> tuple[SplitName, ...]:
        if self.shared:
            return ()
        if self.predicted is not None:
            return self.predicted
        return ("validation", "test") if self.name == "stage1" else SPLITS

    @property
    def epochs_before(self) -> int:
        """In the stages that this one goes on from."""
        return self.before.epochs_before + self.before.epochs if self.before else 0

    @property
    def epochs(self) -> int:
        return self.settings.frozen_epochs + self.settings.epochs

    @property
    def before(self) -> "Plan | None":
        """The stage whose encoder this one goes on with."""
        if self.name == "stage2":
            return self.stage("stage1")
        if self.name == "stage1" and self.config.clusters.recluster_after:
            return self.stage("warmup")
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
        return self.home / self.name / "model"

    @property
    def checkpoints(self) -> Folder:
        return self.home / self.name / "checkpoints"

    @property
    def clusters(self) -> Folder:
        return self.home / ("first_clusters" if self.name == "warmup" else "clusters")

    @property
    def best_clusters(self) -> Folder:
        return self.home / self.name / "best_clusters"

    @property
    def title(self) -> str:
        return self.title_of(TITLES[self.name])

    def title_of(self, step: str) -> str:
        """For the user; with the member, where there is more than one."""
        return f"member {self.member}, {step}" if self.config.ensemble.members > 1 else step

    @property
    def adjacency(self) -> Folder:
        return self.home / "adjacency"

    def step(self, name: str, made_from: str, *artifacts: Folder) -> AbstractContextManager[None]:
        """Around what makes these artifacts: in a search they may come from another trial."""
        return self.shared.step(name, made_from, artifacts) if self.shared else nullcontext()

    def predictions(self, split: SplitName) -> Folder:
        return self.home / self.name / "predictions" / split

    @property
    def ranked_from(self) -> str:
        """Key of what the ranker is made from."""
        predictions = [self.predictions(split) for split in SPLITS]
        return key_of(
            self.prepared.folder, *predictions, *(self.embeddings(self.encoder_name, split) for split in SPLITS)
        )

    @property
    def ranker(self) -> Folder:
        return self.home / "ranker"

    def ranked(self, split: SplitName) -> Folder:
        """Predictions with p, q and p * q."""
        return self.ranker / "predictions" / split

    @property
    def calibration(self) -> Folder:
        return self.home / "calibration"

    def calibrated(self, split: SplitName) -> Folder:
        """Predictions with their final scores."""
        return self.calibration / "predictions" / split

    def embeddings(self, encoder_name: str, split: SplitName) -> Folder:
        return (self.run if encoder_name == "pretrained" else self.home) / "embeddings" / encoder_name / split

    @property
    def made_from(self) -> str:
        """Key of what the model is made from."""
        edges = [self.adjacency] if self.name == "stage2" else []
        return key_of(self.prepared.folder, self.clusters, *edges, *([self.before.model] if self.before else []))


def settings_of(name: StageName, config: Config) -> configs.Stage:
    if name == "warmup":
        epochs = config.clusters.recluster_after
        return config.stage1.model_copy(update={"frozen_epochs": 0, "epochs": epochs})
    return config.stage1 if name == "stage1" else config.stage2


def plans_of_members(run: Folder, config: Config, prepared: Prepared) -> list[Plan]:
    """Of the last stage of each member."""
    return [Plan(run, config, prepared, "stage2", member + 1) for member in range(config.ensemble.members)]


def open_run(location: str | os.PathLike[str], overrides: Sequence[str] = ()) -> list[Plan]:
    """The members of a run that is through, or of an exported model; `overrides` are 'inference.key=value' or such."""
    run = Folder.at(location)
    if not run.exists(CONFIG):
        raise UserError(f"{run.path} is neither a run nor an exported model: it has no {CONFIG}")
    config = with_overrides(parse_config(run.read(CONFIG).decode(), f"{run.path}/{CONFIG}"), overrides)
    prepared = committed(run / "prepare")
    members = plans_of_members(run, config, Prepared(run / "prepare", prepared.facts)) if prepared else []
    if not members or not all(is_through(member) for member in members):
        raise UserError(f"{run.path} is not through yet; run jobs/train.py --run {run.path} with its arguments again")
    return members


def is_through(member: Plan) -> bool:
    """Whether all that predicting needs is there and, in a run, was made from one another."""
    tree = member.calibration / "model"
    if any(committed(folder) is None for folder in (member.model, member.ranker / "model", tree)):
        return False
    if member.run.exists(ENCODER):  # exported, without what it was made from
        return True
    return (
        is_done(member)
        and is_ranked(member)
        and committed(tree, key_of(member.ranked("validation"))) is not None
        and committed(member.calibrated("test"), key_of(tree, member.ranked("test"))) is not None
    )


def outputs(plan: Plan) -> list[Folder]:
    """The artifacts that a stage commits behind its model."""
    if plan.name == "warmup":
        return [plan.embeddings("warmup", "train")]
    best_clusters = [plan.best_clusters] if plan.name == "stage1" else []
    return [*best_clusters, *(plan.predictions(split) for split in plan.splits_predicted)]


def is_done(plan: Plan) -> bool:
    """Whether the run has all that the stage makes."""
    if committed(plan.model, plan.made_from) is None:
        return False
    key = key_of(plan.model)
    return all(committed(folder, key) is not None for folder in outputs(plan))


def is_ranked(plan: Plan) -> bool:
    """Whether the run has the whole ranker, in whatever blocks, of what the stage predicts now."""
    model = committed(plan.ranker / "model")
    if model is None or model.facts["ranked_from"] != plan.ranked_from:
        return False
    blocks = [plan.ranker / "blocks" / name for name in model.facts["blocks"]]
    if any(committed(block) is None for block in blocks):
        return False
    key = key_of(*blocks)
    artifacts = [plan.ranker / "model", *(plan.ranked(split) for split in SCORED)]
    return all(committed(artifact, key) is not None for artifact in artifacts)
