"""A sink of somebody else: a folder with one file for each batch."""

from __future__ import annotations

import json
import os
from pathlib import Path

from outlast import ConfigurationError
from outlast.components import Sink


class Pages(Sink):
    """A folder with one file for each batch. The offset is the number of pages that count."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.name = f"pages in {self.folder.absolute()}"
        self.pages = self.written = 0

    def page(self, number):
        return self.folder / f"{number:06}.jsonl"

    def look_for(self, offset):
        lost = [number for number in range(1, (offset or 0) + 1) if not self.page(number).exists()]
        if lost:
            raise ConfigurationError(f"expected {self.name} to hold {offset} committed pages, got: {len(lost)} less.")

    def open(self, offset, *, run, **_):
        self.folder.mkdir(parents=True, exist_ok=True)
        pages, owner = [*self.folder.glob("*.jsonl")], self.folder / "run"
        if pages and not (owner.exists() and owner.read_text() == run):
            raise ConfigurationError(f"expected {self.name} to be new or empty, got: pages of something else.")
        owner.write_text(run)
        self.pages = self.written = offset or 0
        for page in pages:
            if int(page.stem) > self.pages:
                page.unlink()  # written, and never committed

    def encode(self, value):
        return json.dumps(value)

    def write(self, outputs, keys):
        self.written = self.pages + (1 if outputs else 0)
        if outputs:
            with self.page(self.written).open("w") as file:
                file.writelines(f"{line}\n" for line in outputs)
                file.flush()
                os.fsync(file.fileno())
        return self.written

    def settle(self):
        self.pages = self.written
