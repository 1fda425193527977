"""What the clouds' metadata servers say before they take a machine away."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from cluster import spot_notice

ANSWERS: dict[str, str] = {}


class Metadata(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        allowed = self.headers.get("X-aws-ec2-metadata-token") == "token" or self.headers.get("Metadata-Flavor")
        answer = ANSWERS.get(self.path)
        self.send_response(401 if not allowed else 200 if answer is not None else 404)
        self.end_headers()
        self.wfile.write((answer or "").encode())

    def do_PUT(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"token")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    ANSWERS.clear()
    metadata = HTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=metadata.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{metadata.server_port}"
    metadata.shutdown()


def test_aws(server: str) -> None:
    assert not spot_notice.is_announced("aws", aws=server)
    ANSWERS["/meta-data/spot/instance-action"] = '{"action": "terminate", "time": "2026-01-01T00:00:00Z"}'
    assert spot_notice.is_announced("aws", aws=server)


def test_gcp(server: str) -> None:
    ANSWERS["/instance/preempted"] = "FALSE"
    assert not spot_notice.is_announced("gcp", gcp=server)
    ANSWERS["/instance/preempted"] = "TRUE"
    assert spot_notice.is_announced("gcp", gcp=server)
