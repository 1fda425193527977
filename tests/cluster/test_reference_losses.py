"""The first losses of the default preset, as they were: a change that is to change nothing leaves them alone.

    .venv/bin/python -m tests.cluster.test_reference_losses DIR    # writes them anew, where they are to change

DIR is a folder for the runs; what is there already is not made again.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest

from elias_ray.artifacts import Folder
from elias_ray.cli import connect_to_ray
from elias_ray.config import load_config

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_session"), pytest.mark.timeout(1500)]

REFERENCE = Path(__file__).with_name("reference_losses.json")  # by number of workers
STEPS = 50  # of stage 1
WORKERS = (1, 2)


def first_losses(folder: Path) -> dict[str, list[float]]:
    """Workers share prepared data, embeddings and clusters, not what they train."""
    from elias_ray import pipeline
    from elias_ray.journal import read_losses
    from elias_ray.plan import plans_of_members
    from elias_ray.prepare import prepare

    found: dict[str, list[float]] = {}
    for workers in WORKERS:
        run, config = folder / str(workers), load_config("apidocs", [f"resources.workers={workers}"])
        for part in ("apidocs", "prepare", "embeddings", "member1/clusters"):
            if workers != WORKERS[0] and not (run / part).exists():
                shutil.copytree(folder / str(WORKERS[0]) / part, run / part)
        place = Folder.at(run)
        place.create()
        member = plans_of_members(place, config, prepare(place, config))[0]
        pipeline.embed_as_it_came(member)
        pipeline.cluster_labels(member.stage("warmup"))
        pipeline.train_stage(member.stage("stage1"))
        found[str(workers)] = list(read_losses(member.home / "tensorboard/stage1").values())[:STEPS]
    return found


def test_the_first_losses_are_the_reference(tmp_path: Path) -> None:
    reference, found = json.loads(REFERENCE.read_text()), first_losses(tmp_path)
    assert [len(losses) for losses in reference.values()] == [STEPS] * len(WORKERS)
    for workers, losses in reference.items():
        assert found[workers] == pytest.approx(losses, rel=1e-4), f"{workers} workers"


if __name__ == "__main__":
    connect_to_ray()
    REFERENCE.write_text(json.dumps(first_losses(Path(sys.argv[1])), indent=1) + "\n")
