"""That the counting of `make chaos-items` finds what is lost, doubled or wrong."""

from __future__ import annotations

import mended
import outlast


def test_what_is_lost_doubled_or_wrong_is_counted(tmp_path):
    """
    A row that is gone, one that is there twice, one with another text, a run that is not on record: each is found.
    """
    app, pattern = outlast.App(mended.APP, store=str(tmp_path / "s.db")), str(tmp_path / "out*.jsonl")
    told = []
    mended.act(told.append, str(tmp_path / "s.db"), pattern, 30, "fail")
    mended.pipeline(app, broken=False).reprocess()
    assert (told, mended.faults(app, pattern, 30)) == (["starting", "done"], mended.Found())
    file = tmp_path / "out1.jsonl"
    _, second, third, *rest = file.read_text().splitlines(keepends=True)
    file.write_text("".join([second, second, third.replace("ü", "u"), *rest]))
    found = mended.faults(app, pattern, 30)
    assert (found.lost, found.doubled, found.wrong) == (2, 1, 1)
    (tmp_path / "out2.jsonl").write_text("")
    assert mended.faults(app, pattern, 30).lost == 12
    app.store.close()
