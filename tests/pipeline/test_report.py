"""The report of a trained run: its numbers against the run's own, and its page in a browser."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from matplotlib import image

from elias_ray import saved_model
from elias_ray.analysis import analyze, open_trained
from elias_ray.artifacts import CONFIG, Folder, committed, write_manifest
from elias_ray.errors import UserError
from elias_ray.evaluation import evaluate_run
from elias_ray.final_scores import unite
from elias_ray.report import write_report
from tests.examples import LABELS, job

PICTURES = 18
BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
# What the browser makes of every picture: its width, and how many of some of its pixels differ from the first.
SCRIPT = """
<script>
window.onload = () => {
  const found = [...document.images].map(image => {
    const canvas = document.createElement("canvas");
    canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const pixels = new Uint32Array(context.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    return {file: image.dataset.file, alt: image.alt, width: image.naturalWidth, shown: image.clientWidth,
      colours: pixels.filter(pixel => pixel != pixels[0]).length};
  });
  const page = {inner: window.innerWidth, wide: document.documentElement.scrollWidth, pictures: found};
  document.body.innerHTML = "<pre id=found></pre>";
  document.getElementById("found").textContent = JSON.stringify(page);
};
</script>
"""


@pytest.fixture(scope="module")
def report(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By the job, of a copy of the run that other systems were measured on, with a label that means harm."""
    run = tmp_path_factory.mktemp("report") / "run"
    shutil.copytree(trained, run)
    metrics = json.loads((run / "metrics.json").read_text())["stage1"]
    systems = {
        "xr-linear": {"title": "XR-Linear", **metrics},
        "ova": {"title": "one-versus-all", "failed": "no memory"},
        "elias": {"title": "ELIAS", **metrics},
    }
    (run / "benchmark.json").write_text(json.dumps(systems))
    shutil.copytree(run / "member1/stage1/predictions/test", run / "benchmark/xr-linear")
    table = pq.read_table(run / "prepare/labels.parquet")
    names = ["<b>$apple$</b>" if name == "apple" else name for name in table["name"].to_pylist()]
    pq.write_table(table.set_column(table.column_names.index("name"), "name", [names]), run / "prepare/labels.parquet")
    manifest = json.loads((run / "prepare/manifest.json").read_text())
    manifest["files"]["labels.parquet"]["size"] = (run / "prepare/labels.parquet").stat().st_size
    (run / "prepare/manifest.json").write_text(json.dumps(manifest))
    done = job("report.py", "--run", str(run))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"report: {run}/report/index.html\n"
    return run / "report"


def numbers(report: Path) -> dict[str, Any]:
    return dict(json.loads((report / "analysis.json").read_text()))


@pytest.mark.timeout(400)
def test_numbers_are_the_runs_own(report: Path) -> None:
    found, run = numbers(report), report.parent
    metrics = json.loads((run / "metrics.json").read_text())
    assert {row["row"]: row["metrics"] for row in found["build_up"]["rows"]} == metrics
    curves = found["recall"]["rows"]
    assert [curve["at"][99] for curve in curves.values()] == pytest.approx([row["R@100"] for row in metrics.values()])
    deciles = json.loads((run / "metrics_by_decile.json").read_text())
    assert curves["+ stage 2"]["by_decile"] == pytest.approx(deciles["stage2"]["R@100"])
    assert found["recall"]["peers"] == {"XR-Linear": curves["stage 1"]}
    assert found["build_up"]["peers"] == {"XR-Linear": metrics["stage1"]}
    history = json.loads((run / "member1/stage2/model/history.json").read_text())
    whole = found["index"]["pruning"]["rows"][0]
    for name in ("P@1", "P@5", "R@10", "R@100"):
        assert whole[name] == pytest.approx(history[-1][name])
    assert found["index"]["cluster_sizes"]["unreachable_labels"] == 0
    assert found["index"]["cluster_sizes"]["first"] == {"least": 2, "median": 2, "most": 2}
    assert [stage["stage"] for stage in found["training"]] == ["stage1", "stage2"]
    assert [len(stage["losses"]) for stage in found["training"]] == [6, 6]
    assert {step["step"] for step in found["steps"]} >= {"prepare", "stage 1", "stage 2", "ranker", "metrics"}
    assert found["hardware"]["nodes"] == 1
    assert all(error["predicted"][0]["label"] not in error["true"] for error in found["errors"])


@pytest.mark.timeout(400)
def test_pictures_are_of_something(report: Path) -> None:
    files = sorted(report.glob("*.png"))
    assert len(files) == PICTURES
    for file in files:
        pixels = image.imread(file)
        assert (pixels != pixels[0, 0]).any(axis=2).mean() > 0.005, file.name


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium on the PATH: apt-get install chromium")
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.timeout(400)
def test_in_a_browser(report: Path, width: int, tmp_path: Path) -> None:
    assert BROWSER is not None
    page = (report / "index.html").read_text()
    assert "<b>$apple$" not in page
    assert "&lt;b&gt;$apple$&lt;/b&gt;" in page
    (tmp_path / "page.html").write_text(page.replace("</body>", SCRIPT + "</body>"))
    options = (
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
        *("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=10000"),
        *(f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2000", "--dump-dom"),
    )
    command = [BROWSER, *options, (tmp_path / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match is not None, done.stdout[-2000:]
    found = json.loads(html.unescape(match[1]))
    assert found["wide"] <= found["inner"]  # nothing but tables scrolls to the side
    assert len(found["pictures"]) == PICTURES
    for picture in found["pictures"]:
        assert picture["width"] > 500, picture
        assert 250 < picture["shown"] <= found["inner"], picture
        assert picture["colours"] > 1000, picture
        assert picture["alt"]


def test_without_ranker_and_benchmark(trained: Path, tmp_path: Path) -> None:
    """As a trial of a search is."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    for name in ("ranker", "calibration", "stage1/predictions", "stage2/predictions"):
        shutil.rmtree(run / "member1" / name)
    for name in ("metrics.json", "times.json", "member1/times.json"):
        (run / name).unlink()
    place = write_report(open_trained(run), Folder.at(tmp_path / "report"))
    found = numbers(tmp_path / "report")
    assert found["build_up"] is found["recall"] is found["errors"] is None
    assert [(step["step"], step["part"]) for step in found["steps"]] == [("stage 1", True), ("stage 2", True)]
    assert "This run has no table of test figures" in Path(place).read_text()


def test_an_ensemble_of_models_in_parts(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_model, "ROWS_PER_FILE", 3)
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    model = Folder.at(run / "member1/stage2/model")
    manifest = committed(model)
    assert manifest is not None
    for name, rows in (("A", range(4)), ("W_L", range(8))):
        tensors = saved_model.read_rows(model, manifest, name, rows)
        for file in [file for file in manifest.files if file.startswith(f"{name}-")]:
            model.remove(file)
            del manifest.files[file]
        manifest.files.update({entry.name: entry for entry in saved_model.write_rows(model, name, rows, tensors)})
    write_manifest(model, manifest)
    assert len(list((run / "member1/stage2/model").glob("W_L-*"))) == 3
    shutil.copytree(run / "member1", run / "member2")
    config = (run / CONFIG).read_text()
    (run / CONFIG).write_text(config.replace("members: 1", "members: 2"))
    members = open_trained(run)
    unite(members[0].run / "ensemble", members)
    evaluate_run(members[0].run, members)
    place = write_report(members, Folder.at(tmp_path / "report"))
    found = numbers(tmp_path / "report")
    assert "an ensemble of 2; index, training and times are those of its first member" in Path(place).read_text()
    assert [row["row"] for row in found["build_up"]["rows"]][-1] == "ensemble"
    assert list(found["recall"]["rows"]) == ["stage 1", "+ stage 2", "+ ranker", "+ calibration", "+ ensemble"]
    of_the_whole = analyze(open_trained(trained))["index"]
    for part in ("edge_scores", "surviving_edges", "clusters_per_label", "cluster_sizes"):
        assert found["index"][part] == of_the_whole[part]
    for row, other in zip(found["index"]["pruning"]["rows"], of_the_whole["pruning"]["rows"], strict=True):
        assert row["R@100"] == pytest.approx(other["R@100"])


def test_only_a_report_is_replaced(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="not of a report"):
        write_report(open_trained(trained), Folder.at(tmp_path))
    assert (tmp_path / "mine.txt").read_text() == "mine"
    shutil.copytree(trained / "report", tmp_path / "report")
    page = (tmp_path / "report/index.html").read_text()
    (tmp_path / "report/index.html").write_text("scribbled on")
    write_report(open_trained(trained), Folder.at(tmp_path / "report"))
    assert len((tmp_path / "report/index.html").read_text()) > len(page) / 2


@pytest.mark.timeout(60)
def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    done = job("report.py", "--run", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == f"error: {tmp_path} is not a run: it has no config.yaml\n"


@pytest.mark.timeout(100)
def test_analyze(trained: Path) -> None:
    done = job("analyze.py", "--run", str(trained))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["dataset"]["labels"] == len(LABELS)
    assert found["index"]["edge_scores"]["edges"] > 0
