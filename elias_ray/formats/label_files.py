"""Files about labels that several formats share: their names, and pairs that do not count."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from elias_ray.errors import UserError
from elias_ray.formats.data_folder import DataFolder
from elias_ray.formats.values import clip, parse_id


def read_label_names(data: DataFolder, name: str) -> list[str]:
    """A label name per line, in the order of the ids."""
    names: list[str] = []
    line_of: dict[str, int] = {}
    for number, line in data.index_lines(name, blank_rows=False).lines():
        label = line.strip()
        if not label:
            raise UserError(f"{name}:{number}: a label without a name")
        if label in line_of and data.homonyms == "refuse":
            raise UserError(
                f"{name}:{number}: label name '{clip(label)}' stands on line {line_of[label]} already; "
                "if they are two labels, data.homonyms=number tells them apart"
            )
        line_of.setdefault(label, number)
        names.append(label)
    return tell_apart(names, first_keeps_name=True)


def tell_apart(names: list[str], tags: Iterable[object] | None = None, first_keeps_name: bool = False) -> list[str]:
    """The names, made different: ' [tag]' (by default the label id) is added to the empty and the repeated ones."""
    repeated = {name for name, times in Counter(names).items() if times > 1}
    taken, result = set(names), []
    seen: set[str] = set()
    for label, (name, tag) in enumerate(zip(names, tags or range(len(names)), strict=True)):
        told = name
        if not name or (name in repeated and (name in seen or not first_keeps_name)):
            told = f"{name} [{tag}]".strip()
            while told in taken:
                told += f" [{label}]"
            taken.add(told)
        seen.add(name)
        result.append(told)
    return result


def read_filtered_pairs(
    data: DataFolder, name: str | None, num_rows: int, num_labels: int
) -> npt.NDArray[np.int64] | None:
    """Lines 'row label' of a filter_labels file, sorted; it may be empty."""
    if name is None or not data.head(name).strip():
        return None
    pairs = []
    for number, line in data.index_lines(name, blank_rows=False).lines():
        parts = line.split()
        if len(parts) != 2:
            raise UserError(f"{name}:{number}: '{clip(line)}', expected a row and a label number")
        row = parse_id(parts[0], num_rows, "row", name, number)
        pairs.append((row, parse_id(parts[1], num_labels, "label", name, number)))
    return np.array(sorted(set(pairs)), dtype=np.int64).reshape(-1, 2)
