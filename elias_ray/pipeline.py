"""The method, in order. Each step reads what the ones before committed and commits artifacts of its own.

A step whose artifact is there is not done again, so running a job once more is how it is resumed.
"""

import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial

import ray

from elias_ray import stage
from elias_ray.artifacts import Folder, committed, key_of
from elias_ray.clusters import make_clusters
from elias_ray.config import Config
from elias_ray.estimate import estimate_adjacency
from elias_ray.evaluation import evaluate_run, show_examples
from elias_ray.final_scores import calibrate, unite
from elias_ray.plan import Plan, is_done, plans_of_members
from elias_ray.prepare import prepare
from elias_ray.ranker_blocks import train_ranker
from elias_ray.worker_group import run_on_workers


def train(run: Folder, config: Config) -> None:
    prepared = prepare(run, config)
    at_once = members_at_once(config)
    resources = config.resources.model_copy(update={"members_at_once": at_once})
    members = plans_of_members(run, config.model_copy(update={"resources": resources}), prepared)
    embed_as_it_came(members[0])
    train_members(members, at_once)
    if len(members) > 1:
        unite(run / "ensemble", members)
    evaluate_run(run, members)
    show_examples(run, members)


def members_at_once(config: Config) -> int:
    """As many as have their GPUs or, without any, their nodes; unless the config says."""
    if config.resources.members_at_once is not None:
        return min(config.ensemble.members, config.resources.members_at_once)
    gpus, workers = int(ray.cluster_resources().get("GPU", 0)), config.resources.workers
    nodes = sum(1 for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0))
    return max(1, min(config.ensemble.members, (gpus if gpus >= workers else nodes) // workers))


def train_members(members: list[Plan], at_once: int) -> None:
    if at_once == 1:  # here, where an interrupt is felt
        for member in members:
            train_member(member)
        return
    with ThreadPoolExecutor(at_once) as threads:
        try:
            for done in as_completed([threads.submit(train_member, member) for member in members]):
                done.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            ray.shutdown()  # which ends the others; what they have committed is there
            raise


def train_member(member: Plan) -> None:
    """`member` is the plan of its last stage."""
    train_stages(member)
    train_ranker(member)
    calibrate(member)


def train_stages(member: Plan) -> None:
    stage1, config = member.stage("stage1"), member.config
    cluster_labels(member.stage("warmup"))
    train_stage(stage1)
    estimate_adjacency(
        stage1.adjacency, member.prepared, stage1.clusters, stage1.best_clusters, config.search.labels_per_row
    )
    train_stage(member)


def embed_as_it_came(member: Plan) -> None:
    """By the encoder as it came, for clusters on embeddings; and before members that start from it side by side."""
    config, at_once = member.config, member.config.resources.members_at_once or 1
    first = member.stage("warmup" if config.clusters.recluster_after else "stage1")
    starts_from_it = first.settings.frozen_epochs > 0 or config.training.start == "centroids"
    if config.clusters.recluster_after != 0 and not (at_once > 1 and starts_from_it):
        return
    folders = [first.embeddings("pretrained", split) for split in first.splits_embedded_first]
    if any(committed(folder, key_of(member.prepared.folder)) is None for folder in folders):
        run_on_workers(partial(stage.embed_points, first), member.run, "embeddings", config)


def cluster_labels(warmup: Plan) -> None:
    """On tf-idf; or, after some epochs with those clusters, once more on tf-idf and embeddings."""
    config, prepared, embeddings = warmup.config, warmup.prepared, None
    if config.clusters.recluster_after is not None:
        if config.clusters.recluster_after:
            make_clusters(warmup.clusters, prepared, config, warmup.clusters_seed)
            train_stage(warmup)
        embeddings = warmup.embeddings("warmup" if config.clusters.recluster_after else "pretrained", "train")
    make_clusters(warmup.stage("stage1").clusters, prepared, config, warmup.clusters_seed, embeddings)


def train_stage(plan: Plan) -> None:
    title = plan.title
    if is_done(plan):
        print(f"{title}: done before ({plan.model.path})")
        return
    started = time.monotonic()
    workers = plan.config.resources.workers
    print(f"{title}: starting {workers} worker{'s' if workers > 1 else ''}", flush=True)
    run_on_workers(partial(stage.work, plan), plan.home, title, plan.config)
    print(f"{title}: done in {time.monotonic() - started:.0f} s")
