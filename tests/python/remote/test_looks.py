# SPDX-License-Identifier: Apache-2.0
"""Tests what the fetcher remembers of sizes and versions, so that all ranks of a machine ask for them once."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from headrace._remote import fetcher
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
