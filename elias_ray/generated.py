"""A dataset with Amazon-3M's proportions in any size, so that everything about it can be tried without it.

Labels come in planted groups, as products do: a group has words of its own, a text is made of words of its group and
of some of its labels, and its labels are of its group but for a few. How often labels occur falls off like Zipf's law.
`data.path=generated:700` is the dataset with 700 labels; it depends on that number and the seed alone.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elias_ray.artifacts import FileEntry, Folder
from elias_ray.errors import UserError

PREFIX = "generated:"
POINTS_PER_LABEL = {"train": 1_717_899 / 2_812_281, "test": 742_507 / 2_812_281}
LABELS_PER_POINT = 36
LABELS_PER_GROUP = 50
STRAY = 0.1  # part of a point's labels that are of other groups
GROUP_WORDS, WORDS_OF_GROUP, WORDS_OF_LABELS = 20, 5, 4  # words that a group has; words of a text
LABEL_COLUMN, TEXT_COLUMN = "labels", "text"


def num_labels(path: str) -> int:
    number = path.removeprefix(PREFIX)
    if not number.isdigit() or int(number) < 1:
        raise UserError(f"data.path={path}: how many labels? Such as {PREFIX}700")
    return int(number)


def points(labels: int, split: str) -> int:
    return max(20, round(POINTS_PER_LABEL[split] * labels))


def build(folder: Folder, labels: int, seed: int) -> list[FileEntry]:
    rng = np.random.default_rng((seed, labels))
    names = np.array([f"product {label}" for label in range(labels)])
    return [
        folder.write_table(f"{split}.parquet", _split(rng, names, points(labels, split), complete=split == "train"))
        for split in POINTS_PER_LABEL
    ]


def _split(rng: np.random.Generator, names: npt.NDArray[np.str_], points: int, complete: bool) -> pa.Table:
    """`complete`: every label has a point."""
    num_labels = len(names)
    groups = -(-num_labels // LABELS_PER_GROUP)
    group_N = rng.integers(groups, size=points)
    # Zipf over the labels of a group: the r-th of them with a weight of 1 / r.
    weights = 1 / np.arange(1, LABELS_PER_GROUP + 1)
    ranks_NP = rng.choice(LABELS_PER_GROUP, size=(points, LABELS_PER_POINT), p=weights / weights.sum())
    labels_NP = (group_N[:, None] + groups * ranks_NP) % num_labels  # label l is of group l mod groups
    stray_NP = rng.random(labels_NP.shape) < STRAY
    labels_NP[stray_NP] = rng.integers(num_labels, size=int(stray_NP.sum()))
    extra: list[list[int]] = [[] for _ in range(points)]
    if complete:
        for label, point in enumerate(rng.integers(points, size=num_labels)):
            extra[point].append(label)
    words_NW = rng.integers(GROUP_WORDS, size=(points, WORDS_OF_GROUP))
    texts, labels = [], []
    for point in range(points):
        of_group = [f"topic{group_N[point]}word{word}" for word in words_NW[point]]
        of_labels = [f"item{label}" for label in labels_NP[point, :WORDS_OF_LABELS]]
        texts.append(" ".join([*of_group, *of_labels]))
        labels.append([names[label] for label in sorted({*labels_NP[point].tolist(), *extra[point]})])
    return pa.table({TEXT_COLUMN: texts, LABEL_COLUMN: labels})
