"""What grows with the number of labels: the same training on generated data of several sizes, and what it took.

Each size is a run of its own, of one member and without a ranker, in a folder of its own; one that is there is not
trained again.
"""

import json
from typing import Any

from elias_ray import generated
from elias_ray.artifacts import Folder, committed, record_config
from elias_ray.benchmark import markdown
from elias_ray.config import Config, with_values
from elias_ray.journal import read_history
from elias_ray.memory import GIB
from elias_ray.pipeline import train_model
from elias_ray.plan import Plan, StageName
from elias_ray.predictions import evaluate

RESULT, TABLE = "scale.json", "scale.md"
STAGES: tuple[StageName, ...] = ("stage1", "stage2")
FEWEST_POINTS = 32_768  # for training, where there are few labels
SHOWN = ("P@1", "R@100")


def measure_scale(run: Folder, config: Config, sizes: list[int]) -> None:
    """`config` is of the largest; the others have fewer labels, and points in proportion."""
    rows: list[dict[str, Any]] = []
    for labels in sizes:
        print(f"\n{labels:,} labels", flush=True)
        place = run / f"{labels}-labels"
        sized = with_values(config, {"data.path": path_for(labels, config)})
        record_config(place, sized)
        member = train_model(place, sized)
        rows += [row_of(member.stage(name)) for name in STAGES]
        run.write(RESULT, json.dumps(rows, indent=1).encode())
    table = as_markdown(rows)
    run.write(TABLE, table.encode())
    print(f"\n{table}\n{run.location}/{TABLE}, {RESULT}")


def path_for(labels: int, config: Config) -> str:
    """Points in proportion to the labels, but enough for a hundred steps."""
    whole = generated.Size.of(config.data.path)
    points = max(round(whole.train * labels / whole.labels), min(FEWEST_POINTS, whole.train))
    return f"{generated.PREFIX}{labels}:{points}:{whole.test}"


def row_of(stage: Plan) -> dict[str, Any]:
    model, predictions = committed(stage.model), committed(stage.predictions("test"))
    assert model is not None
    assert predictions is not None
    last = read_history(stage.model)[-1]
    figures = evaluate(stage.prepared, stage.predictions("test"), "test", stage.config.metrics).result()
    parts = last["seconds_per_step"]
    waited = parts.pop("data wait", 0.0)  # mostly for the first batch, however many follow
    return {
        "labels": stage.prepared.num_labels,
        "clusters": model.facts["num_clusters"],
        "stage": stage.title,
        "workers": model.facts["workers"],
        "steps": last["step"],
        "seconds_per_step": sum(parts.values()),
        "seconds_of_parts": parts,
        "seconds_waited": waited,
        "bytes_sent_per_step": last["bytes_sent_per_step"],
        "bytes_sent_by_deepspeed": model.facts["bytes_sent_by_deepspeed"],
        "peak_memory": model.facts["peak_memory"],
        "planned_memory": model.facts["planned_memory"],
        "memory_of_tables": model.facts["memory_of_tables"],
        "prediction_ms": 1000 * predictions.facts["seconds"] / stage.prepared.num_rows("test"),
        **figures,
    }


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """Times in ms, of a step; parts of it that take a hundredth of it somewhere."""
    longest = max(row["seconds_per_step"] for row in rows)
    parts = [
        part
        for part in dict.fromkeys(part for row in rows for part in row["seconds_of_parts"])
        if any(row["seconds_of_parts"].get(part, 0) > longest / 100 for row in rows)
    ]
    head = ["labels", "clusters", "", "step ms", *parts, "MB sent", "by DeepSpeed", "peak GiB a worker", "planned"]
    lines = [[*head, "of it tables", "predict ms/point", *SHOWN]]
    for row in rows:
        seconds = [row["seconds_per_step"], *(row["seconds_of_parts"].get(part, 0) for part in parts)]
        lines.append(
            [
                f"{row['labels']:,}",
                f"{row['clusters']:,}",
                row["stage"],
                *(f"{1000 * spent:.0f}" for spent in seconds),
                f"{row['bytes_sent_per_step'] / 1e6:.2f}",
                f"{row['bytes_sent_by_deepspeed'] / 1e6:.2f}",
                " / ".join(f"{peak / GIB:.2f}" for peak in row["peak_memory"]),
                f"{row['planned_memory'] / GIB:.2f}",
                f"{row['memory_of_tables'] / GIB:.2f}",
                f"{row['prediction_ms']:.1f}",
                *(f"{row[metric]:.2f}" for metric in SHOWN),
            ]
        )
    return markdown(lines)
