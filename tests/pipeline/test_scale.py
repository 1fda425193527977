"""jobs/scale.py on a size that a test has time for."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from elias_ray.artifacts import Folder
from elias_ray.config import load_config
from elias_ray.scale import RESULT, TABLE, measure_scale, path_for
from tests.examples import job

pytestmark = pytest.mark.timeout(300)

SETTINGS = (
    *("data.path=generated:300:192:40", "data.validation_points=32", "data.rows_per_shard=64", "search.beam=2"),
    *("search.labels_per_row=250", "search.shortlist=60", "training.batch_size=32"),
)


@pytest.mark.usefixtures("ray_session")
def test_a_size_is_trained_measured_and_not_trained_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config("scale", SETTINGS)
    measure_scale(Folder.at(tmp_path), config, [200])
    first = json.loads((tmp_path / RESULT).read_text())
    assert [(row["labels"], row["clusters"], row["stage"], row["steps"]) for row in first] == [
        (200, 2, "stage 1", 6),
        (200, 2, "stage 2", 6),
    ]
    for row in first:
        assert row["workers"] == len(row["peak_memory"]) == 2
        assert row["bytes_sent_per_step"] > 1000
        assert row["bytes_sent_by_deepspeed"] == 0  # phi is not trained
        assert row["memory_of_tables"] < row["planned_memory"]
        assert row["seconds_per_step"] == pytest.approx(sum(row["seconds_of_parts"].values()))
    assert (tmp_path / TABLE).read_text() in capsys.readouterr().out
    model = tmp_path / "200-labels/member1/stage2/model"
    (rows,) = [load_file(file) for file in model.glob("W_L-0000000000-*.safetensors")]
    assert rows["weight"].dtype == torch.bfloat16
    measure_scale(Folder.at(tmp_path), config, [200])
    assert json.loads((tmp_path / RESULT).read_text()) == first
    assert "stage 2: done before" in capsys.readouterr().out


def test_points_are_in_proportion_but_enough() -> None:
    config = load_config("scale")
    assert path_for(2_812_281, config) == config.data.path == "generated:2812281:128000:4000"
    assert path_for(1_406_140, config) == "generated:1406140:64000:4000"
    assert path_for(30_000, config) == "generated:30000:32768:4000"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--labels", "many"], "--labels many: 'many' is not a number of labels"),
        (["--data", "apidocs"], "data.path=apidocs: only generated data comes in any size"),
        (["--labels", "30"], "--run DIR is missing"),
    ],
)
@pytest.mark.timeout(60)
def test_what_is_wrong_is_told_at_once(arguments: list[str], said: str) -> None:
    done = job("scale.py", *arguments)
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
