# SPDX-License-Identifier: Apache-2.0
"""Tests what the fetcher remembers of sizes and versions, so that all ranks of a machine ask for them once."""

from __future__ import annotations

import errno
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
from headrace._remote import fetcher
from headrace._remote.failures import Failed
from headrace._remote.https import Found

SETTINGS = "{}"


def url_of(number: int) -> str:
    return f"https://storage.example.com/datasets/images/shards/{number:06}.tar"


def note(looks: fetcher.Looks, numbers: range) -> None:
    for number in numbers:
        looks.note(url_of(number), SETTINGS, Found(10**9 + number, f'etag:"{number:032x}-117"', b"head"))


def test_sizes_of_a_large_dataset_are_known_to_other_ranks() -> None:
    """docs/scale.md has what one takes: 600,000 of them are 220 MB."""
    looks = fetcher.Looks()
    tracemalloc.start()
    try:
        note(looks, range(20_000))
        taken = tracemalloc.get_traced_memory()[0] / 20_000
    finally:
        tracemalloc.stop()
    assert taken < 450, f"{taken:.0f} bytes"
    note(looks, range(20_000, 130_000))
    assert looks.count() == 130_000
    assert looks.look(url_of(7), SETTINGS)[1].size == 10**9 + 7
    assert fetcher._MOST_KNOWN >= 600_000


def test_old_sizes_make_room_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "_MOST_KNOWN", 10)
    looks = fetcher.Looks()
    note(looks, range(6))
    looks._known[SETTINGS] = {url: (time.monotonic() - 1, *rest) for url, (_, *rest) in looks._known[SETTINGS].items()}
    note(looks, range(6, 11))
    assert looks.count() == 5
    assert looks.look(url_of(6), SETTINGS)[1].size == 10**9 + 6
    note(looks, range(11, 17))
    assert looks.count() <= 10


def test_sizes_of_a_replaced_object_are_forgotten() -> None:
    looks = fetcher.Looks()
    for settings in ("{}", '{"retry_s": 3}'):
        looks.note(url_of(1), settings, Found(1, "etag:1", b""))
        looks.note(url_of(2), settings, Found(2, "etag:2", b""))
    looks.forget(url_of(1))
    assert looks.count() == 2
    looks.forget_old()
    assert looks.count() == 2


class Slow:
    """Reads sizes, when it is let go. Fails the first time if it is told to."""

    def __init__(self, fails: bool = False) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.calls, self.fails = 0, fails

    def look(self, *_: object) -> Found:
        self.calls += 1
        self.begun.set()
        assert self.goes_on.wait(60)
        if self.fails and self.calls == 1:
            raise Failed(errno.ENOENT, "absent")
        return Found(7, "etag:7", b"")


@pytest.mark.parametrize("fails", [False, True])
def test_ranks_that_open_at_the_same_time_ask_once(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first one fails, another one asks by itself."""
    looks, reader = fetcher.Looks(), Slow(fails)
    monkeypatch.setattr(fetcher, "_reader_of", lambda address: reader)
    monkeypatch.setattr(fetcher, "_TOGETHER_S", 60.0)
    with ThreadPoolExecutor(2) as ranks:
        first = ranks.submit(looks.look, url_of(1), SETTINGS)
        assert reader.begun.wait(60)
        event = looks._asked[url_of(1), SETTINGS]
        waits = threading.Event()
        monkeypatch.setattr(event, "wait", lambda seconds: (waits.set(), threading.Event.wait(event, seconds)))
        second = ranks.submit(looks.look, url_of(1), SETTINGS)
        assert waits.wait(60)
        reader.goes_on.set()
        assert second.result()[1].size == 7
        assert isinstance(first.exception(), Failed) if fails else first.result()[1].size == 7
    assert reader.calls == 1 + fails and looks._asked == {}
