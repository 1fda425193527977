"""Train one system and ask it about the test points: python -m elias_ray.peers NAME --run RUN --threads T --minutes M

Leaves its predictions in the run, with what they cost in their manifest.
"""

import argparse
import importlib
import posixpath
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from elias_ray.artifacts import FileEntry, Folder, committing
from elias_ray.benchmark import place_of
from elias_ray.cli import reporting_errors
from elias_ray.peers import OURS, PEERS, Case, Trained
from elias_ray.plan import Plan, open_run
from elias_ray.predictions import Lists, write_predictions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=(*OURS, *PEERS))
    parser.add_argument("--run", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--made-from", required=True, help="key of what it starts from")
    arguments = parser.parse_args()
    with reporting_errors():
        member = open_run(arguments.run)[0]
        measure(arguments.name, Case(member, arguments.threads, arguments.minutes), arguments.made_from)


def measure(name: str, case: Case, made_from: str) -> None:
    module = importlib.import_module(f"elias_ray.peers.{(OURS | PEERS)[name].module}")
    member, started = case.member, time.monotonic()
    trained: Trained = module.train(case, name) if name in OURS else module.train(case)
    training_seconds = time.monotonic() - started + getattr(trained, "seconds_before", 0.0)
    peak_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    started = time.monotonic()
    scores_NL = trained.predict()
    prediction_seconds = time.monotonic() - started
    with tempfile.TemporaryDirectory() as scratch:
        trained.save(Path(scratch))
        model_bytes = sum(file.stat().st_size for file in Path(scratch).rglob("*") if file.is_file())
    folder = place_of(member.run, name)
    with committing(folder, made_from) as manifest:
        write_scores(folder, manifest.files, member, scores_NL)
        manifest.facts.update(
            {
                "training_seconds": training_seconds,
                "prediction_ms": 1000 * prediction_seconds / scores_NL.shape[0],
                "peak_memory": peak_memory,
                "model_bytes": model_bytes,
                "remark": getattr(trained, "remark", ""),
            }
            | getattr(trained, "facts", {})  # as it knows better
        )


def write_scores(folder: Folder, files: dict[str, FileEntry], member: Plan, scores_NL: sp.csr_matrix) -> None:
    """Shards like those of a run's own predictions."""
    start = 0
    for shard, rows in member.prepared.shards("test").items():
        part_NL = scores_NL[start : start + rows]
        lists = Lists(
            np.diff(part_NL.indptr).astype(np.int64),
            part_NL.indices.astype(np.int32),
            {"scores": part_NL.data.astype(np.float32)},
        )
        files[posixpath.basename(shard)] = write_predictions(folder, member.prepared, shard, lists)
        start += rows
    assert start == scores_NL.shape[0], (start, scores_NL.shape)


if __name__ == "__main__":
    main()
