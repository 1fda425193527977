"""A dataset with Amazon-3M's proportions in any size, so that everything about it can be tried without it.

Labels come in planted groups, as products do: a group has words of its own, a text is made of words of its group and
of some of its labels, and its labels are of its group but for a few. How often labels occur falls off like Zipf's law.
`data.path=generated:700` is the dataset with 700 labels, `generated:700:400:100` that with so many training and test
points; it depends on these numbers and the seed alone.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from elias_ray.artifacts import FileEntry, Folder
from elias_ray.errors import UserError

PREFIX = "generated:"
TRAINING_POINTS, TEST_POINTS = 1_717_899 / 2_812_281, 742_507 / 2_812_281  # for each label
LABELS_PER_POINT = 36
LABELS_PER_GROUP = 200
STRAY = 0.1  # part of a point's labels that are of other groups
GROUP_WORDS, WORDS_OF_GROUP, WORDS_OF_LABELS = 8, 4, 2  # words that a group has; words of a text
LABEL_COLUMN, TEXT_COLUMN = "labels", "text"
SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnprstvwxyz" for vowel in "aeiou"]
WORDS = pa.array([first + second for first in SYLLABLES for second in SYLLABLES])


@dataclass(frozen=True)
class Size:
    labels: int
    train: int  # points
    test: int

    @classmethod
    def of(cls, path: str) -> "Size":
        """As the path has it, or in Amazon-3M's proportions."""
        numbers = path.removeprefix(PREFIX).split(":")
        if len(numbers) not in (1, 3) or not all(number.isdigit() and int(number) for number in numbers):
            raise UserError(
                f"data.path={path}: how many labels? Such as {PREFIX}700, or with training and test points "
                f"{PREFIX}700:400:100"
            )
        labels, *points = map(int, numbers)
        return cls(labels, *(points or (max(20, round(part * labels)) for part in (TRAINING_POINTS, TEST_POINTS))))


def build(folder: Folder, size: Size, seed: int) -> list[FileEntry]:
    rng = np.random.default_rng((seed, size.labels))
    groups = -(-size.labels // LABELS_PER_GROUP)
    words_GW = rng.integers(len(WORDS), size=(groups, GROUP_WORDS))
    word_L = rng.integers(len(WORDS), size=size.labels)
    place_GR = rng.permuted(np.tile(np.arange(LABELS_PER_GROUP), (groups, 1)), axis=1)
    entries = []
    for split, points in (("train", size.train), ("test", size.test)):
        group_N = rng.permutation(points) % groups
        drawn_NP = _labels(rng, group_N, place_GR, groups, size.labels)
        places_N4 = rng.permuted(np.tile(np.arange(GROUP_WORDS), (points, 1)), axis=1)[:, :WORDS_OF_GROUP]
        of_group_N4 = np.take_along_axis(words_GW[group_N], places_N4, axis=1)
        words_NW = np.concatenate([of_group_N4, word_L[drawn_NP[:, :WORDS_OF_LABELS]]], axis=1)
        texts = pc.binary_join_element_wise(*(WORDS.take(pa.array(word_N)) for word_N in words_NW.T), " ")
        pairs = np.arange(points)[:, None] * size.labels + drawn_NP
        if split == "train":
            pairs = np.append(pairs, _first_points(rng, group_N, groups, drawn_NP, size.labels))
        labels = _lists(np.unique(pairs), points, size.labels)
        entries.append(folder.write_table(f"{split}.parquet", pa.table({TEXT_COLUMN: texts, LABEL_COLUMN: labels})))
    return entries


def _labels(
    rng: np.random.Generator,
    group_N: npt.NDArray[np.int64],
    place_GR: npt.NDArray[np.int64],
    groups: int,
    num_labels: int,
) -> npt.NDArray[np.int64]:
    """Zipf over the labels of a group: the r-th of them with a weight of 1 / r.

    Label l is of group l mod groups, and which of its group is the r-th tells `place_GR`: numbers in the order of
    frequency would give one worker most of the work.
    """
    weights = 1 / np.arange(1, LABELS_PER_GROUP + 1)
    ranks_NP = rng.choice(LABELS_PER_GROUP, size=(len(group_N), LABELS_PER_POINT), p=weights / weights.sum())
    labels_NP = (group_N[:, None] + groups * place_GR[group_N[:, None], ranks_NP]) % num_labels
    stray_NP = rng.random(labels_NP.shape) < STRAY
    labels_NP[stray_NP] = rng.integers(num_labels, size=int(stray_NP.sum()))
    return labels_NP


def _first_points(
    rng: np.random.Generator,
    group_N: npt.NDArray[np.int64],
    groups: int,
    drawn_NP: npt.NDArray[np.int64],
    num_labels: int,
) -> npt.NDArray[np.int64]:
    """Pairs that give every label a point which has none: one of its group or, if that has none, any."""
    missing = np.flatnonzero(np.bincount(drawn_NP.ravel(), minlength=num_labels) == 0)
    by_group, counts = group_N.argsort(kind="stable"), np.bincount(group_N, minlength=groups)
    starts, of_group = counts.cumsum() - counts, missing % groups
    place = starts[of_group] + rng.integers(np.maximum(counts[of_group], 1))
    anywhere = rng.integers(len(group_N), size=len(missing))
    points = np.where(counts[of_group] > 0, by_group[np.minimum(place, len(group_N) - 1)], anywhere)
    return points * num_labels + missing


def _lists(pairs: npt.NDArray[np.int64], points: int, num_labels: int) -> pa.Array:
    """Label names of every point; a pair is point * L + label, and they ascend."""
    ends = np.searchsorted(pairs, np.arange(points + 1) * num_labels)
    numbers = pa.array(pairs % num_labels).cast(pa.string())
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pc.binary_join_element_wise("product", numbers, " "))
