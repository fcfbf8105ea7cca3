"""Readers of CIFAR-100 and 20 Newsgroups: on made-up archives, and on the data beside the checkout where they are."""

import hashlib
import io
import lzma
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from sphere.cli.main import main
from sphere.data import cifar100, newsgroups
from sphere.data.labelled import beside_checkout, download
from sphere.data.streams import Stream

SHARED = beside_checkout()
needs_images = pytest.mark.skipif(
    not (SHARED / "cifar100" / "shards").is_dir(), reason=f"no CIFAR-100 in {SHARED}; nothing to compare with"
)
needs_posts = pytest.mark.skipif(
    not (SHARED / "20newsgroups").is_dir(), reason=f"no 20 Newsgroups in {SHARED}; nothing to compare with"
)


def tar_of(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


# CIFAR-100


@pytest.fixture
def images(tmp_path, monkeypatch):
    """A small archive of the official form, with its sums; and what is in it."""
    rng = np.random.default_rng(0)
    parts = {
        split: {
            "data": rng.integers(0, 256, (n, 3072)).astype(np.uint8),
            "fine_labels": rng.integers(0, 100, n).tolist(),
        }
        for split, n in (("train", 7), ("test", 4))
    }
    parts["meta"] = {"fine_label_names": [f"class {i}" for i in range(100)]}
    files = {name: pickle.dumps(part, protocol=4) for name, part in parts.items()}
    monkeypatch.setattr(cifar100, "MD5", {name: hashlib.md5(content).hexdigest() for name, content in files.items()})
    monkeypatch.setenv("SPHERE_DATA", str(tmp_path / "data"))
    cifar100._load.cache_clear()
    yield files, parts
    cifar100._load.cache_clear()


def packed(tmp_path, files):
    return tar_of(tmp_path / "archive.tar.gz", {f"cifar-100-python/{name}": content for name, content in files.items()})


def test_the_official_archive_is_installed_by_its_sums(images, tmp_path, capsys):
    files, parts = images
    assert main(["data", "get", "cifar100", "--from", str(packed(tmp_path, files))]) == 0
    assert str(cifar100.file()) in capsys.readouterr().out
    data = cifar100.CIFAR100.load(Stream())
    np.testing.assert_array_equal(data.train.label, parts["train"]["fine_labels"])
    assert data.names[3] == "class 3"
    image = data.test.obs[2].reshape(32, 32, 3)  # official rows are the planes of red, green and blue
    np.testing.assert_array_equal(image[5, 9], parts["test"]["data"][2].reshape(3, 32, 32)[:, 5, 9])


def test_bad_archives_of_images_are_refused_in_a_sentence(images, tmp_path, capsys):
    files, _ = images
    good = packed(tmp_path, files)
    bad = {
        "not a whole tar archive": lambda: good.write_bytes(good.read_bytes()[:-3000]),
        "has md5 .*altered; refused": lambda: packed(tmp_path, files | {"test": files["test"][:-5] + b"12345"}),
        "lacks cifar-100-python/meta": lambda: packed(tmp_path, {n: c for n, c in files.items() if n != "meta"}),
        "lacks cifar-100-python/train": lambda: tar_of(good, {"elsewhere/train": b"1"}),
    }
    for message, damage in bad.items():
        damage()
        with pytest.raises(ValueError, match=message):
            cifar100.install(good)
    assert main(["data", "get", "cifar100", "--from", str(tmp_path / "nowhere")]) == 1
    assert "there is no archive" in capsys.readouterr().err
    assert not cifar100.file().exists()


def test_a_pickle_makes_nothing_but_arrays():
    with pytest.raises(ValueError, match="only arrays are wanted; refused"):
        cifar100.read_pickle(pickle.dumps(Path("x")), "train")


@needs_images
def test_the_shards_are_the_official_test_images():
    """Head and pixels together are the official pickle: its published md5."""
    found = cifar100.read_shards(SHARED / "cifar100" / "shards", "test")
    head = lzma.decompress((SHARED / "cifar100" / "official_head_test.bin.xz").read_bytes())
    planes = np.moveaxis(found.obs.reshape(-1, 32, 32, 3), 3, 1)
    official = head + planes.tobytes() + b"tbu."
    assert hashlib.md5(official).hexdigest() == cifar100.MD5["test"]
    read = cifar100.read_pickle(official, "test")
    np.testing.assert_array_equal(read["fine_labels"], found.label)
    np.testing.assert_array_equal(read["data"], planes.reshape(len(planes), -1))
    assert np.all(np.bincount(found.label) == 100)
    pixels = found.obs.reshape(-1, 3) / 255
    np.testing.assert_allclose(pixels.mean(axis=0), cifar100.MEAN, atol=0.01)
    np.testing.assert_allclose(pixels.std(axis=0), cifar100.DEVIATION, atol=0.01)


# 20 Newsgroups

POST = """From: somebody@somewhere
Subject: test

In article <1@x> another writes:
> an old line
A new line, with Words.
Second line

--
Somebody
"""


def test_headers_quotes_and_footers_are_removed():
    assert newsgroups.strip(POST) == "A new line, with Words.\nSecond line\n"
    assert newsgroups.words_of(POST, stripped=True) == ["new", "line", "with", "words", "second", "line"]
    assert newsgroups.words_of(POST, stripped=False)[:3] == ["from", "somebody", "somewhere"]
    assert newsgroups.words_of("Subject: nothing\n\n> but a quotation\n", stripped=True) == []


def test_ids_are_by_frequency_then_by_alphabet():
    known = newsgroups.most_frequent([["bb", "aa", "cc"], ["cc", "bb", "cc", "dd"]], 3)
    assert known == {"cc": 2, "bb": 3, "aa": 4}
    np.testing.assert_array_equal(newsgroups.as_ids(["cc", "dd", "aa"], known, 5), [2, 1, 4, 0, 0])
    np.testing.assert_array_equal(newsgroups.as_ids(["cc", "dd", "aa"], known, 2), [2, 1])


@pytest.fixture
def posts(tmp_path, monkeypatch):
    files = {
        f"20news-bydate-{split}/{group}/{i}": f"Subject: {i}\n\nword{group[-1]} number {i}\n".encode()
        for split in ("train", "test")
        for group in ("alt.a", "sci.b")
        for i in range(3)
    }
    monkeypatch.setattr(newsgroups, "COUNTS", {"train": 6, "test": 6})
    archive = tar_of(tmp_path / "posts.tar.gz", files)
    monkeypatch.setattr(newsgroups, "CONTENT", newsgroups.content_sum(newsgroups.read(archive)))
    monkeypatch.setenv("SPHERE_DATA", str(tmp_path / "data"))
    return archive, files


def test_an_archive_of_posts_is_installed_and_read(posts):
    archive, _ = posts
    assert main(["data", "get", "newsgroups", "--from", str(archive)]) == 0
    data = newsgroups.Newsgroups.load(Stream(length=4, vocabulary=3))
    assert data.names == ("alt.a", "sci.b")
    assert data.vocabulary == 5
    assert list(data.train.label) == [0, 0, 0, 1, 1, 1]
    np.testing.assert_array_equal(data.test.obs[4], [4, 2, 0, 0])  # number, then worda and wordb


def test_bad_archives_of_posts_are_refused_in_a_sentence(posts, tmp_path):
    archive, files = posts
    some = dict(list(files.items())[1:])
    altered = files | {"20news-bydate-test/sci.b/2": b"Subject: 2\n\nother\n"}
    for message, content in (("has 5 posts for train, want 6", some), ("altered; refused", altered)):
        with pytest.raises(ValueError, match=message):
            newsgroups.install(tar_of(tmp_path / "bad.tar.gz", content))
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(ValueError, match="not a whole tar archive"):
        newsgroups.install(archive)
    assert not newsgroups.file().exists()


def test_what_cannot_be_had_is_told_and_leaves_nothing(tmp_path):
    with pytest.raises(ConnectionError, match="--from FILE"):
        download((tmp_path / "none").as_uri(), tmp_path / "data", lambda path: path, lambda line: None)
    assert list((tmp_path / "data").iterdir()) == []


def test_a_download_is_installed_and_not_kept(tmp_path):
    (tmp_path / "archive").write_bytes(b"content")
    seen = []
    download(
        (tmp_path / "archive").as_uri(), tmp_path / "data", lambda p: seen.append(p.read_bytes()) or p, seen.append
    )
    assert seen[1:] == [b"content"]
    assert list((tmp_path / "data").iterdir()) == []


def test_missing_data_say_how_to_get_them(tmp_path, monkeypatch):
    for module, one in ((cifar100, cifar100.CIFAR100), (newsgroups, newsgroups.Newsgroups)):
        monkeypatch.setenv("SPHERE_DATA", str(tmp_path))
        monkeypatch.setattr(module, "beside_checkout", lambda: tmp_path)
        with pytest.raises(FileNotFoundError, match=f"get it with: sphere data get {module.__name__.split('.')[-1]}$"):
            one.load(Stream())


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"text"])
def test_a_damaged_data_set_is_named(data, tmp_path):
    (tmp_path / "cifar100.npz").write_bytes(data)
    with pytest.raises(ValueError, match=r"cifar100\.npz is damaged .* sphere data get cifar100"):
        cifar100._load(tmp_path / "cifar100.npz", tmp_path)


@needs_posts
def test_the_posts_are_those_that_were_counted():
    """Numbers of scikit-learn's documentation and of a count by its token pattern: shared/data and shared/facts."""
    archive = SHARED / "20newsgroups" / "20news-bydate.tar.xz"
    found = newsgroups.read(archive)
    assert newsgroups.content_sum(found) == newsgroups.CONTENT
    words = [newsgroups.words_of(post.text, stripped=True) for post in found["train"]]
    empty = {split: sum(not newsgroups.strip(post.text).strip() for post in own) for split, own in found.items()}
    assert empty == {"train": 300, "test": 215}
    dropped = [sum(not newsgroups.words_of(post.text, stripped=True) for post in found[split]) for split in empty]
    page = " ".join((Path(__file__).resolve().parents[1] / "docs" / "streams.md").read_text().split())
    assert f"({dropped[0]} of the training posts, {dropped[1]} of the test posts)" in page
    assert len({word for text in words for word in text}) == 101_631
    assert len(newsgroups.most_frequent(words, 10**6)) == 101_631
    assert sorted(map(len, words))[len(words) // 2] == 79
