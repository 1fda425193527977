"""The files under cluster/: what Ray and KubeRay accept, and one version and one set of names in all of them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).parents[2]
PINNED = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "requirements.txt").read_text(), re.M))
GROUPS = {"gpu-workers", "cpu-workers"}

# Of the CRDs ray.io/v1 of KubeRay 1.5, the fields that we use: type, or fields within.
CONTAINER = {
    **{"name": str, "image": str, "resources": {"requests": dict, "limits": dict}},
    "lifecycle": {"preStop": {"exec": {"command": list}}},
}
POD = {"spec": {"restartPolicy": str, "terminationGracePeriodSeconds": int, "containers": [CONTAINER]}}
CLUSTER = {
    "rayVersion": str,
    "enableInTreeAutoscaling": bool,
    "authOptions": {"mode": str},
    "autoscalerOptions": {"version": str, "idleTimeoutSeconds": int},
    "headGroupSpec": {"rayStartParams": dict, "template": POD},
    "workerGroupSpecs": [
        {"groupName": str, "minReplicas": int, "maxReplicas": int, "rayStartParams": dict, "template": POD}
    ],
}
JOB = {
    "entrypoint": str,
    "submissionMode": str,
    "backoffLimit": int,
    "shutdownAfterJobFinishes": bool,
    "rayClusterSpec": CLUSTER,
}


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / "cluster" / name).read_text())


def check(found: Any, schema: Any, place: str) -> None:
    if isinstance(schema, dict):
        assert isinstance(found, dict), place
        for key, value in found.items():
            assert key in schema, f"{place}.{key} is no field that we know of"
            check(value, schema[key], f"{place}.{key}")
    elif isinstance(schema, list):
        assert isinstance(found, list), place
        for number, value in enumerate(found):
            check(value, schema[0], f"{place}[{number}]")
    else:
        assert isinstance(found, schema), f"{place} is {found!r}"


@pytest.mark.parametrize("name", ["aws.yaml", "gcp.yaml"])
def test_ray_accepts_the_autoscaler_files(name: str) -> None:
    config = prepare_config(read(name))
    validate_config(config)
    types = config["available_node_types"]
    assert set(types) == GROUPS | {config["head_node_type"]}
    assert types[config["head_node_type"]]["resources"] == {"CPU": 0}
    assert types["gpu-workers"]["resources"]["GPU"] > 0
    assert "GPU" not in types["cpu-workers"]["resources"]
    for group in GROUPS:
        assert types[group]["min_workers"] == 0
        assert re.search("spot", str(types[group]["node_config"]), re.I)
    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert config[commands][1].startswith("RAY_AUTH_MODE=token ray start ")
    assert "--dashboard-host=127.0.0.1" in config["head_start_ray_commands"][1]
    assert f"spot_notice.py {name.removesuffix('.yaml')} " in config["worker_start_ray_commands"][-1]


def test_a_wrong_autoscaler_file_would_be_refused() -> None:
    config = prepare_config(read("aws.yaml"))
    config["available_node_types"]["gpu-workers"]["resources"] = {"GPU": "one"}
    with pytest.raises(Exception, match="one"):
        validate_config(config)


@pytest.mark.parametrize(
    ("name", "kind", "schema"),
    [("kuberay-cluster.yaml", "RayCluster", CLUSTER), ("kuberay-job.yaml", "RayJob", JOB)],
)
def test_kuberay_files_have_the_fields_of_the_crd(name: str, kind: str, schema: dict[str, Any]) -> None:
    document = read(name)
    assert (document["apiVersion"], document["kind"]) == ("ray.io/v1", kind)
    check(document["spec"], schema, "spec")
    cluster = document["spec"].get("rayClusterSpec", document["spec"])
    assert cluster["rayVersion"] == PINNED["ray"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert {group["groupName"] for group in cluster["workerGroupSpecs"]} == GROUPS
    assert cluster == read("kuberay-cluster.yaml")["spec"]


def test_one_image_for_all() -> None:
    images = {read(name)["docker"]["image"] for name in ("aws.yaml", "gcp.yaml")}
    images |= set(re.findall(r"image: (\S+)", (ROOT / "cluster/kuberay-cluster.yaml").read_text()))
    assert len(images) == 1
    dockerfile = (ROOT / "cluster/Dockerfile").read_text()
    assert "FROM python:3.11-slim" in dockerfile
    assert not re.search(r"==\d", dockerfile), "versions come from requirements.txt alone"
    for copied in re.findall(r"^COPY (.+) \S+$", dockerfile, re.M):
        for name in copied.split():
            assert (ROOT / name).exists(), name


@pytest.mark.parametrize("name", ["aws.yaml", "gcp.yaml", "kuberay-cluster.yaml", "kuberay-job.yaml"])
def test_what_the_files_tell_to_run_exists(name: str) -> None:
    text = (ROOT / "cluster" / name).read_text()
    for script in re.findall(r"jobs/\w+\.py", text):
        assert (ROOT / script).exists()
    from elias_ray.config import load_config

    overrides = re.findall(r"\b(?:resources)\.\w+=\w+", text)
    assert load_config("amazon-3m", overrides).resources.use_gpu is True
