"""A browser for tests of the report, and faults that it can see in a page."""

import contextlib
import shutil

import pytest
from processes import PATIENCE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no browser on this machine; as root: apt-get install -y chromium"
)

# Of every chart in view: plots without a drawing, labels that leave their drawing, labels that lie over one another
EMPTY = """[...document.querySelectorAll('.plot')].filter(plot => plot.offsetParent && !plot.querySelector('svg'))
  .map(plot => plot.dataset.title)"""
DRAWINGS = "[...document.querySelectorAll('svg')].filter(svg => svg.getBoundingClientRect().width)"
CUT = f"""{DRAWINGS}.flatMap(svg => {{
  const box = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter(text => {{
    const r = text.getBoundingClientRect();
    return r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1;
  }}).map(text => text.textContent);
}})"""
OVER = f"""{DRAWINGS}.flatMap(svg => {{
  const labels = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
  const meet = (r, q) => r.left < q.right - 1 && q.left < r.right - 1 && r.top < q.bottom - 2 && q.top < r.bottom - 2;
  return labels.flatMap(([a, r], i) =>
    labels.slice(i + 1).filter(([_, q]) => meet(r, q)).map(([b]) => a + ' over ' + b));
}})"""


@contextlib.contextmanager
def browsing():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright; pip install -e '.[test]'")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=1000 * PATIENCE)
        try:
            yield browser
        finally:
            browser.close()


def drawn(page, address: str):
    """The page at an address, when its charts are there. A busy machine may be slow."""
    page.set_default_timeout(0)
    page.goto(address)
    page.wait_for_selector("html[data-drawn]")
    return page
