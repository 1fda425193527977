"""The report of a run: one web page, its pictures, and the numbers behind them. See analysis.py for the numbers."""

import hashlib
import json
import posixpath
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from typing import Any

from elias_ray import report_texts as texts
from elias_ray.analysis import analyze
from elias_ray.artifacts import MANIFEST, Folder, committed, committing, key_of
from elias_ray.benchmark import RESULT
from elias_ray.data import SPLITS
from elias_ray.errors import UserError
from elias_ray.evaluation import build_up
from elias_ray.memory import GIB
from elias_ray.metrics import METRIC_NAMES
from elias_ray.paper_results import PRUNED_TO_BEST_EDGES, PRUNED_TO_LEAST_SCORE, SHOWN
from elias_ray.plan import Plan
from elias_ray.pruning import SHOWN as SHOWN_PRUNED
from elias_ray.report_pictures import pictures
from elias_ray.web_page import Picture, Section, facts, folded, page, paragraph, picture, side_by_side, table

PAGE, NUMBERS = "index.html", "analysis.json"
REPORT = "report"  # its folder in a run, and what its manifest says that it is


def write_report(members: list[Plan], output: Folder, anew: bool = False) -> str:
    """Where the page is. Made now unless it was; it takes the place of an older report, but of nothing else."""
    place, made_from = f"{output.location}/{PAGE}", made_from_what(members)
    if output.files() and not is_report(output):
        raise UserError(f"{output.path} holds files that are not of a report; give a new folder")
    with suppress(UserError):  # one that somebody changed is made anew
        if not anew and committed(output, made_from) is not None:
            return place
    analysis = analyze(members)
    drawn = pictures(analysis)
    files = {
        PAGE: compose(analysis, drawn).encode(),
        NUMBERS: json.dumps(analysis, indent=1, ensure_ascii=False).encode(),
        **{f"{name}.png": content for name, content in drawn.items()},
    }
    with committing(output, made_from) as manifest:
        manifest.facts.update(kind=REPORT, pictures=len(drawn))
        for name, content in files.items():
            manifest.files[name] = output.write(name, content)
    return place


def is_report(folder: Folder) -> bool:
    """Whole or not."""
    with suppress(FileNotFoundError, ValueError):
        return bool(json.loads(folder.read(MANIFEST)).get("kind") == REPORT)
    return False


def made_from_what(members: list[Plan]) -> str:
    """Key of the artifacts that a report is about."""
    run = members[0].run
    artifacts = [members[0].model, *build_up(run, members).values()]
    key = key_of(*(artifact for artifact in artifacts if committed(artifact) is not None))
    return hashlib.sha256(key.encode() + (run.read(RESULT) if run.exists(RESULT) else b"")).hexdigest()


def compose(analysis: Mapping[str, Any], drawn: Mapping[str, bytes]) -> str:
    described = texts.describe(analysis)

    def show(*names: str) -> str:
        """Those pictures of these that there are."""
        present = [picture(Picture(*described[name], f"{name}.png", drawn[name])) for name in names if name in drawn]
        return side_by_side(present) if len(present) > 1 else "".join(present)

    index, name = analysis["index"], posixpath.basename(analysis["dataset"]["data"].rstrip("/"))
    of_predictions = show("build-up", "recall", "recall-by-decile", "true-label-scores")
    of_the_index = show("edge-scores", "edge-histogram", "surviving-edges", "clusters-per-label")
    sections = [
        Section("What it reached", reached(analysis) + of_predictions),
        Section("The run", the_run(analysis, show("steps"))),
        Section("Training", show("loss", "validation", "throughput", "parts-of-a-step")),
        Section("The learned index", about_index(index) + of_the_index + index_tables(index, show("cluster-sizes"))),
        Section("Labels in several clusters", projection(index, show("points-of-several", "points-of-one"))),
        Section("How much of the index is needed", pruning(index, show("pruning", "pruning-time"))),
        Section("Errors worth a look", errors(analysis)),
    ]
    return page(name, f"What was learned by {analysis['run']}{texts.members(analysis)}", opening(analysis), sections)


def opening(analysis: Mapping[str, Any]) -> str:
    dataset = analysis["dataset"]
    values = {
        "training points": f"{dataset['splits']['train']['points']:,}",
        "labels": f"{dataset['labels']:,}",
        "clusters": f"{analysis['index']['cluster_sizes']['clusters']:,}",
        "edges": f"{analysis['index']['edge_scores']['edges']:,}",
    }
    if analysis["build_up"]:
        metrics = analysis["build_up"]["rows"][-1]["metrics"]
        values |= {f"{name}, test": f"{metrics[name]:.2f}" for name in SHOWN}
    return facts(values)


def reached(analysis: Mapping[str, Any]) -> str:
    figures = analysis["build_up"]
    if figures is None:
        return paragraph("This run has no table of test figures: it ended with the model of stage 2.")
    rows = [[row["title"], *(f"{row['metrics'][name]:.2f}" for name in METRIC_NAMES)] for row in figures["rows"]]
    others = [
        [name, *(f"{metrics[key]:.2f}" if metrics.get(key) is not None else "–" for key in METRIC_NAMES)]
        for name, metrics in figures["peers"].items()
    ]
    caption = f"{analysis['test_sample']['of']:,} test points, per cent{'; first other systems' if others else ''}"
    shown = table(["", *METRIC_NAMES], [*others, *rows], caption, strong=[len(others) + len(rows) - 1])
    sample = analysis["test_sample"]
    if sample["points"] < sample["of"]:
        shown += paragraph(f"Pictures: {texts.sample('test points', **sample)}", "soft")
    if figures["paper"]:
        beside = [
            [row["title"], *(f"{of[name]:.2f}" for name in SHOWN for of in (row["metrics"], row["paper"]))]
            for row in figures["rows"]
        ]
        header = ["", *(f"{name}{whose}" for name in SHOWN for whose in ("", ", paper"))]
        shown += table(header, beside, f"Beside the paper's figures of {figures['paper']}")
    return shown


def about_index(index: Mapping[str, Any]) -> str:
    count = index["cluster_sizes"]["unreachable_labels"]
    said = "Every label can be reached: each has an edge from some cluster."
    if count:
        said = f"{count:,} labels cannot be reached: no cluster has an edge to them."
    return paragraph(texts.INDEX) + paragraph(said)


def index_tables(index: Mapping[str, Any], sizes: str) -> str:
    largest = [[str(c["cluster"]), f"{c['labels']:,}", ", ".join(c["about"])] for c in index["largest_clusters"]]
    most = [[i["label"], f"{i['clusters']:,}", f"{i['training_points']:,}"] for i in index["labels_in_most_clusters"]]
    near = index["nearest_clusters"]
    pairs = []
    for pair in near["pairs"]:
        about = [
            f"{number}: {', '.join(labels)}" for number, labels in zip(pair["clusters"], pair["about"], strict=True)
        ]
        pairs.append([f"{pair['cosine']:.2f}", *about])
    remark = "" if near["compared"] == near["clusters"] else f"; {near['compared']:,} of {near['clusters']:,} compared"
    return (
        side_by_side([sizes, table(["label", "clusters", "training points"], most, "Labels in most clusters")])
        + table(["cluster", "labels", "best labels"], largest, "The largest clusters", text_columns=(0, 2))
        + table(
            ["cosine", "cluster", "and cluster"], pairs, f"Nearest clusters, by W_C{remark}", text_columns=(0, 1, 2)
        )
    )


def projection(index: Mapping[str, Any], shown: str) -> str:
    if index["projection"] is None:
        return paragraph("The embeddings of the training points are not there.")
    if not shown:
        return paragraph("No label has enough training points to be drawn.")
    said = texts.sample("training points", index["projection"]["points"], index["projection"]["of"])
    return paragraph(texts.PROJECTION) + shown + paragraph(said, "soft")


def pruning(index: Mapping[str, Any], shown: str) -> str:
    found = index["pruning"]
    if found is None:
        return paragraph("The embeddings of the validation points are not there.")
    if "skipped" in found:
        return paragraph(f"Not measured: {found['skipped']}.")
    header = ["", "pruned, %", *SHOWN_PRUNED, "ms a point"]
    papers: dict[tuple[float, int | None], tuple[float, ...]] = {}
    if found.get("paper"):
        header += [f"{name}, paper" for name in SHOWN_PRUNED]
        papers = {(score, None): values for score, values in PRUNED_TO_LEAST_SCORE.items()}
        papers |= {(0.0, count): values for count, values in PRUNED_TO_BEST_EDGES.items()}
    rows = []
    for row in found["rows"]:
        values = [row["percent_pruned"], *(row[name] for name in SHOWN_PRUNED), row["milliseconds_per_point"]]
        values += papers.get((row["least_score"], row["edges_per_cluster"]), ())
        rows.append([row["cut"], *(f"{value:.2f}" for value in values)])
    said = texts.sample("validation points", found["points"], found["of"])
    caption = f"Paper, table 9: the index with fewer edges. A label's best edge always stays. {said}"
    return table(header, rows, caption) + shown


def errors(analysis: Mapping[str, Any]) -> str:
    if not analysis["errors"]:
        return paragraph("There are no test predictions, or none of them is wrong.")
    items = []
    for error in analysis["errors"]:
        predicted = "".join(
            f'<span class="label{"" if p["true"] else " wrong"}">{p["score"]:.2f} {escape(p["label"])}</span>'
            for p in error["predicted"]
        )
        true = "".join(f'<span class="label">{escape(label)}</span>' for label in error["true"])
        items.append(
            f'<li>{paragraph(error["text"])}<div><span class="soft">predicted </span>{predicted}</div>'
            f'<div><span class="soft">true </span>{true}</div></li>'
        )
    said = f"The {len(items)} test points whose best label has the highest score and is not true. In orange: not true."
    return paragraph(said) + f'<ol class="errors">{"".join(items)}</ol>'


def the_run(analysis: Mapping[str, Any], shown: str) -> str:
    dataset, hardware = analysis["dataset"], analysis["hardware"]
    splits = [dataset["splits"][split] for split in SPLITS]
    rows = [
        ["points", *(f"{split['points']:,}" for split in splits)],
        ["labels a point", *(_mean(split["labels"], split["points"]) for split in splits)],
        ["tokens kept of a text", *(_mean(split["tokens"], split["points"]) for split in splits)],
        ["texts cut at max_length", *(f"{split['truncated']:,}" for split in splits)],
        ["empty texts", *(f"{split['empty_texts']:,}" for split in splits)],
        ["points without labels", *(f"{split['without_labels']:,}" for split in splits)],
    ]
    rows += [
        [name, value, "", ""]
        for name, value in {
            "labels": f"{dataset['labels']:,}",
            "labels never trained": f"{dataset['labels_never_trained']:,}",
            "points of a trained label": f"{dataset['training_points_per_label']:.2f}",
            "tf-idf terms": f"{dataset['terms']:,}",
        }.items()
    ]
    machine = [["hardware", "not noted by this run"]]
    if hardware:
        machine = [
            ["nodes", f"{hardware['nodes']:,}"],
            ["CPUs, GPUs", f"{hardware['cpus']:,}, {hardware['gpus']:,}"],
            ["memory for Ray", f"{hardware['memory'] / GIB:.1f} GiB"],
            ["processor", hardware["processor"]],
            ["system", f"{hardware['system']}, Python {hardware['python']}"],
        ]
    config = analysis["config"]
    changed = [[key, str(config["values"][key])] for key in config["changed"]]
    every = [[key, str(value)] for key, value in config["values"].items()]
    first = table(["", *SPLITS], rows, f"{dataset['data']}, {dataset['format']}")
    second = table(["", ""], machine, "Where the last job of it ran", text_columns=(0, 1))
    third = table(["key", "value"], changed, "Config, where it differs from the defaults", text_columns=(0, 1))
    whole = folded("every key of the config", table(["key", "value"], every, text_columns=(0, 1)))
    return side_by_side([first, shown, second, third]) + whole


def _mean(total: int, count: int) -> str:
    return f"{total / count:.2f}" if count else "–"
