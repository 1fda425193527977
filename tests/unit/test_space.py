"""The space of a search: names, files, grids and draws."""

from pathlib import Path

import pytest

from elias_ray.config import load_config
from elias_ray.errors import UserError
from elias_ray.space import Range, read_space


def test_names_have_values_ready() -> None:
    trials = read_space("alpha,beta").trials(load_config(), None)
    assert [trial.name for trial in trials][:2] == ["alpha=10,beta=150", "alpha=5,beta=75"]  # as given, then the grid
    assert len({trial.name for trial in trials}) == len(trials) == 9
    assert all(trial.config.search.alpha == trial.values["search.alpha"] for trial in trials)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lambda", ["0", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5"]),
        ("kappa", ["100", "200", "500", "1000", "2000", "5000", "10000"]),
    ],
)
def test_the_papers_table_7(name: str, values: list[str]) -> None:
    trials = read_space(name).trials(load_config("amazon-670k"), None)
    assert sorted((trial.name for trial in trials), key=lambda n: float(n.split("=")[1])) == [
        f"{name}={value}" for value in values
    ]


def test_the_config_as_given_is_always_tried() -> None:
    trials = read_space("lr").trials(load_config("apidocs", ["stage2.lr_classifiers=0.007"]), None)
    assert [trial.name for trial in trials] == ["lr=0.007", "lr=0.003", "lr=0.01", "lr=0.03"]


def test_a_file_of_values_and_ranges(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(
        "beta: [100, 200.0]\nstage2.lr_encoder: {from: 1e-5, to: 1e-3, log: true}\nsearch.beam: {from: 5, to: 9}\n"
    )
    space = read_space(str(file))
    assert space.dimensions["search.beam"] == Range(5, 9, False, True)
    assert list(space.names.values()) == ["beta", "lr_encoder", "beam"]
    trials = space.trials(load_config(), 50)
    assert [trial.values for trial in trials] == [trial.values for trial in space.trials(load_config(), 50)]
    drawn = trials[1:]
    assert {trial.values["search.beam"] for trial in drawn} == {5, 6, 7, 8, 9}
    assert {trial.values["search.beta"] for trial in drawn} == {100, 200}
    rates = sorted(trial.config.stage2.lr_encoder for trial in drawn)
    assert 1e-5 <= rates[0] < 5e-5 < 1e-4 < rates[-1] <= 1e-3
    assert 5e-5 < rates[25] < 2e-4  # the middle of the logarithms
    with pytest.raises(UserError, match=r"stage2.lr_encoder is a range, which has no grid; give --samples N"):
        space.trials(load_config(), None)


def test_keys_with_the_same_last_part_keep_their_sections(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("stage1.lr_encoder: [1e-4]\nstage2.lr_encoder: [1e-4]\n")
    assert list(read_space(str(file)).names.values()) == ["stage1.lr_encoder", "stage2.lr_encoder"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("search.alhpa: [1]", "unknown key search.alhpa"),
        ("alpha: 5", "neither a list of values nor"),
        ("alpha: []", "neither a list of values nor"),
        ("alpha: {from: 1}", "neither a list of values nor"),
        ("alpha: {from: 5, to: 1}", "from must be below to"),
        ("alpha: {from: 0, to: 1, log: true}", "above 0 with log"),
        ("{}", "nothing to search over"),
    ],
)
def test_a_file_that_makes_no_sense(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_space(str(file))


def test_a_name_that_is_not_known() -> None:
    with pytest.raises(UserError, match="'gamma' is not one of alpha, beta"):
        read_space("alpha,gamma")


def test_a_setting_that_cannot_work_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("beam: [4, 64]")
    with pytest.raises(
        UserError, match=r"the setting beam=64 cannot be tried: search.beam=64 exceeds clusters.count=32"
    ):
        read_space(str(file)).trials(load_config("apidocs", ["clusters.count=32"]), None)
