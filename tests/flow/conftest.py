"""What every test of flows gets: an app with a store of its own, on each of the two databases in turn, and a folder for its project."""

from __future__ import annotations

import sys
from uuid import uuid4

import pytest

import outlast
from stores import prepared


@pytest.fixture(scope="session")
def postgres(postgres_server):
    """A database for the tests that leave its server running."""
    return postgres_server.database("flows")


@pytest.fixture(params=["sqlite", "postgres"])
def app(request, tmp_path):
    """An app that sees nothing of another test's."""
    if request.param == "sqlite":
        address = prepared(tmp_path / "outlast.db")
    else:
        address = request.getfixturevalue("postgres").dsn
    made = outlast.App(f"tests-{uuid4().hex}", store=address)
    yield made
    made.store.close()


@pytest.fixture
def sqlite_app(tmp_path):
    """An app for what does not depend on the database."""
    made = outlast.App(f"tests-{uuid4().hex}", store=prepared(tmp_path / "outlast.db"))
    yield made
    made.store.close()


class Project:
    """A folder with a pipeline file and the functions that its steps call, in a module of a name of its own."""

    def __init__(self, root):
        self.root = root
        self.module = f"steps_{uuid4().hex}"

    def functions(self, text):
        """Write the module; in the text of a pipeline ``MODULE`` stands for its name."""
        (self.root / f"{self.module}.py").write_text(text)

    def load(self, text, **options):
        """Compile this pipeline."""
        path = self.root / "pipeline.yaml"
        path.write_text('oml_version: "0.1.0"\n' + text.replace("MODULE", self.module))
        return outlast.Flow.load(path, **options)

    def namespace(self):
        """The module, once it was imported."""
        return sys.modules[self.module]


@pytest.fixture
def project(tmp_path, monkeypatch):
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Project(root)
