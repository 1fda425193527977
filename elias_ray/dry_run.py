"""What a run will take, before anything is started: steps, memory of a worker, bytes sent, size of a checkpoint."""

import math
from dataclasses import dataclass

import torch
from transformers import AutoConfig, AutoModel, BertConfig, PreTrainedModel

from elias_ray import generated, memory
from elias_ray.artifacts import Folder, committed
from elias_ray.clusters import choose_num_clusters
from elias_ray.config import Config
from elias_ray.data import Prepared
from elias_ray.errors import UserError
from elias_ray.memory import GIB
from elias_ray.plan import TITLES, StageName, settings_of
from elias_ray.stage import shapes_of
from elias_ray.tokenizer import encoder_location


@dataclass(frozen=True)
class Size:
    """Of a dataset."""

    points: int  # training
    labels: int
    labels_per_point: float


# Of the paper's datasets, as its table of statistics has them, for runs that are not prepared yet.
PAPER = {
    "lf-amazontitles-131k": Size(294_805, 131_073, 2.29),
    "amazon-670k": Size(490_449, 670_091, 5.45),
    "wikipedia-500k": Size(1_779_881, 501_070, 4.75),
    "amazon-3m": Size(1_717_899, 2_812_281, 36.04),
}


def show_plan(run: Folder | None, config: Config, preset: str) -> None:
    size = size_of(run, config, preset)
    clusters = choose_num_clusters(size.labels, config)
    workers, members = config.resources.workers, config.ensemble.members
    print(
        f"{size.points:,} training points, {size.labels:,} labels, {clusters:,} clusters\n"
        f"{workers} workers{', each with a GPU' if config.resources.use_gpu else ''}; batches of "
        f"{config.training.batch_size}, {config.training.batch_size // workers} a worker"
    )
    transformer, remark = encoder_of(config)
    if remark:
        print(remark)
    steps_of_epoch = math.ceil(size.points / config.training.batch_size)
    names: list[StageName] = ["warmup", "stage1", "stage2"]
    for name in names if config.clusters.recluster_after else names[1:]:
        settings = settings_of(name, config)
        epochs = settings.frozen_epochs + settings.epochs
        row_length = config.search.labels_per_row if name == "stage2" else math.ceil(size.labels / clusters)
        shapes = shapes_of(
            *(name, config, transformer, workers, size.points, clusters, size.labels, row_length),
            on_gpu=bool(config.resources.use_gpu),
        )
        show_stage(TITLES[name], epochs, epochs * steps_of_epoch, shapes, size, config)
    show_ranker(size, config)
    if members > 1:
        print(f"\nall of this for each of {members} members")


def show_stage(title: str, epochs: int, steps: int, shapes: memory.Shapes, size: Size, config: Config) -> None:
    lines = memory.plan(shapes)
    print(f"\n{title}: {epochs} epochs, {steps:,} steps\n memory of each worker")
    print("\n".join(f"  {name:<44}{bytes_ / GIB:>10.3f} GiB" for name, bytes_ in lines.items()))
    print(f"  {'in all':<44}{sum(lines.values()) / GIB:>10.3f} GiB")
    if shapes.workers > 1:
        sent = memory.sent(shapes, math.ceil(size.labels_per_point))
        print(" sent by each worker in a step")
        print("\n".join(f"  {name:<44}{bytes_ / 1e6:>10.3f} MB" for name, bytes_ in sent.items()))
        print(f"  {'in all':<44}{sum(sent.values()) / 1e6:>10.3f} MB")
    whole, rows = memory.of_a_checkpoint(shapes)
    print(
        f" checkpoint: {rows / GIB:.2f} GiB a worker, {(whole + rows * shapes.workers) / GIB:.2f} GiB in all; "
        f"one every {config.checkpoints.minutes:g} minutes, {config.checkpoints.keep} kept"
    )


def show_ranker(size: Size, config: Config) -> None:
    pairs = size.points * (
        config.ranker.candidates + size.labels_per_point / 2
    )  # half of the positives, say, are not among the best
    blocks = math.ceil(pairs / config.resources.ranker_pairs_per_block)
    print(f"\nranker: about {pairs / 1e6:,.0f} M pairs of point and label, {blocks:,} blocks")


def size_of(run: Folder | None, config: Config, preset: str) -> Size:
    """As prepared, or as the paper has it."""
    manifest = committed(run / "prepare") if run is not None and run.exists() else None
    if manifest is not None and run is not None:
        prepared = Prepared(run / "prepare", manifest.facts)
        points, pairs = prepared.num_rows("train"), int(prepared.label_frequency_L.sum())
        return Size(points, prepared.num_labels, pairs / max(1, points))
    if config.data.path.startswith(generated.PREFIX):
        size = generated.Size.of(config.data.path)
        return Size(size.train, size.labels, generated.LABELS_PER_POINT)
    if preset not in PAPER:
        raise UserError(
            "--dry-run needs the number of points and labels: run jobs/prepare.py with the same --run first"
        )
    return PAPER[preset]


def encoder_of(config: Config) -> tuple[PreTrainedModel, str]:
    """Its shape without its weights; and a remark if it is not to be had here."""
    location, remark = encoder_location(config.encoder.name), ""
    try:
        shape = AutoConfig.from_pretrained(location, local_files_only=True)
    except OSError:
        shape, remark = BertConfig(), f"the encoder {config.encoder.name} is not on this machine: reckoned as BERT base"
    with torch.device("meta"):
        transformer = AutoModel.from_config(shape)
    transformer.pooler = None
    return transformer, remark
