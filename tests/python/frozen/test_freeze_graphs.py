# SPDX-License-Identifier: Apache-2.0
"""Data of every kind, shared and in circles, drawn at random: what is read and what is thawed is what was frozen."""

from __future__ import annotations

import os
import pickle
import tempfile
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import headrace
from graphs import Comparison, Drawn, values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "40"))
DRAWN = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@DRAWN
@given(values())
def test_thaw_restores_shared_objects_and_circles(drawn: Drawn) -> None:
    value = drawn.value
    frozen = headrace.freeze(value, on_unknown="pickle")
    Comparison(views=False).run(value, headrace.thaw(frozen))
    Comparison(views=True).run(value, frozen)


@DRAWN
@given(values())
def test_a_pickle_a_handle_and_a_file_have_the_same(drawn: Drawn) -> None:
    value = drawn.value
    frozen = headrace.freeze({"all": value}, on_unknown="pickle")
    Comparison(views=False).run(value, headrace.thaw(pickle.loads(pickle.dumps(frozen["all"]))))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.frozen"
        headrace.freeze(value, path, on_unknown="pickle")
        Comparison(views=False).run(value, headrace.thaw(headrace.open(path, trust=True, verify=True)))
        handle = pickle.loads(ForkingPickler.dumps(headrace.open(path, trust=True)))
        Comparison(views=True).run(value, handle)


@DRAWN
@given(values(), st.integers(-9, 9), st.integers(-9, 9), st.sampled_from([1, 2, -1]))
def test_frozen_part_of_a_view_has_the_same_content(drawn: Drawn, start: int, stop: int, step: int) -> None:
    value = drawn.value
    frozen = headrace.freeze(value, on_unknown="pickle")
    part = slice(start, stop, step)
    Comparison(views=False).run(value[part], headrace.thaw(frozen[part]))
    Comparison(views=True).run(value[part], frozen[part])
    again = headrace.freeze((frozen, 1), on_unknown="pickle")
    Comparison(views=False).run(value, headrace.thaw(again)[0])
    Comparison(views=False).run(value[part], headrace.thaw(headrace.freeze(frozen[part], on_unknown="pickle")))


@DRAWN
@given(values())
def test_records_of_a_builder_are_each_complete(drawn: Drawn) -> None:
    value = drawn.value
    with headrace.frozen.Builder(on_unknown="pickle") as builder:
        for one in value:
            builder.append(one)
    for one, back in zip(value, headrace.thaw(builder.view), strict=True):
        Comparison(views=False).run(one, back)
