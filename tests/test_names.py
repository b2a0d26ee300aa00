"""From a text to the thing it names."""

import json
import sys

import pytest

from outlast.settings.names import import_name, parted


def test_a_text_names_a_thing_in_a_module_or_a_file(tmp_path, monkeypatch):
    """A colon or the last dot separates the name; a file is loaded as if it were run, with its neighbours."""
    (tmp_path / "neighbour_of_a_test.py").write_text("class Outer:\n    label = 'found'\n")
    (tmp_path / "named_by_a_test.py").write_text("from neighbour_of_a_test import Outer\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    named = [
        "json:dumps",
        "json.dumps",
        "json.decoder:JSONDecoder.decode",
        f"{tmp_path}/named_by_a_test.py:Outer.label",
    ]
    assert [import_name(text) for text in named] == [json.dumps, json.dumps, json.JSONDecoder.decode, "found"]
    assert [parted(text) for text in ("app.py:a.b", "app.py", r"C:\app.py", r"C:\app.py:a")] == [
        ("app.py", "a.b"),
        ("app.py", ""),
        (r"C:\app.py", ""),
        (r"C:\app.py", "a"),
    ]


def test_a_name_that_is_wrong_raises_as_python_does(tmp_path, monkeypatch):
    """A file that fails while it is loaded leaves no half-made module behind."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "broken_by_a_test.py").write_text("1 / 0\n")
    wrong = {
        "": ValueError,
        "no.such:thing": ModuleNotFoundError,
        "json:no_such": AttributeError,
        f"{tmp_path}/broken_by_a_test.py:x": ZeroDivisionError,
        f"{tmp_path}/none.py:x": FileNotFoundError,
    }
    for text, kind in wrong.items():
        with pytest.raises(kind):
            import_name(text)
    assert "broken_by_a_test" not in sys.modules
