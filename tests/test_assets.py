"""Files that are got from elsewhere: whole and checked or not at all, from archives and from a server that fails."""

import hashlib
import http.server
import io
import re
import sys
import tarfile
import threading

import processes
import pytest
from processes import PATIENCE

from sphere.envs import assets
from sphere.envs.assets import AssetCollection, File, find, install, root

CONTENTS = {
    "LICENSE": b"do as you like\n",
    "robots/one.xml": b"<mujoco/>",
    "h1/LICENSE": b"keep this\n",
    "h1/mesh.stl": bytes(range(256)) * 400,
}


def collection(base="http://127.0.0.1:9"):
    files = {
        path: File(len(content), hashlib.sha256(content).hexdigest(), f"repository/{path}")
        for path, content in CONTENTS.items()
    }
    return AssetCollection(base, files)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and a small suite of files."""
    monkeypatch.setenv("SPHERE_ASSETS", str(tmp_path / "cache"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(assets.COLLECTIONS, "toy", collection())
    monkeypatch.setattr(assets, "TIMEOUT", PATIENCE)
    return tmp_path / "cache"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path.removeprefix("/pinned/repository/")
        self.server.asked.append(path)
        how, content = self.server.trouble.get(path, ""), CONTENTS.get(path)
        if how == "hang":
            self.server.hung.set()
            self.server.release.wait(PATIENCE)
        if content is None or how == "gone":
            self.send_error(404)
            return
        if how == "tampered":
            content = content[:-1] + b"!"
        self.send_response(200)
        if how != "unannounced":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if how in ("cut", "unannounced") else content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked, server.trouble = [], {}
        server.hung, server.release = threading.Event(), threading.Event()
        server.base = f"http://127.0.0.1:{server.server_port}/pinned"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.release.set()
        server.shutdown()
        thread.join()


def installed(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def archive(path, contents=None, extra=()):
    """A .tar.xz of the files in one folder, and further members as they are."""
    with tarfile.open(path, "w:xz") as tar:
        for name, content in (CONTENTS if contents is None else contents).items():
            member = tarfile.TarInfo(f"folder/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member, content in extra:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def member(name, kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_the_recorded_files_of_humanoidbench():
    base, files = assets.COLLECTIONS["humanoidbench"]
    assert len(files) == 38
    assert {"LICENSE", "h1/LICENSE"} <= files.keys()
    assert all(f"envs/h1_pos_{task}.xml" in files for task in ("stand", "walk", "run", "pole", "slide", "stair"))
    assert re.fullmatch(r"https://[\w.]+/carlosferrazza/humanoid-bench/791405f[0-9a-f]{33}", base)
    assert files["LICENSE"].remote == "LICENSE"
    assert files["robots/h1_pos.xml"].remote == "humanoid_bench/assets/robots/h1_pos.xml"
    assert all(re.fullmatch("[0-9a-f]{64}", file.sha256) and file.size > 0 for file in files.values())


def test_the_place_is_the_users_choice_or_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("SPHERE_ASSETS", "~/mine")
    assert root() == tmp_path / "mine"
    monkeypatch.delenv("SPHERE_ASSETS")
    assert root() == tmp_path / "xdg" / "sphere" / "assets"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert root() == tmp_path / ".cache" / "sphere" / "assets"


def test_what_is_missing_is_said_with_the_command_to_run(cache):
    with pytest.raises(FileNotFoundError) as caught:
        find("toy")
    assert str(caught.value) == f"the models of toy are not in {cache}/toy; get them with: sphere assets toy"
    with pytest.raises(ValueError, match="did you mean humanoidbench"):
        install("humanoidbensch")


def test_a_download_brings_every_file_once(cache, server):
    lines = []
    folder = install("toy", base=server.base, say=lines.append)
    assert folder == find("toy") == cache / "toy"
    assert installed(folder) == CONTENTS
    assert lines == [f"{i} of 4: {path}" for i, path in enumerate(CONTENTS, 1)]
    assert server.asked == list(CONTENTS)
    assert install("toy", base=server.base) == folder
    assert len(server.asked) == 4
    assert sorted(path.name for path in cache.iterdir()) == [".toy.lock", "toy"]


@pytest.mark.parametrize("how", ["cut", "gone", "unannounced", "tampered"])
def test_an_interrupted_download_installs_nothing_and_is_resumed(cache, server, how):
    server.trouble["h1/LICENSE"] = how
    error, words = {
        "cut": (ConnectionError, "cut off after 5 of 10 bytes.*run sphere assets toy again, or .*--from FILE"),
        "gone": (ConnectionError, "404"),
        "unannounced": (ValueError, "has 5 bytes, want 10"),
        "tampered": (ValueError, "has sha256 .*tampered.*nothing is installed"),
    }[how]
    for _ in range(2):
        with pytest.raises(error, match=words):
            install("toy", base=server.base)
        assert not (cache / "toy").exists()
        with pytest.raises(FileNotFoundError):
            find("toy")
    server.trouble.clear()
    assert installed(install("toy", base=server.base)) == CONTENTS
    # What had come was kept, what had not come whole was not.
    assert server.asked == ["LICENSE", "robots/one.xml", *["h1/LICENSE"] * 3, "h1/mesh.stl"]


def test_a_server_out_of_reach_is_named(cache):
    with pytest.raises(ConnectionError, match=r"http://127.0.0.1:9/repository/LICENSE could not be downloaded"):
        install("toy")


def test_a_killed_download_leaves_nothing_half_done(cache, server):
    server.trouble["h1/mesh.stl"] = "hang"
    code = (
        "from sphere.envs import assets; from sphere.envs.assets import AssetCollection, File\n"
        f"assets.COLLECTIONS['toy'] = {collection()!r}; assets.install('toy', base={server.base!r})"
    )
    child = processes.start([sys.executable, "-c", code])
    assert server.hung.wait(PATIENCE)
    child.kill()
    child.wait()
    assert not (cache / "toy").exists()
    # As if the kill had come in the middle of a write, and an older version had left something.
    partial = cache / ".toy.partial"
    (partial / "robots" / "one.xml").write_bytes(b"<muj")
    (partial / "robots" / "old.xml").write_bytes(b"<mujoco/>")
    server.trouble.clear()
    server.asked.clear()
    assert installed(install("toy", base=server.base)) == CONTENTS
    assert server.asked == ["robots/one.xml", "h1/mesh.stl"]


def test_two_at_once_do_the_work_once(cache, server, monkeypatch):
    server.trouble["LICENSE"] = "hang"
    both, lock = threading.Barrier(3), assets._lock
    monkeypatch.setattr(assets, "_lock", lambda path: (both.wait(PATIENCE), lock(path))[1])
    threads = [threading.Thread(target=install, args=("toy", None, server.base)) for _ in range(2)]
    for thread in threads:
        thread.start()
    both.wait(PATIENCE)  # the second is there before the first has anything
    assert server.hung.wait(PATIENCE)
    server.release.set()
    for thread in threads:
        thread.join()
    assert installed(find("toy")) == CONTENTS
    assert server.asked == list(CONTENTS)


@pytest.mark.parametrize("spoil", [lambda b: b[:-1], lambda b: b[:-1] + b"!", lambda b: b"", None])
def test_a_file_that_was_changed_later_is_refused_and_mended(cache, server, spoil):
    path = install("toy", base=server.base) / "h1" / "mesh.stl"
    if spoil is None:
        path.unlink()
    else:
        path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match=r"h1/mesh.stl (has|is missing).*again with: sphere assets toy"):
        find("toy")
    install("toy", base=server.base)
    assert installed(find("toy")) == CONTENTS


@pytest.mark.parametrize("name", ["files.tar.xz", "renamed"])
def test_an_archive_is_enough(cache, tmp_path, name):
    extra = [(member("folder", tarfile.DIRTYPE), b""), (member("folder/PROVENANCE.md"), b"from there")]
    source = archive(tmp_path / name, extra=extra)
    folder = install("toy", source)
    assert installed(folder) == CONTENTS  # and not what is unknown
    assert install("toy", str(source)) == folder == find("toy")
    assert sorted(path.name for path in cache.iterdir()) == [".toy.lock", "toy"]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ((member("folder/../../evil"), b"x"), "outside"),
        ((member("../evil"), b"x"), "outside"),
        ((member("/tmp/evil"), b"x"), "outside"),
        ((member("other/evil"), b"x"), "outside"),
        ((member("folder/link", tarfile.SYMTYPE, "/etc/passwd"), b""), "link or device"),
        ((member("folder/robots/one.xml", tarfile.LNKTYPE, "folder/LICENSE"), b""), "link or device"),
        ((member("folder/pipe", tarfile.FIFOTYPE), b""), "link or device"),
        ((member("folder/disk", tarfile.BLKTYPE), b""), "link or device"),
        ((member("folder/robots/one.xml"), b"<evil  />"), "robots/one.xml in .* has sha256 .*refused"),
        ((member("folder/robots/one.xml"), b"longer than that"), "has 16 bytes, want 9.*refused"),
    ],
)
def test_an_archive_with_anything_wrong_is_refused_whole(cache, tmp_path, extra, words):
    source = archive(tmp_path / "bad.tar.xz", extra=[extra])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=words):
        install("toy", source)
    left = {path for path in tmp_path.rglob("*") if path not in before}
    assert left <= {cache, cache / ".toy.lock"}


def test_an_archive_that_is_not_whole_is_refused(cache, tmp_path):
    source = archive(tmp_path / "files.tar.xz")
    whole = source.read_bytes()
    for part in (whole[: len(whole) // 2], whole[:-40], b"no archive at all", b""):
        source.write_bytes(part)
        with pytest.raises(ValueError, match="not a complete tar archive"):
            install("toy", source)
    archive(source, {"LICENSE": CONTENTS["LICENSE"]})
    with pytest.raises(ValueError, match="lacks h1/LICENSE and 2 more"):
        install("toy", source)
    with pytest.raises(FileNotFoundError, match="there is no archive"):
        install("toy", tmp_path / "nowhere.tar.xz")
    assert not (cache / "toy").exists()
