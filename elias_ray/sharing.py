"""Artifacts that the runs of a search share: what one has made, another takes if it would make the same.

The key of a step holds the artifacts that it starts from and the values of the config that it reads, and the key alone
decides. What is taken is linked where the filesystem has links and copied where it has none, so every run is whole.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pyarrow import fs

from elias_ray.artifacts import MANIFEST, Folder, Manifest, committed, write_manifest
from elias_ray.config import Config, flatten
from elias_ray.run_lock import waiting_for

# What each step reads of the config itself, besides the artifacts that it starts from; whole sections end with a dot.
TRAINING = (
    *("seed", "encoder.", "stage1.", "training.", "metrics."),
    *("search.alpha", "search.beam", "search.shortlist", "search.extra_clusters", "search.path_power"),
)
READS = {
    "prepare": ("seed", "data.", "encoder.name", "encoder.max_length", "features."),
    "embeddings": ("encoder.name", "encoder.pooling", "encoder.precision"),
    "clusters": ("seed", "clusters.", "search.beam"),
    "warmup": ("clusters.recluster_after", *TRAINING),
    "stage1": TRAINING,
}
TAKEN = "taken.json"


@dataclass(frozen=True)
class Shared:
    folder: Folder  # what the runs of the search have made
    run: Folder  # the one that takes and gives
    config: Config

    @contextmanager
    def step(self, name: str, made_from: str, artifacts: Sequence[Folder]) -> Iterator[None]:
        """The body makes the `artifacts` unless the run has them; it has if others have made them. It waits for a run
        that is making them now.
        """
        place = self.folder / f"{name}-{self.key(name, made_from)}"
        with waiting_for(place):
            made = committed(place)
            if made is not None and not all(artifact.exists(MANIFEST) for artifact in artifacts):
                for artifact in artifacts:
                    take(place / self.name_of(artifact), artifact)
                known = taken(self.run) | {place.path.rpartition("/")[2]: made.facts["seconds"]}
                self.run.write(TAKEN, json.dumps(known, indent=1).encode())
            started = time.monotonic()
            yield
            if made is None:
                for artifact in artifacts:
                    take(artifact, place / self.name_of(artifact))
                write_manifest(place, Manifest({}, {"seconds": round(time.monotonic() - started, 1)}))

    def key(self, name: str, made_from: str) -> str:
        values = {key: value for key, value in flatten(self.config).items() if is_read(key, name)}
        return hashlib.sha256(f"{made_from} {json.dumps(values, sort_keys=True)}".encode()).hexdigest()[:16]

    def name_of(self, artifact: Folder) -> str:
        return artifact.path.removeprefix(f"{self.run.path}/")


def taken(run: Folder) -> dict[str, float]:
    """What it has from others: seconds by step."""
    with suppress(FileNotFoundError):
        return dict(json.loads(run.read(TAKEN)))
    return {}


def is_read(key: str, step: str) -> bool:
    return any(key == read or (read.endswith(".") and key.startswith(read)) for read in READS[step])


def take(source: Folder, target: Folder) -> None:
    """An artifact, its manifest last."""
    target.delete()
    for name in sorted(source.files(), key=lambda name: name == MANIFEST):
        path = f"{target.path}/{name}"
        target.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        _link(target.filesystem, f"{source.path}/{name}", path)


def _link(filesystem: fs.FileSystem, source: str, target: str) -> None:
    if isinstance(filesystem, fs.LocalFileSystem):
        with suppress(OSError):  # a disk without links
            os.link(source, target)  # files of an artifact are never changed, only replaced
            return
    filesystem.copy_file(source, target)
