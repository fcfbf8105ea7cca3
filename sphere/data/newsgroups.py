"""20 Newsgroups, split by date: 11,314 training and 7,532 test posts of 20 groups, as rows of word ids.

A word is two letters or digits or more, in lower case (scikit-learn's token pattern). The vocabulary are the most
frequent words of the training posts, ties in alphabetical order; id 0 is padding, id 1 any other word.
"""

import hashlib
import lzma
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sphere.data.labelled import Labelled, Split, beside_checkout, missing, root, write_whole

ADDRESS = "https://ndownloader.figshare.com/files/5975967"
"""Where scikit-learn has it from; the distributor's own page is qwone.com/~jason/20Newsgroups."""
CONTENT = "f3cb6adb8f3f6728cf4b437d2af79f26142476ea099e4f4bb4ec201bdea94f13"
"""sha256 over all posts, whatever archive they come in: see `content_sum`."""
COUNTS = {"train": 11_314, "test": 7_532}
LONGEST = 1_000_000
"""Bytes of a post at most."""
FIRST_WORD = 2

WORD = re.compile(r"\b\w\w+\b")
QUOTE = re.compile(r"(writes in|writes:|wrote:|says:|said:|^In article|^Quoted from|^\||^>)")


class Post(NamedTuple):
    group: str
    number: str
    text: str


class Newsgroups:
    classes: ClassVar[int] = 20

    @staticmethod
    def load(settings: Any) -> Labelled:
        """By `length`, `vocabulary` and `stripped` of the settings."""
        local = beside_checkout() / "20newsgroups" / "20news-bydate.tar.xz"
        found = next((path for path in (file(), local) if path.is_file()), None)
        if found is None:
            raise missing("newsgroups", [file(), local])
        return _load(found, settings.length, settings.vocabulary, settings.stripped)


def file() -> Path:
    return root() / "newsgroups" / "20news-bydate.tar"


@cache
def _load(archive: Path, length: int, vocabulary: int, stripped: bool) -> Labelled:
    posts = read(archive)
    names = tuple(sorted({post.group for post in posts["train"]}))
    words = {split: [words_of(post.text, stripped) for post in own] for split, own in posts.items()}
    known = most_frequent(words["train"], vocabulary)
    splits = []
    for split in ("train", "test"):
        # a post of which nothing is left says nothing
        kept = [(post, found) for post, found in zip(posts[split], words[split], strict=True) if found]
        label = np.array([names.index(post.group) for post, _ in kept], np.int32)
        splits.append(Split(np.stack([as_ids(found, known, length) for _, found in kept]), label))
    return Labelled(splits[0], splits[1], names, vocabulary=vocabulary + FIRST_WORD)


def most_frequent(texts: list[list[str]], number: int) -> dict[str, int]:
    """Words and their ids."""
    count = Counter(word for text in texts for word in text)
    order = sorted(count, key=lambda word: (-count[word], word))[:number]
    return {word: i for i, word in enumerate(order, FIRST_WORD)}


def as_ids(words: list[str], known: dict[str, int], length: int) -> np.ndarray:
    """The first `length` words; 0 after the last."""
    row = np.zeros(length, np.int32)
    some = [known.get(word, 1) for word in words[:length]]
    row[: len(some)] = some
    return row


def words_of(text: str, stripped: bool) -> list[str]:
    return WORD.findall((strip(text) if stripped else text).lower())


def strip(text: str) -> str:
    """Without headers, footers and quotes, in that order, as scikit-learn's remove=('headers', 'footers', 'quotes')."""
    text = text.partition("\n\n")[2]  # headers: up to the first blank line
    lines = text.strip().split("\n")
    ends = [i for i, line in enumerate(lines) if not line.strip().strip("-")]
    # lines that quote or introduce a quotation; a footer is what follows the last blank or dashed line
    body = "\n".join(lines[: ends[-1]]) if ends and ends[-1] > 0 else text
    return "\n".join(line for line in body.split("\n") if not QUOTE.search(line))


def install(archive: Path, say: Callable[[str], object] = print) -> Path:
    """Check an archive and keep it in the user's cache."""
    found = content_sum(read(archive))
    if found != CONTENT:
        raise ValueError(f"the posts in {archive} have sha256 {found[:12]}…, want {CONTENT[:12]}…: altered; refused")
    return write_whole(file(), lambda path: path.write_bytes(archive.read_bytes()))


def content_sum(posts: dict[str, list[Post]]) -> str:
    """Of all posts in the order of split, group and number."""
    sums = hashlib.sha256()
    for split in ("train", "test"):
        for post in posts[split]:
            content = post.text.encode("latin-1")
            sums.update(f"{split}/{post.group}/{post.number} {len(content)}\n".encode())
            sums.update(content)
    return sums.hexdigest()


def read(archive: Path) -> dict[str, list[Post]]:
    """Posts by split, in the order of group and number; nothing is written to the disk."""
    if not archive.is_file():
        raise FileNotFoundError(f"there is no archive {archive}; give the path of 20news-bydate.tar.gz")
    posts: dict[str, list[Post]] = {"train": [], "test": []}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                folders = member.name.removeprefix("./").split("/")
                split = folders[0].rsplit("-", 1)[-1]
                if not member.isreg() or len(folders) != 3 or split not in posts or member.size > LONGEST:
                    continue
                stream = tar.extractfile(member)
                text = stream.read().decode("latin-1") if stream else ""
                posts[split].append(Post(folders[1], folders[2], text))
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise ValueError(
            f"{archive} is not a whole tar archive ({error}); get it again: sphere data get newsgroups"
        ) from error
    for split, own in posts.items():
        if len(own) != COUNTS[split]:
            raise ValueError(
                f"{archive} has {len(own)} posts for {split}, want {COUNTS[split]}; is it 20news-bydate, and whole?"
            )
    return {split: sorted(own) for split, own in posts.items()}
