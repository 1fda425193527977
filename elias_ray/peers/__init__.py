"""Systems that ELIAS is measured against, on the points, features and encoder of a run.

Each is trained and asked in a process of its own (__main__.py), so that its time and its memory are its own.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import scipy.sparse as sp

from elias_ray.plan import Plan


@dataclass(frozen=True)
class Case:
    """What a system is given."""

    member: Plan  # the first of the run
    threads: int
    minutes: float  # to train in, for one that can choose


class Trained(Protocol):
    def predict(self) -> sp.csr_matrix:
        """The scores of the best labels of every test point: (N, L)."""

    def save(self, folder: Path) -> None:
        """To see how large it is."""


@dataclass(frozen=True)
class System:
    title: str
    module: str  # has `train(case) -> Trained`
    packages: tuple[str, ...] = ()  # that it needs besides ours, or instead of them


OURS = {
    "elias": System("ELIAS", "ours"),
    "elias++": System("ELIAS++", "ours"),
}
PEERS = {
    "xr-linear": System("XR-Linear", "xr_linear"),
    # libpecos was written for transformers 4, whose last versions lack what it imports
    "xr-transformer": System(
        "XR-Transformer",
        "xr_transformer",
        ("transformers==4.46.3", "tokenizers==0.20.3", "huggingface_hub==0.36.2"),
    ),
    "omikuji": System("Omikuji (Parabel)", "parabel", ("omikuji==0.5.2",)),
    "ova": System("one-versus-all", "one_versus_all"),
}
