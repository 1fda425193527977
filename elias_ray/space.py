"""The space of a search: which keys of the config are tried, with which values.

By names, `alpha,beta`, with the values that stand here; or a YAML file of keys or names, each with a list of values or,
to draw from, a range:

  search.alpha: [5, 10, 20]
  stage2.lr_classifiers: {from: 0.001, to: 0.1, log: true}
"""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elias_ray.config import Config, flatten, parse_sections, with_values
from elias_ray.errors import UserError

# The paper's letters, and what else is often searched. lambda and kappa: the paper's table 7.
READY: dict[str, tuple[str, list[Any]]] = {
    "alpha": ("search.alpha", [5.0, 10.0, 20.0]),
    "beta": ("search.beta", [75.0, 150.0, 300.0]),
    "kappa": ("search.labels_per_row", [100, 200, 500, 1000, 2000, 5000, 10000]),
    "lambda": ("stage2.shortlist_weight", [0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5]),
    "beam": ("search.beam", [10, 20, 40]),
    "shortlist": ("search.shortlist", [1000, 2000, 4000]),
    "lr": ("stage2.lr_classifiers", [0.003, 0.01, 0.03]),
    "dropout": ("encoder.dropout", [0.0, 0.2, 0.5]),
}


@dataclass(frozen=True)
class Range:
    low: float
    high: float
    log: bool
    whole: bool  # numbers

    def draw(self, rng: np.random.Generator) -> float | int:
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = float(rng.uniform(self.low, self.high))
        return round(value) if self.whole else float(f"{value:.3g}")


@dataclass(frozen=True)
class Trial:
    """One setting: a run of its own."""

    name: str
    values: dict[str, Any]  # key of the config -> value
    config: Config


@dataclass(frozen=True)
class Space:
    dimensions: dict[str, list[Any] | Range]  # key of the config -> values

    @property
    def names(self) -> dict[str, str]:
        """Key -> what it is called on the screen: the paper's letter, else its last part, where that is enough."""
        letters = {key: name for name, (key, _) in READY.items()}
        short = {key: letters.get(key, key.rpartition(".")[2]) for key in self.dimensions}
        return {key: name if list(short.values()).count(name) == 1 else key for key, name in short.items()}

    def trials(self, config: Config, samples: int | None) -> list[Trial]:
        """The config as it is first, then the whole grid or, with `samples`, so many settings drawn by its seed."""
        given = flatten(config)
        settings = [{key: given[key] for key in self.dimensions}, *self._settings(config.seed, samples)]
        found: dict[str, Trial] = {}
        for values in settings:
            name = self.name_of(values)
            try:
                found.setdefault(name, Trial(name, values, with_values(config, values)))
            except UserError as error:
                raise UserError(f"the setting {name} cannot be tried: {error}") from None
        return list(found.values())

    def name_of(self, values: dict[str, Any]) -> str:
        """A folder is called so."""
        return ",".join(f"{self.names[key]}={show(value)}" for key, value in values.items()).replace("/", "_")

    def _settings(self, seed: int, samples: int | None) -> list[dict[str, Any]]:
        ranges = [key for key, values in self.dimensions.items() if isinstance(values, Range)]
        if samples is None:
            if ranges:
                raise UserError(f"{ranges[0]} is a range, which has no grid; give --samples N to draw from it")
            grid = itertools.product(*(list(values) for values in self.dimensions.values() if isinstance(values, list)))
            return [dict(zip(self.dimensions, values, strict=True)) for values in grid]
        rng = np.random.default_rng(seed)
        return [
            {
                key: values.draw(rng) if isinstance(values, Range) else values[rng.integers(len(values))]
                for key, values in self.dimensions.items()
            }
            for _ in range(samples)
        ]


def show(value: Any) -> str:
    return "null" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)


def read_space(text: str) -> Space:
    """Names with commas between them, or the path of a YAML file."""
    if not Path(text).is_file():
        names = text.split(",")
        for name in names:
            if name not in READY:
                raise UserError(
                    f"--space {text}: '{name}' is not one of {', '.join(READY)}, and there is no file of that name"
                )
        return Space({READY[name][0]: READY[name][1] for name in names})
    tree = parse_sections(Path(text).read_text(encoding="utf-8"), text)
    defaults = flatten(Config())
    dimensions: dict[str, list[Any] | Range] = {}
    for name, values in tree.items():
        key = READY[name][0] if name in READY else str(name)
        if key not in defaults:
            raise UserError(f"{text}: unknown key {name}; see jobs/train.py --help for all, or use {', '.join(READY)}")
        dimensions[key] = _dimension(f"{text}: {name}", values, defaults[key])
    if not dimensions:
        raise UserError(f"{text}: nothing to search over")
    return Space(dimensions)


def _dimension(where: str, values: Any, default: Any) -> "list[Any] | Range":
    if isinstance(values, list) and values and not any(isinstance(value, dict | list) for value in values):
        return values
    if not isinstance(values, dict) or not {"from", "to"} <= values.keys() <= {"from", "to", "log"}:
        raise UserError(f"{where}: {values} is neither a list of values nor {{from: LOW, to: HIGH, log: true}}")
    low, high, log = values["from"], values["to"], values.get("log", False)
    numbers = all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in (low, high))
    if not numbers or low >= high or (log and low <= 0):
        raise UserError(f"{where}: {values} is no range; from must be below to, and above 0 with log")
    whole = isinstance(default, int) or (default is None and isinstance(low, int) and isinstance(high, int))
    return Range(low, high, bool(log), whole)
