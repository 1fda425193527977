"""What the paper reports, to stand beside what a run has reached on the same dataset. In per cent, on test points."""

from typing import NamedTuple

SHOWN = ("P@1", "P@5", "R@100")
_ROWS = ("stage1", "stage2", "ranker", "calibrated", "ensemble")


class PaperDataset(NamedTuple):
    name: str
    rows: dict[str, dict[str, float]]  # of the build-up: metric by metric


def _dataset(name: str, *rows: tuple[float, float, float]) -> PaperDataset:
    return PaperDataset(name, {row: dict(zip(SHOWN, v, strict=True)) for row, v in zip(_ROWS, rows, strict=True)})


# By the number of labels, which no two datasets share.
BY_NUM_LABELS = {
    131_073: _dataset(
        "LF-AmazonTitles-131K",
        (36.96, 17.69, 58.81),
        (37.90, 18.45, 62.88),
        (39.25, 19.02, 62.88),
        (39.26, 19.02, 62.88),
        (40.13, 19.54, 65.15),
    ),
    670_091: _dataset(
        "Amazon-670K",
        (46.63, 37.58, 61.72),
        (48.68, 40.04, 68.95),
        (50.72, 41.27, 68.95),
        (51.41, 41.62, 68.95),
        (53.02, 42.97, 72.07),
    ),
    501_070: _dataset(
        "Wikipedia-500K",
        (76.54, 44.33, 80.60),
        (77.81, 45.85, 84.70),
        (79.47, 47.77, 84.70),
        (80.46, 48.03, 84.70),
        (81.26, 48.82, 87.22),
    ),
    2_812_281: _dataset(
        "Amazon-3M",
        (49.12, 44.10, 49.15),
        (49.93, 44.85, 52.93),
        (52.63, 47.58, 53.50),
        (52.63, 47.58, 53.50),
        (54.28, 49.09, 57.09),
    ),
}

# Table 9, of Amazon-670K. By the least score of an edge, and by the edges kept of a cluster: P@1, P@5, R@10, R@100.
PRUNED = "Amazon-670K"
PRUNED_TO_LEAST_SCORE = {
    0.0: (48.68, 40.04, 50.33, 68.95),
    0.01: (48.68, 40.05, 50.33, 68.96),
    0.05: (48.68, 40.04, 50.33, 68.96),
    0.1: (48.68, 40.04, 50.33, 68.95),
    0.25: (48.65, 40.02, 50.26, 68.82),
    0.5: (48.40, 39.48, 48.98, 66.75),
    0.75: (47.70, 38.19, 46.38, 62.17),
    0.9: (47.26, 37.42, 44.91, 59.53),
}
PRUNED_TO_BEST_EDGES = {
    750: (48.70, 40.05, 50.34, 68.95),
    500: (48.72, 40.05, 50.34, 68.95),
    300: (48.72, 40.05, 50.34, 68.95),
    200: (48.71, 40.05, 50.32, 68.87),
    100: (48.22, 39.04, 47.98, 64.80),
    50: (46.17, 33.85, 38.35, 49.48),
}
