"""Several hosts on one machine, to try what only happens on many: python cluster/several_hosts.py --hosts 2 -- COMMAND

Every host has an address of its own and a Ray of its own: the head, which computes nothing, and --hosts others. With
root and iproute2 each is a Linux network namespace, behind a bridge as behind a switch; else all are addresses of the
loopback. COMMAND runs on the head's host, with RAY_ADDRESS set; its exit code is the script's, and everything is taken
down after it.
"""

import argparse
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

RAY = str(Path(sys.executable).with_name("ray"))
PORT = 6379
STORE = 150_000_000  # bytes of each host's object store
START_TIMEOUT = 90.0


@dataclass
class Host:
    name: str
    address: str
    inside: list[str]  # how a command gets there
    environment: dict[str, str]
    scratch: str
    ray: "subprocess.Popen[bytes] | None" = None

    def start(self, *arguments: str) -> None:
        """Ray on this host."""
        command = [*self.inside, RAY, "start", "--block", f"--node-ip-address={self.address}"]
        command += [f"--temp-dir={self.scratch}", f"--object-store-memory={STORE}", "--disable-usage-stats", *arguments]
        log = open(Path(self.scratch, "start.log"), "wb")  # noqa: SIM115 -- for as long as the host is there
        self.ray = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """As if its plug were pulled: everything that runs there, at once."""
        while processes := self.processes():  # some may have been started meanwhile
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.05)
        if self.ray is not None:
            self.ray.wait()
            self.ray = None

    def processes(self) -> list[int]:
        """All in the session that Ray was started in, and so all that it has started."""
        found = []
        for process in psutil.process_iter(["status"]):
            with suppress(ProcessLookupError):  # ended meanwhile
                if self.ray is not None and os.getsid(process.pid) == self.ray.pid:
                    found += [process.pid] if process.info["status"] != psutil.STATUS_ZOMBIE else []
        return found


@dataclass
class Cluster:
    head: Host
    workers: list[Host]
    cpus: float
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{self.head.address}:{PORT}"

    def start_worker(self, host: Host) -> None:
        host.start(f"--address={self.address}", f"--num-cpus={self.cpus:g}")

    def run(self, command: Sequence[str], **options: object) -> "subprocess.Popen[str]":
        """On the head's host."""
        environment = {**self.head.environment, "RAY_ADDRESS": self.address}
        return subprocess.Popen([*self.head.inside, *command], env=environment, text=True, **options)  # type: ignore[call-overload]

    def wait_for_nodes(self, count: int) -> None:
        """Until so many hosts have joined, the head among them."""
        script = (
            "import ray, sys; ray.init(log_to_driver=False, logging_level='error'); "
            f"sys.exit(sum(n['Alive'] for n in ray.nodes()) < {count})"
        )
        deadline = time.monotonic() + START_TIMEOUT
        while self.run([sys.executable, "-c", script], stderr=subprocess.DEVNULL).wait() != 0:
            if time.monotonic() > deadline:
                logs = "\n".join(Path(h.scratch, "start.log").read_text()[-500:] for h in (self.head, *self.workers))
                raise TimeoutError(f"fewer than {count} hosts after {START_TIMEOUT:.0f} s:\n{logs}")
            time.sleep(1)


@contextmanager
def several_hosts(count: int, cpus: float = 1, namespaces: bool | None = None) -> Iterator[Cluster]:
    """`namespaces`: whether hosts are network namespaces; None: if this is allowed here."""
    if namespaces is None:
        namespaces = can_make_namespaces()
    folder = tempfile.mkdtemp(prefix="hosts")  # Ray's sockets lie there, and their paths must be short
    token = Path(folder, "token")
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    which = secrets.token_hex(2)  # names of links are short
    names, bridge = [f"elias{which}h{number}" for number in range(count + 1)], f"elias{which}b"
    hosts: list[Host] = []
    try:
        if namespaces:
            _ip("link", "add", bridge, "type", "bridge")
            _ip("link", "set", bridge, "up")
        for number, name in enumerate(names):
            scratch = Path(folder, str(number))
            scratch.mkdir()
            address = f"10.213.{os.getpid() % 250}.{number + 2}" if namespaces else f"127.0.0.{number + 2}"
            environment = {
                **os.environ,
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN_PATH": str(token),
                "GLOO_SOCKET_IFNAME": "eth0" if namespaces else "lo",
            }
            if namespaces:
                _make_namespace(name, bridge, address)
            inside = ["ip", "netns", "exec", name] if namespaces else []
            hosts.append(Host(name, address, inside, environment, str(scratch)))
        cluster = Cluster(hosts[0], hosts[1:], cpus)
        cluster.head.start("--head", f"--port={PORT}", "--num-cpus=0", f"--dashboard-host={hosts[0].address}")
        cluster.wait_for_nodes(1)
        for host in cluster.workers:
            cluster.start_worker(host)
        cluster.wait_for_nodes(count + 1)
        yield cluster
    finally:
        for host in reversed(hosts):
            host.kill()
        if namespaces:
            for name in names:
                _ip("link", "delete", f"{name}v", check=False)
                _ip("netns", "delete", name, check=False)
            _ip("link", "delete", bridge, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def can_make_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"elias{os.getpid() % 10000}try"
    made = _ip("netns", "add", name, check=False)
    if made:
        made = _ip("link", "add", name, "type", "bridge", check=False)
        _ip("link", "delete", name, check=False)
        _ip("netns", "delete", name, check=False)
    return made


def _make_namespace(name: str, bridge: str, address: str) -> None:
    """A host with one cable, to the bridge."""
    _ip("netns", "add", name)
    _ip("link", "add", f"{name}v", "type", "veth", "peer", "name", "eth0", "netns", name)
    _ip("link", "set", f"{name}v", "master", bridge, "up")
    _ip("-n", name, "link", "set", "lo", "up")
    _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
    _ip("-n", name, "link", "set", "eth0", "up")


def _ip(*arguments: str, check: bool = True) -> bool:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2, metavar="N", help="besides the head (default: %(default)s)")
    parser.add_argument("--cpus", type=float, default=1, metavar="N", help="of each of them (default: %(default)s)")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    arguments = parser.parse_args()
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        parser.error("what should run there? Give a command behind --")
    with several_hosts(arguments.hosts, arguments.cpus) as cluster:
        kind = "network namespaces" if cluster.head.inside else "addresses of the loopback"
        print(f"{arguments.hosts} hosts and a head, {kind}; the head is {cluster.address}", flush=True)
        code = cluster.run(command).wait()
    sys.exit(code)


if __name__ == "__main__":
    main()
