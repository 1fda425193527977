"""All numbers of a run's report, as one tree that JSON can hold. What a run lacks is None.

Of an ensemble the first member is looked at, except where predictions of all are. Nothing here starts Ray.
"""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from elias_ray import index_analysis, paper_results
from elias_ray.adjacency import Adjacency
from elias_ray.artifacts import CONFIG, Folder, Manifest, committed
from elias_ray.benchmark import measured_peers, place_of
from elias_ray.cluster_classifiers import ClusterClassifiers
from elias_ray.clusters import read_clusters
from elias_ray.config import Config, flatten, parse_config
from elias_ray.data import LABELS, SPLITS, Prepared
from elias_ray.errors import UserError
from elias_ray.evaluation import METRICS, TITLES, build_up
from elias_ray.journal import read_history, read_losses
from elias_ray.metrics import METRIC_NAMES
from elias_ray.plan import ENCODER, Plan, StageName, plans_of_members
from elias_ray.prediction_analysis import recall, sample_of, surest_errors, true_label_scores
from elias_ray.projection import project, read_points
from elias_ray.pruning import measure_pruning
from elias_ray.run_record import read_hardware, read_times
from elias_ray.saved_model import read_rows
from elias_ray.sharing import taken

# Of larger splits a sample is looked at.
TEST_POINTS, TRAINING_POINTS, PRUNING_POINTS = 100_000, 50_000, 512
CLUSTER_SCORES = 2**29  # of training points and clusters, at most; fewer points where there are many clusters
LOSSES_SHOWN = 200  # of a stage: means over as many stretches of its steps
STAGES: tuple[StageName, ...] = ("warmup", "stage1", "stage2")
STEPS = {
    "prepare": "prepare",
    "embeddings": "embeddings",
    "clusters": "clusters",
    "stage1": "stage 1",
    "adjacency": "adjacency",
    "stage2": "stage 2",
    "ranker": "ranker",
    "calibration": "calibration",
    "ensemble": "ensemble",
    "metrics": "metrics",
}


def open_trained(location: str | os.PathLike[str]) -> list[Plan]:
    """The members of a run whose first has its last model; it may lack ranker and test figures, as a trial does."""
    run = Folder.at(location)
    if not run.exists(CONFIG):
        raise UserError(f"{run.path} is not a run: it has no {CONFIG}")
    if run.exists(ENCODER):
        raise UserError(f"{run.path} is an exported model; give the folder of the run that it was made from")
    config = parse_config(run.read(CONFIG).decode(), f"{run.path}/{CONFIG}")
    prepared = committed(run / "prepare")
    members = plans_of_members(run, config, Prepared(run / "prepare", prepared.facts)) if prepared else []
    if not members or committed(members[0].model) is None:
        raise UserError(f"{run.path} has no model of stage 2 yet; run jobs/train.py --run {run.path} again")
    return members


def analyze(members: list[Plan]) -> dict[str, Any]:
    member, run, prepared = members[0], members[0].run, members[0].prepared
    names = prepared.folder.read_table(LABELS, ["name"])["name"]

    def name_of(label: int) -> str:
        return str(names[label].as_py())

    seed = member.config.seed
    test = sample_of(prepared.shards("test"), TEST_POINTS, seed)
    predictions = {row: folder for row, folder in build_up(run, members).items() if committed(folder) is not None}
    final = list(predictions.values())[-1] if predictions else None
    return {
        "run": run.location,
        "members": len(members),
        "dataset": dataset(prepared),
        "config": configuration(member.config),
        "hardware": read_hardware(run),
        "steps": seconds_of_steps(member),
        "build_up": figures(run, prepared.num_labels),
        "training": [stage for name in STAGES if (stage := training(member.stage(name)))],
        "index": index_numbers(member, name_of),
        "test_sample": {"points": sum(test.values()), "of": prepared.num_rows("test")},
        "recall": recalls(run, prepared, predictions, test) if final else None,
        "true_label_scores": true_label_scores(member, test) if "ranker" in predictions else None,
        "errors": surest_errors(prepared, final, test, name_of) if final else None,
    }


def dataset(prepared: Prepared) -> dict[str, Any]:
    facts = prepared.facts
    trained = prepared.num_labels - facts["labels_never_trained"]
    keys = ("points", "labels", "tokens", "truncated", "empty_texts", "without_labels")
    return {
        "data": facts["data"],
        "format": facts["format"],
        "labels": prepared.num_labels,
        "labels_never_trained": facts["labels_never_trained"],
        "terms": prepared.num_terms,
        "training_points_per_label": facts["splits"]["train"]["labels"] / max(1, trained),
        "splits": {split: {key: facts["splits"][split][key] for key in keys} for split in SPLITS},
    }


def configuration(config: Config) -> dict[str, Any]:
    """Every key; and which of them differ from their defaults."""
    values, defaults = flatten(config), flatten(Config())
    return {"values": values, "changed": [key for key in values if values[key] != defaults[key]]}


def seconds_of_steps(member: Plan) -> list[dict[str, Any]]:
    """In order. Of a stage whose time nobody noted, that of its epochs without validation."""
    noted = read_times(member.run) | read_times(member.home)
    for name, seconds in taken(member.run).items():
        step = name.rpartition("-")[0]
        noted[step] = max(seconds, noted.get(step, 0.0))
    trained: dict[str, float] = {name: seconds for name in STAGES if (seconds := seconds_of_epochs(member.stage(name)))}
    return [
        {"step": title, "seconds": noted.get(step, trained.get(step)), "part": step not in noted}
        for step, title in STEPS.items()
        if step in noted or step in trained
    ]


def seconds_of_epochs(plan: Plan) -> float:
    if committed(plan.model) is None:
        return 0.0
    seconds, before = 0.0, 0
    for entry in read_history(plan.model):
        seconds += (entry["step"] - before) * plan.config.training.batch_size / entry["samples_per_second"]
        before = entry["step"]
    return seconds


def figures(run: Folder, num_labels: int) -> dict[str, Any] | None:
    """The rows of the build-up, what the paper has for them, and other systems."""
    if not run.exists(METRICS):
        return None
    paper = paper_results.BY_NUM_LABELS.get(num_labels)
    rows = [
        {"row": row, "title": TITLES[row], "metrics": metrics, "paper": paper.rows[row] if paper else None}
        for row, metrics in json.loads(run.read(METRICS)).items()
    ]
    peers = {row["title"]: {metric: row[metric] for metric in METRIC_NAMES} for row in measured_peers(run).values()}
    return {"rows": rows, "paper": paper.name if paper else None, "peers": peers}


def training(plan: Plan) -> dict[str, Any] | None:
    if committed(plan.model) is None:
        return None
    losses = read_losses(plan.home / "tensorboard" / plan.name)
    parts = np.array_split(np.array(list(losses.items())).reshape(-1, 2), min(LOSSES_SHOWN, max(1, len(losses))))
    kept = ("phase", "step", "loss", "samples_per_second", "P@1", "P@5", "nDCG@5", "R@100", "seconds_per_step")
    return {
        "stage": plan.name,
        "epochs": [{key: entry[key] for key in kept} for entry in read_history(plan.model)],
        "steps": [float(part[-1, 0]) for part in parts if len(part)],
        "losses": [float(part[:, 1].mean()) for part in parts if len(part)],
    }


def index_numbers(member: Plan, name_of: Callable[[int], str]) -> dict[str, Any]:
    prepared, config = member.prepared, member.config
    manifest = committed(member.model)
    assert manifest is not None
    adjacency, classifiers = read_index(member, manifest)
    with torch.no_grad():
        scores_CR = adjacency.log_scores(torch.arange(adjacency.num_clusters)).exp().numpy()
    clusters_L = read_clusters(member.clusters)
    index = index_analysis.Index(adjacency.labels.numpy(), scores_CR, clusters_L, prepared.label_frequency_L)
    most = min(TRAINING_POINTS, CLUSTER_SCORES // adjacency.num_clusters)
    train = sample_of(prepared.shards("train"), most, config.seed)
    validation = sample_of(prepared.shards("validation"), PRUNING_POINTS, config.seed)
    has_vectors = {split: committed(member.embeddings(member.encoder_name, split)) is not None for split in SPLITS}
    projected = None
    if has_vectors["train"]:
        points = read_points(member, classifiers, train)
        projected = {**project(index, points, name_of, config.seed), "of": prepared.num_rows("train")}
    pruning = None
    if has_vectors["validation"]:
        pruning = measure_pruning(member, manifest, classifiers, adjacency, validation, PRUNING_POINTS)
        if prepared.num_labels in paper_results.BY_NUM_LABELS:
            pruning["paper"] = paper_results.BY_NUM_LABELS[prepared.num_labels].name == paper_results.PRUNED
    return {
        "edge_scores": index_analysis.edge_scores(index),
        "surviving_edges": index_analysis.surviving_edges(index),
        "clusters_per_label": index_analysis.clusters_per_label(index),
        "cluster_sizes": index_analysis.cluster_sizes(index),
        "largest_clusters": index_analysis.largest_clusters(index, name_of),
        "labels_in_most_clusters": index_analysis.labels_in_most_clusters(index, name_of),
        "nearest_clusters": index_analysis.nearest_clusters(index, classifiers.weight.numpy(), name_of, config.seed),
        "projection": projected,
        "pruning": pruning,
    }


def read_index(member: Plan, manifest: Manifest) -> tuple[Adjacency, ClusterClassifiers]:
    """A and W_C."""
    num_clusters = int(manifest.facts["num_clusters"])
    edges = read_rows(member.model, manifest, "A", range(num_clusters))
    adjacency = Adjacency(edges["labels"], edges["weights"], member.config.search.beta, num_clusters, trainable=False)
    clusters = read_rows(member.model, manifest, "W_C", range(num_clusters))
    return adjacency, ClusterClassifiers(clusters["weight"], clusters["bias"], num_clusters, trainable=False)


def recalls(
    run: Folder, prepared: Prepared, predictions: Mapping[str, Folder], shards: Mapping[str, int]
) -> dict[str, Any]:
    """Of each row of the build-up and of each other system."""
    rows = {TITLES[row]: recall(prepared, folder, shards) for row, folder in predictions.items()}
    peers = {row["title"]: recall(prepared, place_of(run, name), shards) for name, row in measured_peers(run).items()}
    return {"rows": rows, "peers": peers}
