"""A sink of somebody else: a folder with one file for each batch."""

from __future__ import annotations

import json
import os
from pathlib import Path

from outlast.components import Sink


class Pages(Sink):
    """A folder with one file for each batch. The offset is the number of pages that count."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.name = f"pages in {self.folder.absolute()}"
        self.pages = self.written = 0

    def open(self, offset, **_):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.pages = self.written = offset or 0
        for page in self.folder.glob("*.jsonl"):
            if int(page.stem) > self.pages:
                page.unlink()  # written, and never committed

    def encode(self, value):
        return json.dumps(value)

    def write(self, outputs, keys):
        self.written = self.pages + (1 if outputs else 0)
        if outputs:
            with (self.folder / f"{self.written:06}.jsonl").open("w") as file:
                file.writelines(f"{line}\n" for line in outputs)
                file.flush()
                os.fsync(file.fileno())
        return self.written

    def settle(self):
        self.pages = self.written
