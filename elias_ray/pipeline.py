"""The method, in order. Each step reads what the ones before committed and commits artifacts of its own.

A step whose artifact is there is not done again, so running a job once more is how it is resumed.
"""

import json
import time
from functools import partial

from elias_ray import stage
from elias_ray.artifacts import Folder, committed, key_of
from elias_ray.clusters import make_clusters
from elias_ray.config import Config
from elias_ray.data import Prepared
from elias_ray.estimate import estimate_adjacency
from elias_ray.metrics import format_table
from elias_ray.plan import Plan, is_done
from elias_ray.predict import evaluate
from elias_ray.prepare import prepare
from elias_ray.worker_group import run_on_workers

METRICS = "metrics.json"


def train(run: Folder, config: Config) -> None:
    prepared = prepare(run, config)
    cluster_labels(run, prepared, config)
    stage1, stage2 = Plan(run, config, prepared, "stage1"), Plan(run, config, prepared, "stage2")
    train_stage(stage1)
    estimate_adjacency(stage1.adjacency, prepared, stage1.clusters, stage1.best_clusters, config.search.labels_per_row)
    train_stage(stage2)
    report(run, {"stage1": stage1, "stage2": stage2})


def cluster_labels(run: Folder, prepared: Prepared, config: Config) -> None:
    """On tf-idf; or, after some epochs with those clusters, once more on tf-idf and embeddings."""
    embeddings = None
    if config.clusters.recluster_after is not None:
        warmup = Plan(run, config, prepared, "warmup")
        encoder_name = "pretrained"
        if config.clusters.recluster_after:
            make_clusters(warmup.clusters, prepared, config)
            train_stage(warmup)
            encoder_name = "warmup"
        elif committed(warmup.embeddings("pretrained", "train"), key_of(prepared.folder)) is None:
            embed = partial(stage.embed_training_points, warmup)
            run_on_workers(embed, run, "embed", config.resources)
        embeddings = warmup.embeddings(encoder_name, "train")
    make_clusters(run / "clusters", prepared, config, embeddings)


def train_stage(plan: Plan) -> None:
    title = plan.title
    if is_done(plan):
        print(f"{title}: done before ({plan.model.path})")
        return
    started = time.monotonic()
    workers = plan.config.resources.workers
    print(f"{title}: starting {workers} worker{'s' if workers > 1 else ''}", flush=True)
    run_on_workers(partial(stage.work, plan), plan.run, plan.name, plan.config.resources)
    print(f"{title}: done in {time.monotonic() - started:.0f} s")


def report(run: Folder, stages: dict[str, Plan]) -> None:
    """The test figures of each row of the build-up, on the screen and in metrics.json."""
    rows = {
        name: evaluate(plan.prepared, plan.predictions("test"), "test", plan.config.metrics)
        for name, plan in stages.items()
    }
    run.write(METRICS, json.dumps(rows, indent=1).encode())
    titles = {"stage1": "stage 1", "stage2": "+ stage 2"}
    print(f"\ntest points: {next(iter(stages.values())).prepared.num_rows('test'):,}\n")
    print(format_table({titles[name]: row for name, row in rows.items()}))
