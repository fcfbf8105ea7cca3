"""`sphere watch`: the page follows the records, and nothing else is served."""

import contextlib
import re
import socket

import pytest
from made_runs import settings, write_run
from watching import get, serving

from sphere.report.watch import Page, watch


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
