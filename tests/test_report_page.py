"""The report in a real browser, and what a name in a run directory cannot do to it."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from made_runs import TASKS, agree, settings, write_comparison, write_run
from processes import PATIENCE

from sphere.report.comparison import comparisons
from sphere.report.figures import curves, dominant_direction, save, tsne_panels, write_figures
from sphere.report.load import load
from sphere.report.page import render, write_report
from sphere.report.watch import Page, server, watch

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no browser on this machine; as root: apt-get install -y chromium"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two methods under both protocols, and a third that is still going."""
    root = write_comparison(tmp_path_factory.mktemp("runs"))
    dense = {"learner__actor": {"kind": "mlp"}, "says": {"label": "PPO", "actor": "mlp"}}
    write_run(root / "crl" / "dense", settings(protocol="crl", **dense), stop_at=4000)
    (root / "foreign").mkdir()
    (root / "foreign" / "config.json").write_text("{}")
    return root


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    write_report([runs], out, figures=False)
    return out


# Without a browser


class Parts(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def parse(text: str) -> list[tuple[str, dict]]:
    parts = Parts()
    parts.feed(text)
    return parts.tags


def test_the_page_needs_nothing_from_elsewhere(report):
    tags = parse((report / "index.html").read_text())
    for tag, attributes in tags:
        assert tag not in ("iframe", "object", "embed", "img", "form")
        assert "src" not in attributes
        assert not attributes.get("href", "").startswith(("http", "//"))
        assert not [name for name in attributes if name.startswith("on")]


def test_every_part_is_there(report):
    text = (report / "index.html").read_text()
    headings = [re.sub("<[^>]+>", "", found) for found in re.findall(r"<h[123]>(.*?)</h[123]>", text)]
    assert headings == [
        *("Plasticity report", "MetaWorld", "Average success", "Task by task", "Learning curves"),
        *("Spectral plasticity", "Router health", "Diagnostics", "Retention", "The final policy on all tasks"),
        *("Runs, settings, versions", "Left out", "How the numbers are made"),
    ]
    assert "learner.actor.experts" in text  # settings
    assert "874834bde0640a5e51cbf0530d345cfc16112c83" in text  # versions
    assert "0.98 ± 0.04" in re.sub("<[^>]+>", "", text)  # the paper's number for hammer
    assert "foreign was skipped" in text


def test_tables_lie_beside_the_page(report):
    for name in ("averages", "against", "continual", "crl-tasks", "rl-tasks", "crl-diagnostics"):
        for form in ("txt", "md", "tex", "csv"):
            assert (report / "tables" / f"metaworld-{name}.{form}").stat().st_size > 0


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def test_no_name_becomes_markup(tmp_path):
    """In tasks, settings, versions, metrics and directories alike."""
    tasks = [f"suite/{EVIL}", "suite/b"]
    config = settings(tasks=tasks, note=EVIL, **{EVIL: 1})
    path = write_run(tmp_path / "<b>bold<b> & 'quoted'", config)
    (path / "environment.json").write_text(json.dumps({EVIL: EVIL}))
    text = (path / "metrics.jsonl").read_text()
    (path / "metrics.jsonl").write_text(text.replace("heldout/dormant_ratio", "heldout/<script>alert(3)</script>"))
    tags = parse(render(load([tmp_path])))
    assert sum(tag == "script" for tag, _ in tags) == 2
    assert not [tag for tag, _ in tags if tag == "img"]
    assert not [attributes for _, attributes in tags if "onerror" in attributes]


def test_a_directory_whose_name_is_no_text(tmp_path):
    path = write_run(tmp_path / "x", settings())
    os.rename(path, os.fsencode(tmp_path) + b"/\xff\xfe")
    write_report([tmp_path], tmp_path / "report", figures=False)
    assert "\\udcff" in (tmp_path / "report" / "index.html").read_text()


def test_a_report_cannot_replace_a_file(tmp_path, runs):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is a file"):
        write_report([runs], tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_second_report_leaves_nothing_of_the_first_but_other_peoples_files(tmp_path):
    write_run(tmp_path / "crl" / "a", settings(protocol="crl"))
    write_run(tmp_path / "rl" / "a", settings(protocol="rl"))
    out = tmp_path / "report"
    write_report([tmp_path / "crl"], out, figures=False)
    (out / "tables" / "mine.ods").touch()
    write_report([tmp_path / "rl"], out, figures=False)
    names = {path.name for path in (out / "tables").iterdir()}
    assert "mine.ods" in names
    assert any("-rl-" in name for name in names)
    assert not any("-crl-" in name for name in names)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("precious")
    with pytest.raises(ValueError, match="not made by sphere report"):
        write_report([tmp_path / "rl"], tmp_path / "site", figures=False)
    assert (tmp_path / "site" / "index.html").read_text() == "precious"


def test_folders_of_comparisons_that_are_one_by_now_go_too(tmp_path):
    for task in TASKS:
        write_run(tmp_path / "runs" / task, settings(0, protocol="rl", tasks=[task], steps_per_task=len(task) * 1000))
    out = tmp_path / "report"
    write_report([tmp_path / "runs"], out, figures=False)
    assert len(list((out / "tables").iterdir())) == len(TASKS)
    (out / "tables" / "my-notes").mkdir()
    (out / "tables" / "my-notes" / "note").touch()
    write_report([tmp_path / "runs" / TASKS[0]], out, figures=False)
    assert [path.name for path in (out / "tables").iterdir() if path.is_dir()] == ["my-notes"]


def test_one_run_has_no_deviation(tmp_path):
    for rho in (0.0, 0.1):
        write_run(tmp_path / f"{rho}", settings(rho=rho))
    write_report([tmp_path], tmp_path / "report", figures=False)
    page = (tmp_path / "report" / "index.html").read_text()
    (average,) = (tmp_path / "report" / "tables").glob("*-averages.txt")
    assert "SPHERE" in average.read_text()
    assert "±" not in average.read_text().split("Over runs")[0]
    assert "<small>±" not in page
    assert "better one with probability" not in page
    assert "One run of a method says nothing about the next one" in page


def test_runs_without_any_evaluation_make_a_page_too(tmp_path):
    write_run(tmp_path / "x", settings(), stop_at=0)
    text = render(load([tmp_path]))
    assert "No run has finished" in text
    assert "Average success" not in text  # of which there would be an empty chart


@pytest.mark.parametrize("file", ["fleet.json", "config.json", "metrics.jsonl"])
def test_a_report_is_not_written_among_records(file, tmp_path):
    write_run(tmp_path / "fleet" / "a", settings())
    out = tmp_path / "fleet" / "a" if file != "fleet.json" else tmp_path / "fleet"
    (out / file).touch()
    before = {path: path.read_bytes() for path in (tmp_path / "fleet").rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"holds records of training .* name another directory"):
        write_report([tmp_path / "fleet"], out, figures=False)
    assert {path: path.read_bytes() for path in (tmp_path / "fleet").rglob("*") if path.is_file()} == before


def test_the_command_line(runs, tmp_path):
    command = [sys.executable, "-m", "sphere", "report", str(runs), "-o", str(tmp_path / "out"), "--no-figures"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "13 runs" in done.stdout
    assert "foreign was skipped" in done.stderr
    assert (tmp_path / "out" / "index.html").exists()
    wrong = subprocess.run([*command[:4], str(tmp_path / "no")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    assert "does not exist" in wrong.stderr
    assert "Traceback" not in wrong.stderr


# Figures


def test_figures_come_in_three_forms_and_do_not_depend_on_the_clock(tmp_path):
    write_run(tmp_path / "runs" / "a", settings(tasks=list(TASKS[:2])))
    (comparison,) = comparisons(load([tmp_path / "runs"]))
    first = write_figures(comparison, tmp_path / "one")
    names = {path.stem for path in first}
    assert names == {
        "success-bars",
        "learning-curves-crl",
        "ntk-rank-crl",
        "router-crl",
        "diagnostics-crl",
        "retention",
    }
    assert {path.suffix for path in first} == {".svg", ".pdf", ".png"}
    assert all(path.stat().st_size > 1000 for path in first)
    again = {path.name: path for path in write_figures(comparison, tmp_path / "two")}
    for path in first:
        assert path.read_bytes() == again[path.name].read_bytes(), path.name


def test_panels_of_one_figure_are_told_apart(tmp_path):
    write_run(tmp_path / "runs" / "a", settings(tasks=list(TASKS[:2])))
    (comparison,) = comparisons(load([tmp_path / "runs"]))
    figure = curves(comparison, "crl", [f"{place}/ntk_rank" for place in ("heldout", "online", "standardised")])
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert len(set(titles)) == 3
    assert titles[2] == "r_e(K), held-out states, standardised ↑ more is better"
    assert {axis.get_ylabel() for axis in figure.axes} == {"directions"}
    assert figure.axes[-1].get_xlabel() == "environment steps of a run"


def test_tsne_panels_from_features(tmp_path):
    rng = np.random.default_rng(0)
    phi = np.concatenate([rng.normal(size=(20, 1)) * np.eye(6)[axis] * (3 - axis) for axis in range(3)])
    direction = dominant_direction(phi)
    assert [len(set(direction[20 * k : 20 * k + 20])) for k in range(3)] == [1, 1, 1]
    assert len(set(direction)) == 3
    panels = {"Top-K MoE": {"start": phi[::2]}, "SPHERE": {"start": phi[::2]}}
    files = save(tsne_panels(panels), tmp_path / "tsne")
    assert [file.exists() for file in files] == [True] * 3


# Live


@contextlib.contextmanager
def serving(folder, host):
    """A server on a free port over a directory with one run."""
    write_run(folder / "runs" / "a", settings(), stop_at=2000)
    (folder / "secret").write_text("not served")
    started = server(Page([folder / "runs"]), host, 0)
    thread = threading.Thread(target=started.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield folder / "runs", f"http://{f'[{host}]' if ':' in host else host}:{started.server_address[1]}"
    finally:
        started.shutdown()
        thread.join()
        started.server_close()


@pytest.fixture
def live(tmp_path):
    with serving(tmp_path, "127.0.0.1") as found:
        yield found


def has_ipv6():
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as tried:
        tried.bind(("::1", 0))
        return True
    return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_the_other_loopback_serves_too(tmp_path):
    with serving(tmp_path, "::1") as (_, url):
        assert get(url + "/version")[0] == 200
        assert get(url + "/version", Host="evil.example")[0] == 403


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_page_is_served_and_its_version_follows_the_records(live):
    path, url = live
    status, text = get(url + "/")
    assert status == 200
    shown = re.search(r'data-version="(\w+)"', text)
    assert shown is not None
    assert get(url + "/version") == (200, shown[1])
    with (path / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3000, "task": "metaworld/hammer", "task_index": 0, "wall": 1.0}\n')
    assert get(url + "/version")[1] != shown[1]
    assert "3,000" in get(url + "/")[1]


@pytest.mark.parametrize(
    "path", ["/../secret", "/secret", "/a/config.json", "//etc/passwd", "/%2e%2e/secret", "/index.html/.."]
)
def test_nothing_but_the_page_is_served(live, path):
    status, text = get(live[1] + path)
    assert status == 404
    assert "not served" not in text


def test_another_name_for_this_machine_is_refused(live):
    assert get(live[1] + "/", Host="evil.example:80")[0] == 403
    assert get(live[1] + "/", Host="localhost:80")[0] == 200


def test_it_listens_on_this_machine_only(live):
    port = int(live[1].rsplit(":", 1)[1])
    with socket.socket() as probe:
        # 127.0.0.2 is this machine too, but not the address that was asked for
        assert probe.connect_ex(("127.0.0.2", port)) != 0


def test_what_cannot_be_watched_is_said(tmp_path, live):
    with pytest.raises(ValueError, match="no directory"):
        watch([tmp_path / "nowhere"])
    port = int(live[1].rsplit(":", 1)[1])
    for taken in (port, 99999):
        with pytest.raises(OSError, match="choose another --port"):
            watch([tmp_path], port=taken)


def test_a_directory_without_runs_yet_can_be_watched(tmp_path):
    page = Page([tmp_path])
    assert b"Nothing to show yet" in page.html()
    write_run(tmp_path / "a", settings())
    assert b"Plasticity report" in page.html()


# In a browser


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright; pip install -e '.[test]'")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=1000 * PATIENCE)
        yield found
        found.close()


@pytest.fixture
def browser_page(opened, tmp_path):
    """Text as a page."""

    def at(width: int, text: str):
        (tmp_path / "page.html").write_text(text)
        return opened(width, url=(tmp_path / "page.html").as_uri())

    return at


@pytest.fixture
def opened(browser, report):
    """Open the page at a width; what it complains about is collected and must be nothing."""
    contexts, complaints = [], []

    def at(width: int, scheme: str = "light", url: str = ""):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(1000 * PATIENCE)
        contexts.append(context)
        context.set_default_timeout(0)  # a busy machine may be slow
        page = context.new_page()
        address = url or (report / "index.html").as_uri()
        own = address.rsplit("/", 1)[0]
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith((own, "data:")) or complaints.append(asked.url))
        page.goto(address)
        page.wait_for_selector("html[data-drawn]")
        return page

    yield at
    for context in contexts:
        context.close()
    assert not complaints


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


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_is_drawn_and_nothing_is_wider_than_the_page(opened, width, scheme):
    page = opened(width, scheme)
    for protocol in ("CRL", "RL"):
        page.get_by_role("button", name=protocol, exact=True).click()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.locator(".plot svg").count() >= 10
        for fault in (EMPTY, CUT, OVER):
            assert page.evaluate(fault) == []


@needs_browser
def test_a_task_with_one_evaluation_has_its_point(browser_page, tmp_path):
    write_run(tmp_path / "run", settings(), stop_at=1000)
    page = browser_page(1280, render(load([tmp_path])))
    visible = page.evaluate("""[...document.querySelectorAll('path.mean')].map(path => {
      const [x, y] = path.getAttribute('d').slice(1).split(/[ h]/).map(Number);
      return path.isPointInStroke(new DOMPoint(x, y));
    })""")
    assert len(visible) >= 4
    assert all(visible)


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_many_methods_and_tasks_have_room(browser_page, tmp_path, width):
    """Ten tasks, eight methods with long names, forty experts."""
    tasks = [f"metaworld/a-rather-long-task-name-{index}" for index in range(10)]
    for index in range(8):
        changes = {"learner__learning_rate": 10.0**-index, "learner__actor__experts": 40}
        write_run(tmp_path / f"run-{index}", settings(rho=0.1, tasks=tasks, **changes))
    page = browser_page(width, render(load([tmp_path])))
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for fault in (EMPTY, CUT, OVER):
        assert page.evaluate(fault) == []


@needs_browser
def test_a_long_training_with_many_experts_is_drawn(browser_page, tmp_path):
    """2 methods x 3 views x 64 experts x 400 evaluations: more shares than a call in a browser takes arguments."""
    changes = {"tasks": ["metaworld/hammer"], "steps_per_task": 400_000, "learner__actor__experts": 64}
    for seed in (0, 1):
        for rho in (0.0, 0.1):
            path = tmp_path / f"rho{rho:g}-{seed}"
            write_run(path, settings(seed, rho, **changes))
            for name in ("metrics.jsonl", "episodes.jsonl"):
                lines = [json.loads(line) for line in (path / name).read_text().splitlines()]
                last = next(line for line in lines if "heldout/ntk_rank" in line or "episode" in line)
                more = [last | {"step": 1000 * number, "wall": float(number)} for number in range(1, 401)]
                (path / name).write_text("".join(json.dumps(line) + "\n" for line in more))
            agree(path)
    page = browser_page(1280, render(load([tmp_path])))
    assert page.evaluate(EMPTY) == []
    assert page.locator(".load-plot svg").count() == 2


@needs_browser
def test_hovering_and_keys_read_values_and_zoom(opened):
    page = opened(1280)
    plot = page.locator(".plot[data-metric='evaluation/success_at_end']")
    plot.scroll_into_view_if_needed()
    plot.locator("svg").hover(position={"x": 300, "y": 100})
    assert "Top-K MoE" in plot.locator(".tip").inner_text()
    plot.locator("svg").focus()
    page.keyboard.press("Home")
    assert "1,000 steps" in plot.locator(".tip").inner_text()
    page.keyboard.press("ArrowRight")
    assert "2,000 steps" in plot.locator(".tip").inner_text()
    assert "0.50" in plot.locator(".tip").inner_text()
    page.keyboard.press("+")
    assert plot.locator(".reset").count() == 1
    page.keyboard.press("Escape")
    assert plot.locator(".reset").count() == 0
    box = plot.locator("svg").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 100, steps=5)
    page.mouse.up()
    plot.locator(".reset").click()
    assert plot.locator(".reset").count() == 0


@needs_browser
def test_methods_can_be_hidden_and_the_choice_stays(opened):
    page = opened(1280)
    lines = page.locator(".plot[data-metric='heldout/ntk_rank'] path.mean")
    assert lines.count() == 3
    page.get_by_role("button", name="SPHERE").click()
    assert lines.count() == 2
    page.reload()
    page.wait_for_selector("html[data-drawn]")
    assert lines.count() == 2
    page.get_by_label("single runs").check()
    assert page.locator(".plot[data-metric='heldout/ntk_rank'] path.run").count() == 4


@needs_browser
def test_a_change_of_records_shows_on_the_live_page(live, opened):
    path, url = live
    page = opened(1280, url=url + "/")
    assert "2,000" in page.locator("#runs").inner_text()
    write_run(path / "b", settings(seed=1))
    page.locator("#runs").get_by_text("9,000").wait_for()
