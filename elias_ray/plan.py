"""The stages of a run as its config has them: what each starts from, and where it leaves what it makes."""

from dataclasses import dataclass
from typing import Literal

from elias_ray import config as configs
from elias_ray.artifacts import Folder, committed, key_of
from elias_ray.config import Config
from elias_ray.data import Prepared
from elias_ray.formats.source import SplitName

StageName = Literal["warmup", "stage1", "stage2"]
TITLES = {"warmup": "before re-clustering", "stage1": "stage 1", "stage2": "stage 2"}


@dataclass(frozen=True)
class Plan:
    """Of one stage."""

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

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def adjacency(self) -> Folder:
        return self.run / "adjacency"

    def predictions(self, split: SplitName) -> Folder:
        return self.run / self.name / "predictions" / split

    def embeddings(self, encoder_name: str, split: SplitName) -> Folder:
        return self.run / "embeddings" / encoder_name / split

    @property
    def made_from(self) -> str:
        """Key of what the model is made from."""
        edges = [self.adjacency] if self.name == "stage2" else []
        return key_of(self.prepared.folder, self.clusters, *edges, *([self.before.model] if self.before else []))


def outputs(plan: Plan) -> list[Folder]:
    """The artifacts that a stage commits behind its model."""
    if plan.name == "warmup":
        return [plan.embeddings("warmup", "train")]
    return [plan.predictions("validation"), plan.predictions("test")] + (
        [plan.best_clusters] if plan.name == "stage1" else []
    )


def is_done(plan: Plan) -> bool:
    """Whether the run has all that the stage makes."""
    if committed(plan.model, plan.made_from) is None:
        return False
    key = key_of(plan.model)
    return all(committed(folder, key) is not None for folder in outputs(plan))
