"""A search under Ray Tune; one that is killed is in tests/cluster/."""

import shutil
from pathlib import Path

import pytest

from elias_ray.artifacts import Folder, committed
from elias_ray.search import home_of, read_record, search
from elias_ray.sharing import taken
from elias_ray.space import Space
from tests.examples import settings

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.timeout(300)]


def test_a_trial_takes_what_another_has(trained: Path, data: Path, tmp_path: Path) -> None:
    """The first is a run that is there already, as if an earlier search had begun with it."""
    folder, trials = Folder.at(tmp_path), Space({"search.beta": [0.5]}).trials(settings(data), None)
    shutil.copytree(trained, tmp_path / "trials" / trials[0].name)
    records = search(folder, trials, "nDCG@5", "none")
    assert [(record.state, record.epochs) for record in records.values()] == [("done", 4)] * 2
    first, second = (records[trial.name].reports for trial in trials)
    assert first[:2] == second[:2], "stage 1"
    run = home_of(folder, trials[1])
    models = [committed(home_of(folder, trial) / "member1/stage2/model") for trial in trials]
    checksums = [{name: entry.sha256 for name, entry in model.files.items()} for model in models if model is not None]
    changed = {name for name in checksums[0] if checksums[0][name] != checksums[1][name]}
    assert {name[:3] for name in changed if name.startswith(("A-", "W_"))} == {"A-0", "W_C", "W_L"}
    assert [name.split("-")[0] for name in taken(run)] == ["prepare", "embeddings", "clusters", "stage1"]
    assert not run.exists("embeddings/pretrained/test")
    assert not run.exists("member1/stage2/predictions")
    assert read_record(folder, trials[1]) == records[trials[1].name]
