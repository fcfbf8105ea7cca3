"""The report in a real browser: everything is drawn, has room, and answers to mouse and keys."""

import json

import pytest
from browsers import CUT, EMPTY, OVER, browsing, drawn, needs_browser
from made_runs import agree, settings, write_page, write_run
from watching import serving

from sphere.report.load import load
from sphere.report.page import render, write_report


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    write_report([write_page(tmp_path_factory.mktemp("runs"))], out, figures=False)
    return out


@pytest.fixture
def live(tmp_path):
    with serving(tmp_path, "127.0.0.1") as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    with browsing() as found:
        yield found


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
        contexts.append(context)
        page = context.new_page()
        address = url or (report / "index.html").as_uri()
        own = address.rsplit("/", 1)[0]
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith((own, "data:")) or complaints.append(asked.url))
        return drawn(page, address)

    yield at
    for context in contexts:
        context.close()
    assert not complaints


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
