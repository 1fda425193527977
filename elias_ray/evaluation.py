"""What a run has reached on its test points: the build-up of the method row by row, and examples by name."""

import json
from collections.abc import Sequence

import numpy as np

from elias_ray.artifacts import Folder
from elias_ray.metrics import NUM_DECILES, format_rows, format_table
from elias_ray.plan import Plan
from elias_ray.predictions import evaluate, read_predicted

METRICS, BY_DECILE = "metrics.json", "metrics_by_decile.json"
TITLES = {
    "stage1": "stage 1",
    "stage2": "+ stage 2",
    "ranker": "+ ranker",
    "calibrated": "+ calibration",
    "ensemble": "+ ensemble",
}
SHOWN_BY_DECILE = ("P@5", "R@100")
EXAMPLES, LABELS_OF_EXAMPLE = 3, 5


def build_up(run: Folder, members: Sequence[Plan]) -> dict[str, Folder]:
    """The test predictions of each row: of the first member, and of all of them together where there are more."""
    member = members[0]
    rows = {
        "stage1": member.stage("stage1").predictions("test"),
        "stage2": member.predictions("test"),
        "ranker": member.ranked("test"),
        "calibrated": member.calibrated("test"),
    }
    return rows | ({"ensemble": run / "ensemble"} if len(members) > 1 else {})


def evaluate_run(run: Folder, members: Sequence[Plan]) -> None:
    """On the screen, in metrics.json and metrics_by_decile.json."""
    prepared, settings = members[0].prepared, members[0].config.metrics
    rows = {name: evaluate(prepared, folder, "test", settings) for name, folder in build_up(run, members).items()}
    results = {name: metrics.result() for name, metrics in rows.items()}
    by_decile = {name: metrics.by_decile() for name, metrics in rows.items()}
    run.write(METRICS, json.dumps(results, indent=1).encode())
    run.write(BY_DECILE, json.dumps(by_decile, indent=1).encode())
    print(f"\n{prepared.num_rows('test'):,} test points\n")
    print(format_table({TITLES[name]: result for name, result in results.items()}))
    for metric in SHOWN_BY_DECILE:
        print(f"\nwhat each decile of the labels, head first, adds to {metric}\n")
        columns = [str(decile + 1) for decile in range(NUM_DECILES)]
        print(format_rows(columns, {TITLES[name]: values[metric] for name, values in by_decile.items()}))


def show_examples(run: Folder, members: Sequence[Plan]) -> None:
    """A few test points, drawn by the seed: what was predicted, and what is true."""
    prepared, config = members[0].prepared, members[0].config
    predictions = list(build_up(run, members).values())[-1]
    shard = next(iter(prepared.shards("test")))
    texts = prepared.folder.read_table(shard, ["text"])["text"].to_pylist()
    predicted, labels_NL = read_predicted(predictions, shard).best(LABELS_OF_EXAMPLE), prepared.labels_of_shard(shard)
    names = prepared.label_names
    chosen = np.random.default_rng(config.seed).choice(len(texts), min(EXAMPLES, len(texts)), replace=False)
    for row in chosen:
        true = set(labels_NL[row].indices.tolist())
        print(f"\n{texts[row]}")
        for label, score in zip(predicted.labels_NK[row], predicted.scores_NK[row], strict=True):
            if label >= 0:
                print(f"  {score:6.3f}  {names[label]}{'  (true)' if label in true else ''}")
        missed = [names[label] for label in sorted(true - set(predicted.labels_NK[row].tolist()))]
        if missed:
            print(f"          not among these: {', '.join(missed)}")
