"""The table of a benchmark, and what brute force trains on."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from elias_ray.benchmark import COSTS, SHOWN, as_markdown, last_line, pass_on
from elias_ray.config import load_config
from elias_ray.peers.one_versus_all import starting_classifiers, step, steps


def row(title: str, p_at_1: float) -> dict[str, float | str]:
    return {
        "title": title,
        **dict.fromkeys(SHOWN, 1.0),
        "P@1": p_at_1,
        **dict.fromkeys(COSTS, 0.0),
        "training_seconds": 90.0,
        "remark": "",
    }


def test_the_best_is_bold_and_a_failure_has_its_reason() -> None:
    table = as_markdown(
        {"a": row("XR-Linear", 2.0), "b": row("ELIAS++", 3.0), "c": {"title": "Omikuji", "failed": "no | memory"}}
    )
    header, rule, first, second, third = table.splitlines()
    assert header.startswith("|  | P@1 | P@3 | P@5 | PSP@1 |")
    assert len({line.count("|") for line in (header, rule, first, second, third)}) == 1
    assert first.startswith("| XR-Linear | 2.00 | **1.00** |")
    assert second.startswith("| ELIAS++ | **3.00** | **1.00** |")
    assert "| 1.5 |" in first
    assert third.startswith("| Omikuji |  |")
    assert third.endswith("| failed: no / memory |")


def test_the_reason_is_the_last_line() -> None:
    assert last_line("Traceback\n  at a line\nerror: the disk is full\n\n") == "the disk is full"
    assert last_line("") == ""


def test_a_bar_that_is_drawn_in_place_does_not_fill_a_log(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    draws = """
import sys, time
for percent in range(101):
    print(f"\\r{percent:3} % of it", end="", file=sys.stderr, flush=True)
    time.sleep(0.005)
print("\\nerror: the disk is full", file=sys.stderr, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", draws], stderr=subprocess.PIPE) as process:
        said = pass_on(process)
    assert last_line(said) == "the disk is full"
    shown = capfdbinary.readouterr().err
    assert shown.startswith(b"\r  0 % of it")
    assert shown.endswith(b"error: the disk is full\n")
    assert shown.count(b"% of it") < 20


def test_brute_force_sees_every_point_in_every_epoch_and_its_rate_rises_and_falls() -> None:
    config = load_config("apidocs", ["training.batch_size=4", "training.warmup=0.25"])
    seen = list(steps(config, [[1] * length for length in range(1, 17)], 0, 2, ""))
    assert len(seen) == 8
    for epoch in (seen[:4], seen[4:]):
        assert sorted(np.concatenate([rows for rows, _ in epoch]).tolist()) == list(range(16))
    factors = [factor for _, factor in seen]
    assert factors == pytest.approx([1 / 3, 2 / 3, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


def test_brute_force_steps_down_the_loss_of_all_labels() -> None:
    """Against the gradient by hand: sigma(z) - y, over all labels, mean over the points."""
    config = load_config("apidocs", ["training.start=random"])
    labels = sp.csr_matrix(np.array([[1, 0, 0], [0, 1, 1]], np.float32))
    vectors = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    classifiers = starting_classifiers(config, 4, np.zeros((2, 0), np.float32), labels)
    before = classifiers.weight.detach().clone()
    expected = (classifiers(vectors).sigmoid() - torch.from_numpy(labels.toarray())).T @ vectors / 2
    optimizer = torch.optim.SGD([{"params": classifiers.parameters(), "peak_lr": 0.5}], lr=1.0)
    step(classifiers(vectors), labels, optimizer, factor=0.1)
    torch.testing.assert_close(classifiers.weight.detach(), before - 0.05 * expected.detach())
