"""The config: presets, overrides, and what it refuses."""

from pathlib import Path

import pytest

from elias_ray.config import Config, describe_keys, differences, flatten, load_config, parse_config, preset_names
from elias_ray.errors import UserError

PRESETS = ["amazon-3m", "amazon-670k", "apidocs", "lf-amazontitles-131k", "scale", "wikipedia-500k"]

# Paper, table of hyperparameters:
#                         length     C  alpha beta kappa lambda    K   b  epochs    LR_W  LR_phi  batch
PAPER = {
    "lf-amazontitles-131k": (32, 2048, 10, 150, 1000, 0.05, 2000, 20, 60, 0.02, 1e-4, 512),
    "amazon-670k": (128, 8192, 10, 150, 1000, 0.05, 2000, 20, 60, 0.01, 1e-4, 256),
    "wikipedia-500k": (128, 8192, 10, 150, 1000, 0.05, 2000, 20, 45, 0.005, 5e-5, 256),
    "amazon-3m": (128, 32768, 20, 150, 1000, 0.05, 2000, 20, 45, 0.002, 2e-5, 64),
}


def test_presets_are_known() -> None:
    assert preset_names() == PRESETS


@pytest.mark.parametrize("name", PAPER)
def test_presets_hold_the_papers_values(name: str) -> None:
    c = load_config(name)
    assert (
        *(c.encoder.max_length, c.clusters.count, c.search.alpha, c.search.beta, c.search.labels_per_row),
        *(c.stage1.shortlist_weight, c.search.shortlist, c.search.beam, c.stage1.epochs + c.stage2.epochs),
        *(c.stage1.lr_classifiers, c.stage1.lr_encoder, c.training.batch_size),
    ) == PAPER[name]
    assert c.stage1.lr_classifiers == c.stage2.lr_classifiers
    assert c.stage1.lr_encoder == c.stage2.lr_encoder
    assert c.stage1.shortlist_weight == c.stage2.shortlist_weight
    assert c.encoder.name == "bert-base-uncased"
    assert c.encoder.pooling == "cls"
    assert c.ensemble.members == 3


def test_order_of_precedence() -> None:
    assert load_config().data.path == "apidocs"
    assert load_config("amazon-3m").search.alpha == 20
    assert load_config("amazon-3m", ["search.alpha=7.5"]).search.alpha == 7.5
    assert load_config("amazon-3m", ["search.alpha=7", "search.alpha=8"]).search.alpha == 8


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("stage1.lr_encoder=1e-5", "stage1.lr_encoder", 1e-5),
        ("stage1.lr_encoder=2E+0", "stage1.lr_encoder", 2.0),
        ("features.given=true", "features.given", True),
        ("clusters.count=null", "clusters.count", None),
        ("clusters.count=64", "clusters.count", 64),
        ("data.path=/a=b #1", "data.path", "/a=b #1"),
        ("data.text_column=2024", "data.text_column", "2024"),
        ("data.text_column=no", "data.text_column", "no"),
        ("seed=12", "seed", 12),
    ],
)
def test_overrides_are_typed(override: str, key: str, value: object) -> None:
    found = flatten(load_config(overrides=[override]))[key]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["search.beem=20"], ["unknown key search.beem=20", "did you mean search.beam?", "search.shortlist"]),
        (["beam=20"], ["unknown key beam=20", "allowed", "search"]),
        (["search.beam.deep=1"], ["search.beam={'deep': 1}", "valid integer"]),
        (["search={beam: 5}"], ["search={'beam': 5}", "one by one"]),
        (["seed=010"], ["seed=10.0", "valid integer"]),
        (["training.batch_size=4:16"], ["training.batch_size='4:16'", "valid integer"]),
        (["features.given=yes"], ["features.given='yes'", "valid boolean"]),
        (["seed.x=1"], ["seed={'x': 1}", "valid integer"]),
        (["search=5"], ["search=5", "valid dictionary"]),
        (["seed=null"], ["seed=None", "valid integer"]),
        (["search.beam=many"], ["search.beam='many'", "valid integer"]),
        (["search.beam=1.5"], ["search.beam=1.5", "valid integer"]),
        (["search.beam='20'"], ["search.beam='20'", "valid integer"]),
        (["search.beam=true"], ["search.beam=True", "valid integer"]),
        (["search.beam=0"], ["search.beam=0", "greater than or equal to 1"]),
        (["search.alpha=.nan"], ["search.alpha=nan", "finite"]),
        (["encoder.pooling=max"], ["encoder.pooling='max'", "'mean' or 'cls'"]),
        (["encoder.dropout=1"], ["encoder.dropout=1", "less than 1"]),
        (["clusters.count=100"], ["clusters.count=100", "power of two", "64 or 128"]),
        (["clusters.count=16"], ["search.beam=20", "clusters.count=16", "1 to 16"]),
        (["clusters.count=32", "search.labels_per_row=10"], ["search.shortlist=3000", "32 x 10 = 320"]),
        (["resources.workers=3"], ["training.batch_size=256", "resources.workers=3", "255"]),
        (["search.beam"], ["'search.beam'", "section.key=value"]),
        (["search.beam=[1"], ["search.beam=[1", "not valid YAML"]),
        (["search.beam=0", "stage2.shortlist_weight=-1"], ["search.beam=0", "stage2.shortlist_weight=-1"]),
        (
            ["training.precision=bfloat16", "stage1.average_from=0.5"],
            ["stage1.average_from=0.5", "bfloat16", "use null, or float32"],
        ),
        (
            ["training.precision=bfloat16", "training.random_labels=10"],
            ["training.random_labels=10", "bfloat16", "use 0, or float32"],
        ),
    ],
)
def test_refusals_name_key_value_and_what_is_allowed(overrides: list[str], said: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_config(overrides=overrides)
    for words in said:
        assert words in str(caught.value)


def test_data_path_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "2024").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_config(data_path="2024").data.path == str(tmp_path / "2024")
    assert load_config(data_path="gone").data.path == str(tmp_path / "gone")
    assert load_config(data_path="s3://bucket/a: b").data.path == "s3://bucket/a: b"
    assert load_config("amazon-3m", data_path="apidocs").data.path == "apidocs"


def test_unknown_preset() -> None:
    with pytest.raises(UserError, match=r"no preset 'amazon'.*amazon-670k"):
        load_config("amazon")


def test_preset_from_a_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("preset") / "mine.yaml"
    file.write_text("search: {beam: 5}\n")
    assert load_config(str(file)).search.beam == 5
    file.write_text("search:\nseed: 3\n")
    assert load_config(str(file), ["search.beam=4"]).search.beam == 4
    file.write_text("search: {beam: 5}\nseed: 1\nsearch: {alpha: 3}\n")
    with pytest.raises(UserError, match="search stands twice"):
        load_config(str(file))
    file.write_bytes(b"data: {path: gr\xf6sse}\n")
    with pytest.raises(UserError, match="not UTF-8"):
        load_config(str(file))
    file.write_text("- a\n- b\n")
    with pytest.raises(UserError, match="expected sections"):
        load_config(str(file))


def test_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_config().search.beam = 3  # type: ignore[misc]


@pytest.mark.parametrize("name", PRESETS)
def test_yaml_round_trip(name: str) -> None:
    config = load_config(name)
    assert parse_config(config.to_yaml(), "here") == config


@pytest.mark.parametrize("text", ["1e5", "no", "null", "010", "a: b", "# c", "größe", "true", ".5", "12:30", ""])
def test_yaml_round_trip_of_odd_texts(text: str) -> None:
    config = load_config(overrides=[f"data.text_column={text}"])
    assert config.data.text_column == text
    assert parse_config(config.to_yaml(), "here") == config


def test_differences_name_keys_and_both_values_but_not_where_a_run_computes() -> None:
    old = load_config()
    assert differences(old, load_config(overrides=["search.beam=10", "seed=1"])) == [
        "seed: 0 -> 1",
        "search.beam: 20 -> 10",
    ]
    assert differences(old, load_config(overrides=["resources.workers=2"])) == []


def test_help_lists_every_key_with_a_description() -> None:
    lines = list(describe_keys())
    assert len(lines) == len(flatten(Config()))
    for line in lines:
        assignment, _, description = line.strip().partition(" ")
        assert "=" in assignment
        assert len(description.split()) >= 2
        assert "None" not in line
