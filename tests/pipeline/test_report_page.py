"""The page of a report in a real browser: nothing is fetched, nothing runs, everything can be read, at any width, by day and by night."""

from __future__ import annotations

import shutil

import pytest

import outlast
from outlast import report
from reports import hostile, scripted

# One process starts the browser, which takes longer than these tests do.
pytestmark = pytest.mark.xdist_group("chromium")

# Contrast of every text with what is behind it, as WCAG computes it.
FAINT = """() => {
  const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
                         return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const parsed = (c) => c.match(/[\\d.]+/g).map(Number);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = parsed(getComputedStyle(e).backgroundColor);
                          if (c.length < 4 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
  const faint = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || e.closest('title, desc') || !e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    const ink = parsed(e instanceof SVGElement ? style.fill : style.color).slice(0, 3);
    const [a, b] = [light(ink), light(behind(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) faint.push([e.tagName, e.textContent.slice(0, 40), ((a + 0.05) / (b + 0.05)).toFixed(2)]);
  }
  return faint;
}"""


@pytest.fixture(scope="module")
def tab():
    """
    A tab of Chromium, without which nobody knows what the page looks like. No longer than here: it has an event loop running in this
    thread. It is one for all pages, each of which is loaded anew: another one is another process.
    """
    found = shutil.which("chromium")
    if found is None:
        pytest.fail("these tests need Chromium, and there is none on the PATH: make servers brings it.")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page()
        page.heard, page.asked = [], "about:blank"
        page.on("console", lambda message: page.heard.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: page.heard.append(f"error: {error}"))
        page.on("dialog", lambda dialog: page.heard.append("dialog"))
        page.on("request", lambda request: page.heard.append(request.url) if request.url != page.asked else None)
        yield page
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Reports of a run with failures, of a hostile one, and of one with nothing in it, as files."""
    folder = tmp_path_factory.mktemp("pages")
    app = outlast.App("pages", store=str(folder / "store.db"))
    scripted(app)
    report.read(app, "night").save(folder / "real.html")
    report.read(app, hostile(app.store).id).save(folder / "hostile.html")
    report.read(app, app.store.open_run("p", "empty", ()).id).save(folder / "empty.html")
    app.store.close()
    return folder


def opened(tab, path, *, width=1280, scheme="light"):
    """The page, and what it asked for and complained of."""
    tab.goto("about:blank")
    tab.heard, tab.asked = [], path.as_uri()
    tab.set_viewport_size({"width": width, "height": 900})
    tab.emulate_media(media="screen", color_scheme=scheme)
    tab.goto(tab.asked)
    return tab


@pytest.mark.parametrize("name", ["real", "hostile", "empty"])
@pytest.mark.parametrize("width", [400, 800, 1600])
def test_a_page_fits_and_asks_for_nothing(tab, pages, name, width):
    """No request, no message, no script, and nothing wider than the screen."""
    page = opened(tab, pages / f"{name}.html", width=width)
    assert page.heard == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.scripts.length") == 0
    assert (
        page.evaluate("document.querySelectorAll('img, link, iframe, object, [style], [onerror], [onclick]').length")
        == 0
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["real", "hostile"])
def test_every_text_stands_out_from_its_background(tab, pages, name, scheme):
    """4.5 to 1 or better, by day and by night; and the night really is dark."""
    page = opened(tab, pages / f"{name}.html", scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    assert page.evaluate(FAINT) == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in background[4:-1].split(",")) < 150) == (scheme == "dark")


def test_every_chart_has_a_text_for_those_who_cannot_see_it(tab, pages):
    """A title and a description, or it repeats the number beside it; and the numbers stand in tables with headings."""
    page = opened(tab, pages / "real.html")
    told = page.evaluate(
        """[...document.querySelectorAll('svg')].map((s) => s.getAttribute('aria-hidden') === 'true' || s.getAttribute('role') === 'img'
           && s.getAttribute('aria-labelledby').split(' ').every((id) => document.getElementById(id).textContent.trim().length > 5))"""
    )
    assert len(told) > 8
    assert all(told)
    headings = page.evaluate("[...document.querySelectorAll('h2')].map((h) => h.textContent)")
    assert headings == [
        "What went wrong",
        "Progress",
        "From stage to stage",
        "Retries needed",
        "Where the time went",
        "Time of an attempt",
        "Errors",
        "Cost",
        "Slowest items",
        "Warnings",
    ]
    assert page.evaluate(
        "[...document.querySelectorAll('table')].every((t) => t.querySelectorAll('th[scope=col]').length > 1)"
    )
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.evaluate("document.querySelectorAll('h1').length") == 1


def test_hostile_texts_are_shown_as_they_are(tab, pages):
    """Markup in names and messages is text; what turns the direction of reading is gone."""
    page = opened(tab, pages / "hostile.html")
    text = page.inner_text("body")
    assert "<script>alert(1)</script>" in text
    assert "hunter2" not in text
    assert "<b>stage</b>" in text
    assert not page.evaluate("[...document.querySelectorAll('bdi')].some((e) => e.textContent.includes('\\u202e'))")
    stray = page.evaluate(
        """[...document.querySelectorAll('body *')].filter((e) => [...e.childNodes].some((n) => n.nodeType === 3
           && n.textContent.includes('\\u202e')) && !e.closest('bdi, title, desc')).length"""
    )
    assert stray == 0


def test_the_page_prints_with_all_its_numbers(tab, pages):
    """On paper nothing can be opened: what is folded away on a screen is there."""
    page = opened(tab, pages / "real.html")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(
        "[...document.querySelectorAll('details table')].every((t) => t.checkVisibility({contentVisibilityAuto: true}))"
    )
    assert len(page.pdf()) > 10_000


def test_the_summary_for_a_notebook_is_short_and_safe(tab, pages, tmp_path):
    """A verdict, a bar and the largest problems; it stands in a page that is not ours."""
    app = outlast.App("n", store=str(tmp_path / "s.db"))
    summary = report.of(scripted(app))._repr_html_()
    evil = report.read(app, hostile(app.store).id)._repr_html_()
    app.store.close()
    file = tmp_path / "cell.html"
    file.write_text(f"<!doctype html><meta charset=utf-8><link rel=icon href=data:,>{summary}{evil}", encoding="utf-8")
    page = opened(tab, file, width=400)
    assert [heard for heard in page.heard if not heard.startswith("data:")] == []
    assert "1 \N{MULTIPLICATION SIGN} ConnectionResetError at label: reset by peer" in page.inner_text("body")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert len(summary) < 4000


def test_a_page_is_written_whole_or_not_at_all(pages, tmp_path, monkeypatch):
    """A full disk leaves the old page, and nothing beside it."""
    app = outlast.App("pages", store=str(pages / "store.db"))
    found = report.read(app, "night")
    target = tmp_path / "r.html"
    target.write_text("old")
    monkeypatch.setattr(type(found), "html", lambda self: "\ud800")  # cannot be encoded
    with pytest.raises(UnicodeEncodeError):
        found.save(target)
    app.store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
    assert target.read_text() == "old"


def test_a_page_goes_where_a_link_points_to(pages, tmp_path):
    """The link stays one."""
    app = outlast.App("pages", store=str(pages / "store.db"))
    link = tmp_path / "latest.html"
    link.symlink_to(tmp_path / "r.html")
    report.read(app, "night").save(link)
    app.store.close()
    assert (link.is_symlink(), (tmp_path / "r.html").read_text()[:9].lower()) == (True, "<!doctype")
