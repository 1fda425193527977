"""What a report says of its pictures: a title that states what is found, and a caption of what is seen."""

from collections.abc import Callable, Mapping
from typing import Any

from elias_ray.index_analysis import ASSIGNED
from elias_ray.report_pictures import TITLE_OF_STAGE, duration

Words = tuple[str, str]  # title, caption
INDEX = (
    "A is the adjacency between clusters and labels. Each cluster has edges to some labels; in stage 2 their scores, "
    f"from 0 to 1, are learned. A label counts as in a cluster if its edge scores above {ASSIGNED}, as in the paper."
)
PROJECTION = (
    "Each panel is a label, drawn at random. In orange its own training points; in the other colours points of the "
    "clusters that it is in, a colour a cluster. Neighbours by t-SNE; distances between groups mean little."
)
ENOUGH = 0.5  # of R@100 that an index with fewer edges may lose and be called as good


def describe(analysis: Mapping[str, Any]) -> dict[str, Words]:
    """Of every picture that the analysis has numbers for."""
    index, training = analysis["index"], analysis["training"]
    projection, pruning = index["projection"] or {}, index["pruning"] or {}
    said: dict[str, tuple[Callable[[Any], Words], Any]] = {
        "steps": (steps, analysis["steps"]),
        "build-up": (build_up, analysis["build_up"]),
        "loss": (loss, training),
        "validation": (validation, training),
        "throughput": (throughput, training),
        "parts-of-a-step": (parts_of_a_step, training),
        "recall": (recall, analysis["recall"]),
        "recall-by-decile": (recall_by_decile, analysis["recall"]),
        "true-label-scores": (true_label_scores, analysis["true_label_scores"]),
        "edge-scores": (edge_scores, index["edge_scores"]),
        "edge-histogram": (edge_histogram, index["edge_scores"]),
        "surviving-edges": (surviving_edges, index["surviving_edges"]),
        "clusters-per-label": (clusters_per_label, index["clusters_per_label"]),
        "cluster-sizes": (cluster_sizes, index["cluster_sizes"]),
        "points-of-several": (points_of_several, projection),
        "points-of-one": (points_of_one, projection),
        "pruning": (pruned, pruning.get("rows")),
        "pruning-time": (pruned_time, pruning.get("rows")),
    }
    return {name: say(numbers) for name, (say, numbers) in said.items() if numbers}


def members(analysis: Mapping[str, Any]) -> str:
    count = analysis["members"]
    return f", an ensemble of {count}; index, training and times are those of its first member" if count > 1 else ""


def sample(what: str, points: int, of: int) -> str:
    return f"All {of:,} {what}." if points >= of else f"A sample of {points:,} of {of:,} {what}, drawn by the seed."


def steps(steps: Any) -> Words:
    longest, total = max(steps, key=lambda step: step["seconds"]), sum(step["seconds"] for step in steps)
    caption = "Wall time of every step that noted it."
    if any(step["part"] for step in steps):
        caption += " Light: training epochs alone, from the speed that the history has."
    share = 100 * longest["seconds"] / max(1e-9, total)
    return f"Of {duration(total)}, {share:.0f} % went into {longest['step']}", caption


def build_up(figures: Any) -> Words:
    first, last = figures["rows"][0], figures["rows"][-1]
    title = f"From stage 1 to the last row P@1 {_moved(first['metrics']['P@1'], last['metrics']['P@1'])}"
    caption = "Test points, row by row of the method."
    if figures["peers"]:
        caption += " Grey: other systems on the same points."
    if figures["paper"]:
        caption += f" Black dashes: the paper's figures of {figures['paper']}."
    return title, caption


def loss(stages: Any) -> Words:
    last = stages[-1]
    losses = [epoch["loss"] for epoch in last["epochs"]]
    name = TITLE_OF_STAGE[last["stage"]]
    return f"The loss of {name} {_moved(losses[0], losses[-1], 3)}", (
        "Dots: mean of an epoch. Thin line: by step. The stages have different shortlists, so the loss of one cannot "
        "be compared with the other's."
    )


def validation(stages: Any) -> Words:
    ends = [stage["epochs"][-1]["R@100"] for stage in stages]
    title = f"R@100 {_moved(ends[-2], ends[-1])} in stage 2" if len(ends) > 1 else f"R@100 ends at {ends[-1]:.2f}"
    return title, "Validation points after each epoch; the grey line is where a stage begins."


def throughput(stages: Any) -> Words:
    last = stages[-1]
    speed = last["epochs"][-1]["samples_per_second"]
    name = TITLE_OF_STAGE[last["stage"]]
    return f"{speed:,.0f} training points a second in {name}", "All workers together, mean of each epoch."


def parts_of_a_step(stages: Any) -> Words:
    parts = stages[-1]["epochs"][-1]["seconds_per_step"]
    total, largest = sum(parts.values()), max(parts, key=lambda part: parts[part])
    title = f"A step of {TITLE_OF_STAGE[stages[-1]['stage']]} takes {1000 * total:.0f} ms"
    share = 100 * parts[largest] / max(1e-9, total)
    return f"{title}, {share:.0f} % of it for {largest}", "Where the time of a step goes: last epoch, first worker."


def recall(recalls: Any) -> Words:
    found = list(recalls["rows"].values())[-1]
    said = (
        f"{found['at'][9]:.0f} % of the true labels are among ten predictions, {found['at'][99]:.0f} % among a hundred"
    )
    known = {name: of_peer["at"][99] for name, of_peer in recalls["peers"].items()}
    caption = "Paper, figure 5 left: recall of the test points by how many labels are predicted."
    if known:
        best = max(known, key=lambda name: known[name])
        caption += f" At 100: {found['at'][99]:.2f}; of the other systems the best is {best} with {known[best]:.2f}."
    return said, caption


def recall_by_decile(recalls: Any) -> Words:
    rows = list(recalls["rows"].values())
    caption = "Paper, figure 5 right: what labels of each decile add to R@100. A decile is a tenth of the label volume."
    if len(rows) < 2:
        return "R@100 by label decile", caption
    gains = [after - before for before, after in zip(rows[0]["by_decile"], rows[-1]["by_decile"], strict=True)]
    best = max(range(len(gains)), key=lambda decile: gains[decile])
    if gains[best] <= 0:
        return "No decile gains over stage 1", caption
    return f"Over stage 1, decile {best + 1} gains most: {gains[best]:+.2f} of R@100", caption


def true_label_scores(scores: Any) -> Words:
    def ends(name: str) -> tuple[float, float]:
        medians = [quartiles[1] for quartiles in scores["quartiles"][name] if quartiles is not None]
        return medians[0], medians[-1]

    title = f"From head to tail ELIAS {_moved(*ends('p'))}, the ranker {_moved(*ends('q'))}"
    return title, (
        "Paper, figure 4: scores of the true labels by label decile, median and quartiles, where the label is among "
        f"those ranked ({scores['percent_of_true']:.0f} % of the true labels are). The calibrated score is the sum of "
        "the tree's and a smooth one, so it goes up to 2."
    )


def edge_scores(scores: Any) -> Words:
    width = scores["edges_per_cluster"]
    count = scores["percent_assigned"] * width / 100
    return f"Of the {width:,.0f} edges of a cluster {count:,.0f} score above {ASSIGNED}", (
        "Paper, figure 3: score of the best edge of a cluster, the second best, and so on. Shaded: from a tenth to "
        "nine tenths of the clusters."
    )


def edge_histogram(scores: Any) -> Words:
    title = f"Half of the edges score less than {max(0.01, scores['median']):.2g}"
    return title, (
        f"All {scores['edges']:,} edges of A by their score: {scores['percent_nothing']:.1f} % less than 0.01, "
        f"{scores['percent_whole']:.1f} % the whole 1. The scale of the bars is logarithmic."
    )


def surviving_edges(survival: Any) -> Words:
    return f"{survival['percent_assigned']:.0f} % of the first edges are still in use", (
        "Paper, figure 7a: edges between the clusters of stage 1 and their labels that score more than a threshold in "
        f"the learned A; {survival['percent_stored']:.0f} % are stored there at all. The paper has about 60 % on "
        "Amazon-670K."
    )


def clusters_per_label(counts: Any) -> Words:
    means = [mean for mean in counts["mean"] if mean is not None]
    title = f"A label of the head is in {means[0]:.1f} clusters, one of the tail in {means[-1]:.1f}"
    return title, (
        f"Paper, figure 7b: clusters of a label, mean of its decile. {counts['in_one']:,} labels are in one cluster, "
        f"{counts['in_several']:,} in several, {counts['in_none']:,} in none above {ASSIGNED}: of these the edges are "
        "weak but there."
    )


def cluster_sizes(sizes: Any) -> Words:
    first, learned = sizes["first"], sizes["learned"]
    return f"Clusters hold {learned['least']:,} to {learned['most']:,} labels, as a median {learned['median']:,.0f}", (
        f"{sizes['clusters']:,} clusters. Before A was learned: {first['least']:,} to {first['most']:,} labels."
    )


def points_of_several(projection: Any) -> Words:
    several, one = projection["cosine_several"], projection["cosine_one"]
    title = "Labels in several clusters"
    if several is not None and one is not None:
        word = "less" if several < one else "more" if several > one else "as"
        title += f": their points are {word} alike than those of labels in one" if word != "as" else ""
    return title, "Paper, figure 8. " + _alike(projection, "several")


def points_of_one(projection: Any) -> Words:
    return "Labels in one cluster", "Paper, figure 9. " + _alike(projection, "one")


def _alike(projection: Any, kind: str) -> str:
    cosine, count = projection[f"cosine_{kind}"], projection[f"labels_compared_{kind}"]
    if cosine is None:
        return ""
    return f"Mean cosine of two training points of the same label, over {count:,} such labels: {cosine:.3f}."


def pruned(rows: Any) -> Words:
    whole = rows[0]
    good = [row for row in rows if row["R@100"] >= whole["R@100"] - ENOUGH]
    most = max(good, key=lambda row: row["percent_pruned"])
    lost = whole["R@100"] - most["R@100"]
    title = f"{most['percent_pruned']:.0f} % of the edges can go for {max(0, lost):.2f} of R@100"
    return title, "Round: edges that score less are left out. Square: only the best edges of each cluster stay."


def pruned_time(rows: Any) -> Words:
    fastest = min(rows, key=lambda row: row["milliseconds_per_point"])
    title = f"{rows[0]['milliseconds_per_point']:.2f} ms a point with all edges"
    if fastest is not rows[0]:
        title += f", {fastest['milliseconds_per_point']:.2f} with {fastest['cut']}"
    return title, "Search and scoring in one process on cached embeddings; the encoder comes on top."


def _moved(before: float, after: float, decimals: int = 2) -> str:
    word = "rises" if after > before else "falls" if after < before else "stays"
    return f"{word} from {before:.{decimals}f} to {after:.{decimals}f}" if after != before else f"stays at {after:.2f}"
