"""The server of `sphere watch` towards strangers: names, addresses, slow and many clients."""

import contextlib
import http.client
import socket
import struct
import threading

import processes
import pytest
from made_runs import settings, write_run

from sphere.report import watch as watch_module
from sphere.report.watch import CLIENTS, Page, server, watch


@pytest.fixture
def serving(tmp_path, monkeypatch):
    monkeypatch.setattr(watch_module, "TIMEOUT", processes.PATIENCE)
    write_run(tmp_path / "run", settings())
    opened = []

    def start(host="127.0.0.1", public=False):
        one = server(Page([tmp_path]), host, 0, public=public)
        threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        opened.append(one)
        return one

    yield start
    for one in opened:
        one.shutdown()
        one.server_close()


def status(one, host):
    connection = http.client.HTTPConnection("127.0.0.1", one.server_address[1])
    connection.putrequest("GET", "/version", skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse().status
    connection.close()
    return answer


@pytest.mark.parametrize(("host", "public"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_name_that_is_not_ours_is_refused_whatever_the_address(serving, host, public):
    """A page elsewhere may point its own name at this machine and read along."""
    one = serving(host, public)
    port = one.server_address[1]
    for name in ("127.0.0.1", "localhost", f"localhost:{port}", f"127.0.0.1:{port}", "[::1]:80"):
        assert status(one, name) == 200, name
    for name in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", None):
        assert status(one, name) == 403, name


def test_a_public_server_answers_under_addresses_and_the_names_of_this_machine(serving):
    one = serving("0.0.0.0", public=True)
    assert status(one, socket.gethostname()) == 200
    assert status(one, "192.0.2.7:8000") == 200  # an address is no name that could be pointed here
    assert status(serving(), "192.0.2.7:8000") == 403


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_more_than_this_machine_only_by_an_explicit_word(tmp_path, host):
    with pytest.raises(ValueError, match="--public"):
        watch([tmp_path], host, 0)


@pytest.mark.parametrize("host", ["", " "])
def test_an_empty_host_is_refused(tmp_path, host):
    with pytest.raises(ValueError, match="--host is empty"):
        watch([tmp_path], host, 0, public=True)


@pytest.mark.parametrize("slow", ["silent", "a byte now and then", "takes no answer"])
def test_requests_have_a_time_out(serving, slow, monkeypatch):
    """All of a request, and all of taking its answer: its single bytes may come in time for ever."""
    one, came = serving(), threading.Event()
    begin = one.process_request
    monkeypatch.setattr(one, "process_request", lambda *request: (begin(*request), came.set()))
    monkeypatch.setattr(watch_module, "TIMEOUT", 0.2)
    if slow == "takes no answer":
        monkeypatch.setattr(Page, "html", lambda _: b"x" * 2**26)  # more than what the system holds for a client
    connection = socket.create_connection(one.server_address[:2])
    with contextlib.suppress(OSError):  # where this process is so late that the time is over
        request = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall(request + (b"\r\n" if slow == "takes no answer" else b"X: "))
    assert came.wait(processes.PATIENCE)

    def ended():
        if slow == "a byte now and then":
            with contextlib.suppress(OSError):  # it is closed by now
                connection.sendall(b"x")
        return one.clients == 0

    processes.until(ended)
    connection.close()


def test_a_page_may_take_longer_than_a_request(serving, monkeypatch):
    """While it is made no timer runs that would end the connection."""
    timers, running = [], []

    class Timer(threading.Timer):
        def start(self):
            timers.append(self)  # and never ends

    def html(_):
        running.extend(not timer.finished.is_set() for timer in timers)
        return b"late"

    monkeypatch.setattr(watch_module.threading, "Timer", Timer)
    monkeypatch.setattr(Page, "html", html)
    connection = http.client.HTTPConnection("127.0.0.1", serving().server_address[1])
    connection.request("GET", "/")
    assert connection.getresponse().read() == b"late"
    assert running == [False]
    assert len(timers) == 2  # the request's and the answer's
    connection.close()


def test_a_request_has_at_most_a_minute():
    assert watch_module.TIMEOUT <= 60


def test_there_is_a_limit_on_clients(serving):
    """Connections that say nothing hold their places; one more is closed at once, and when they are gone there is
    room."""
    one = serving()
    held = [socket.create_connection(one.server_address[:2]) for _ in range(CLIENTS)]
    processes.until(lambda: one.clients == CLIENTS)
    extra = socket.create_connection(one.server_address[:2])
    assert extra.recv(1) == b""
    assert one.clients == CLIENTS  # at once, and not when the others had been silent for too long
    for connection in (*held, extra):
        connection.close()
    processes.until(lambda: one.clients == 0)
    assert status(one, "localhost") == 200


def test_a_client_that_resets_prints_nothing(serving, capfd):
    one = serving()
    for request in (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        connection = socket.create_connection(one.server_address[:2])
        connection.sendall(request)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()  # with a reset
    assert status(one, "localhost") == 200
    processes.until(lambda: one.clients == 0)
    said = capfd.readouterr()
    assert said.out + said.err == ""


def test_a_page_that_cannot_be_made_says_so_and_serves_on(serving, monkeypatch):
    monkeypatch.setattr("sphere.report.watch.load", lambda *_: 1 / 0)
    one = serving()
    connection = http.client.HTTPConnection("127.0.0.1", one.server_address[1])
    connection.request("GET", "/")
    answer = connection.getresponse()
    assert answer.status == 200
    assert "division by zero" in answer.read().decode()
    connection.close()
