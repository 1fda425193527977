"""What the repository promises about itself."""

import ast
import re
import stat
from pathlib import Path

import pytest

from elias_ray.apidocs import PACKAGES

ROOT = Path(__file__).parents[2]
REQUIREMENTS = (ROOT / "requirements.txt").read_text()
PINS = dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)$", REQUIREMENTS, re.MULTILINE))
README = (ROOT / "README.md").read_text()

# Tested alone, without a cluster; and one room each for the heavy guests.
CORE = [
    *("analysis", "drawing", "index_analysis", "index_pictures", "paper_results", "prediction_analysis", "projection"),
    *("pruning", "report", "report_pictures", "report_texts", "web_page"),
    *("adjacency", "averaging", "calibration", "clock", "config", "encoder", "ensemble", "errors", "evaluation"),
    *("features", "label_classifiers", "loss", "memory", "metrics", "model", "padding", "predictions", "predictor"),
    *(
        "saved_model",
        "sharing",
        "shortlist",
        "space",
        "sparse_products",
        "sparse_ranker",
        "starting_values",
        "table_optimizer",
    ),
    *("tokenizer", "workers"),
]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_requirement_is_pinned() -> None:
    lines = [line for line in REQUIREMENTS.splitlines() if line and not line.startswith("#")]
    assert len(lines) == len(PINS) > 100


def test_the_packages_of_the_default_dataset_are_pinned() -> None:
    pinned = {canonical(name) for name in PINS}
    assert len(PACKAGES) > 40
    assert [package for package in PACKAGES if canonical(package) not in pinned] == []


def test_promised_packages_are_pinned() -> None:
    promised = {"ray", "torch", "deepspeed", "transformers", "libpecos", "scikit-learn", "pyarrow", "numpy"}
    assert promised <= set(PINS)


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("name", CORE)
def test_core_imports_neither_ray_nor_deepspeed(name: str) -> None:
    assert imports_of(ROOT / f"elias_ray/{name}.py").isdisjoint({"ray", "deepspeed"})


def test_ci_runs_the_readmes_test_command_and_nothing_else() -> None:
    script = ROOT / ".ci/run"
    assert script.stat().st_mode & stat.S_IXUSR
    commands = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert commands == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "make test"]
    assert "make test" in README


def test_commands_of_the_readme_name_files_that_exist() -> None:
    files = set(re.findall(r"\b((?:jobs|tests|cluster|elias_ray)/[\w./-]+\.(?:py|yaml))\b", README))
    assert len(files) >= 4
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []


def test_targets_of_the_readme_exist() -> None:
    targets = set(re.findall(r"(?:^|`)make ([a-z]+)\b", README, re.MULTILINE))
    makefile = (ROOT / "Makefile").read_text()
    assert {"train", "test"} <= targets
    assert [target for target in sorted(targets) if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []


def test_top_level() -> None:
    shown = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    expected = {"elias_ray", "jobs", "cluster", "tests", "requirements.txt", "README.md"}
    expected |= {"pyproject.toml", "Makefile", "LICENSE"}
    assert shown - {"runs", "data", "elias_ray.egg-info"} == expected
