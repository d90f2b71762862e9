"""An object store on this machine: a server that speaks S3 over HTTP, and keeps what it is given in memory."""

import itertools
from typing import Any, Self

import pytest

BUCKET = "models"
_NUMBERS = itertools.count(1)
"""What one server was given, the next one of this process has, too."""


class S3Server:
    """Runs in threads of this process, whose environment leads S3 clients to it, those of its forks too."""

    def __init__(self) -> None:
        module = pytest.importorskip("moto.server")
        pytest.importorskip("s3fs")
        self._server: Any = module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        import botocore.session

        names = {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1", "MAX_ATTEMPTS": "1"}
        for name, value in names.items():
            self._patch.setenv(f"AWS_{name}", value)
        import s3fs

        self._patch.setattr(s3fs.S3FileSystem, "retries", 1)  # tests do not wait for a server that they stopped
        self.start()
        self.client = botocore.session.get_session().create_client("s3")
        self.client.create_bucket(Bucket=BUCKET)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._patch.undo()

    def start(self) -> None:
        """Answer; what was stored before is there."""
        self._server.start()
        host, port = self._server.get_host_and_port()
        self._server._port = port  # that of the next start
        self._patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")

    def stop(self) -> None:
        """Answer no more."""
        self._server.stop()

    def put(self, name: str, content: bytes) -> str:
        """Store an object; its ETag."""
        return str(self.client.put_object(Bucket=BUCKET, Key=name, Body=content)["ETag"])

    def new_url(self) -> str:
        """Of a place that is empty."""
        return f"s3://{BUCKET}/run-{next(_NUMBERS)}"
