"""Tell Ray that this node will be taken away, as soon as its cloud says so: python cluster/spot_notice.py aws|gcp &

Ray then places nothing here any more, and training writes a checkpoint while it can. Started on every spot node by
cluster/aws.yaml and cluster/gcp.yaml; on Kubernetes, which tells a pod itself, its preStop hook says `now`.
"""

import argparse
import subprocess
import time
import urllib.error
import urllib.request

import psutil
import ray

ASK_EVERY = 5.0
AWS = "http://169.254.169.254/latest"
GCP = "http://metadata.google.internal/computeMetadata/v1"
SECONDS_LEFT = {"aws": 120, "gcp": 30, "now": 115}  # between the notice and the end


def is_announced(cloud: str, aws: str = AWS, gcp: str = GCP) -> bool:
    """Whether the cloud's metadata server says that this machine will be taken away."""
    try:
        if cloud == "aws":
            token = _answer(f"{aws}/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
            return "action" in _answer(f"{aws}/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
        return _answer(f"{gcp}/instance/preempted", {"Metadata-Flavor": "Google"}).strip() == "TRUE"
    except urllib.error.HTTPError as error:
        if error.code == 404:  # nothing is announced
            return False
        raise


def drain(seconds_left: int, command: str = "ray") -> None:
    reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot notice"]
    node = ["--node-id", this_node(), "--deadline-remaining-seconds", str(seconds_left)]
    subprocess.run([command, "drain-node", *reason, *node], check=True)


def this_node() -> str:
    """The node that has an address of this machine. (Left to itself, `ray drain-node` may take the head for it.)"""
    mine = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    ray.init(address="auto", log_to_driver=False, logging_level="error")
    try:
        found = [node for node in ray.nodes() if node["Alive"] and node["NodeManagerAddress"] in mine]
    finally:
        ray.shutdown()
    if not found:
        raise RuntimeError("no node of the Ray cluster has an address of this machine")
    return str(found[0]["NodeID"])


def _answer(url: str, headers: dict[str, str], method: str = "GET") -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers, method=method), timeout=5) as answer:
        return str(answer.read().decode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cloud", choices=sorted(SECONDS_LEFT))
    cloud = parser.parse_args().cloud
    while cloud != "now":
        try:
            if is_announced(cloud):
                break
        except OSError as error:  # the metadata server is out of reach for a moment
            print(error, flush=True)
        time.sleep(ASK_EVERY)
    drain(SECONDS_LEFT[cloud] - 5)
    print("told Ray that this node will be taken away", flush=True)


if __name__ == "__main__":
    main()
