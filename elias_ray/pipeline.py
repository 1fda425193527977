"""The method, in order. Each step reads what the ones before committed and commits artifacts of its own.

A step whose artifact is there is not done again, so running a job once more is how it is resumed.
"""

import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial

import ray
from ray import tune

from elias_ray import stage
from elias_ray.artifacts import Folder, committed, key_of, record_config
from elias_ray.clusters import make_clusters
from elias_ray.config import Config
from elias_ray.estimate import estimate_adjacency
from elias_ray.evaluation import evaluate_run, show_examples
from elias_ray.final_scores import calibrate, unite
from elias_ray.journal import figures_of, read_history
from elias_ray.plan import Plan, is_done, plans_of_members
from elias_ray.prepare import place_of_built, prepare
from elias_ray.ranker_blocks import train_ranker
from elias_ray.report import REPORT, write_report
from elias_ray.run_lock import waiting_for
from elias_ray.run_record import record_hardware, timing
from elias_ray.sharing import Shared
from elias_ray.worker_group import run_on_workers


def train(run: Folder, config: Config) -> None:
    record_hardware(run)
    with timing(run, "prepare"):
        prepared = prepare(run, config)
    at_once = models_at_once(config, config.ensemble.members)
    resources = config.resources.model_copy(update={"models_at_once": at_once})
    members = plans_of_members(run, config.model_copy(update={"resources": resources}), prepared)
    with timing(run, "embeddings"):
        embed_as_it_came(members[0])
    train_members(members, at_once)
    if len(members) > 1:
        with timing(run, "ensemble"):
            unite(run / "ensemble", members)
    with timing(run, "metrics"):
        evaluate_run(run, members)
    show_examples(run, members)
    show_report(members)


def show_report(members: list[Plan]) -> None:
    """What was learned, as a page. A run without it is whole, so nothing that goes wrong here ends the job."""
    run = members[0].run
    try:
        with timing(run, "report"):
            place = write_report(members, run / REPORT)
        print(f"\nwhat was learned: {place}")
    except Exception as error:
        print(f"\nthere is no report ({error}); python jobs/report.py --run {run.location} tries again")


def train_model(run: Folder, config: Config) -> Plan:
    """The first member, up to what its stages predict of the test points: all but ranker and calibration."""
    record_hardware(run)
    with timing(run, "prepare"):
        prepared = prepare(run, config)
    member = replace(plans_of_members(run, config, prepared)[0], predicted=("test",))
    with timing(run, "embeddings"):
        embed_as_it_came(member)
    train_stages(member)
    return member


def train_trial(run: Folder, config: Config, shared_folder: Folder) -> None:
    """Of a search: the first member, up to the model of its last stage, with what other trials have made already."""
    with waiting_for(run):
        record_config(run, config)
        shared = Shared(shared_folder, run, config)
        built = place_of_built(run, config)
        with shared.step("prepare", "", [run / "prepare", *([built] if built else [])]), timing(run, "prepare"):
            prepared = prepare(run, config)
        member = replace(plans_of_members(run, config, prepared)[0], shared=shared)
        with timing(run, "embeddings"):
            embed_as_it_came(member)
        train_stages(member)


def models_at_once(config: Config, models: int) -> int:
    """Of so many to train: as many as have their GPUs or, without any, their nodes; unless the config says."""
    if config.resources.models_at_once is not None:
        return min(models, config.resources.models_at_once)
    workers = config.resources.workers
    gpus = int(ray.cluster_resources().get("GPU", 0)) if config.resources.use_gpu is not False else 0
    nodes = sum(1 for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0))
    return max(1, min(models, (gpus if gpus >= workers else nodes) // workers))


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
    with timing(member.home, "ranker"):
        train_ranker(member)
    with timing(member.home, "calibration"):
        calibrate(member)


def train_stages(member: Plan) -> None:
    stage1, config = member.stage("stage1"), member.config
    with timing(member.home, "clusters"):
        cluster_labels(member.stage("warmup"))
    trained_vectors = [stage1.embeddings("stage1", "train")] if stage1.settings.epochs else []
    artifacts = (stage1.model, stage1.best_clusters, *trained_vectors)
    with member.step("stage1", stage1.made_from, *artifacts), timing(member.home, "stage1"):
        train_stage(stage1)
    with timing(member.home, "adjacency"):
        estimate_adjacency(
            stage1.adjacency, member.prepared, stage1.clusters, stage1.best_clusters, config.search.labels_per_row
        )
    with timing(member.home, "stage2"):
        train_stage(member)


def embed_as_it_came(member: Plan) -> None:
    """By the encoder as it came, for clusters on embeddings; and before members that start from it side by side."""
    config, several = member.config, (member.config.resources.models_at_once or 1) > 1 or member.shared
    first = member.stage("warmup" if config.clusters.recluster_after else "stage1")
    starts_from_it = first.settings.frozen_epochs > 0 or config.training.start == "centroids"
    if config.clusters.recluster_after != 0 and not (several and starts_from_it):
        return
    folders = [first.embeddings("pretrained", split) for split in first.splits_embedded_first]
    key = key_of(member.prepared.folder)
    with member.step("embeddings", key, *folders):
        if any(committed(folder, key) is None for folder in folders):
            run_on_workers(partial(stage.embed_points, first), member.run, "embeddings", config)


def cluster_labels(warmup: Plan) -> None:
    """On tf-idf; or, after some epochs with those clusters, once more on tf-idf and embeddings."""
    config, prepared, embeddings = warmup.config, warmup.prepared, None
    if config.clusters.recluster_after is not None:
        if config.clusters.recluster_after:
            with warmup.step("clusters", key_of(prepared.folder), warmup.clusters):
                make_clusters(warmup.clusters, prepared, config, warmup.clusters_seed)
            with warmup.step("warmup", warmup.made_from, warmup.model, warmup.embeddings("warmup", "train")):
                train_stage(warmup)
        embeddings = warmup.embeddings("warmup" if config.clusters.recluster_after else "pretrained", "train")
    clusters = warmup.stage("stage1").clusters
    with warmup.step("clusters", key_of(prepared.folder, *([embeddings] if embeddings else [])), clusters):
        make_clusters(clusters, prepared, config, warmup.clusters_seed, embeddings)


def train_stage(plan: Plan) -> None:
    title = plan.title
    if is_done(plan):
        print(f"{title}: done before ({plan.model.path})")
        if plan.shared:
            for entry in read_history(plan.model):
                tune.report(figures_of(entry))
        return
    started = time.monotonic()
    workers = plan.config.resources.workers
    print(f"{title}: starting {workers} worker{'s' if workers > 1 else ''}", flush=True)
    run_on_workers(partial(stage.work, plan), plan.home, title, plan.config, tune.report if plan.shared else None)
    print(f"{title}: done in {time.monotonic() - started:.0f} s")
