# SPDX-License-Identifier: Apache-2.0
"""Measures how long headrace.doctor.check takes, compared with a plain pickle.dumps of the same object.

The object that cannot be pickled is at the end of the list, where pickle would reach it last.
"""

from __future__ import annotations

import copyreg
import enum
import gc
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from headrace import doctor
from measure import QUICK, Goal, Key, Row, in_turn, in_words, run_all

COUNT = 1_000_000 if QUICK else 10_000_000
ROUNDS = 3  # The large objects take long, and their times vary little.


class Item:
    def __init__(self, number: int) -> None:
        self.path = f"images/{number}.jpg"
        self.label = number


class Reduced:
    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return Reduced, (self.number,)


class Stated(Item):
    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "label": self.label}


class Listed(list):  # type: ignore[type-arg]
    pass


class Mapped(dict):  # type: ignore[type-arg]
    pass


class Registered:
    def __init__(self, number: int) -> None:
        self.number = number


copyreg.pickle(Registered, lambda one: (Registered, (one.number,)))


class Pair(NamedTuple):
    path: str
    label: int


class Split(enum.Enum):
    TRAIN = 1
    TEST = 2


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[int], list[Any]]
    share: int  # The case has COUNT / share objects.
    limit_ms: float = 0  # The limit with an unpicklable object; 0: twice the time of dumps.
    in_quick: bool = True


def texts(count: int) -> list[Any]:
    return [f"images/{number}.jpg" for number in range(count)]


def mixed(count: int) -> list[Any]:
    return [{"path": f"{number}.jpg", "box": (number, 1.5), "seen": True} for number in range(count)]


def arrays(count: int) -> list[Any]:
    return [np.zeros(4) for _ in range(count)]


SECONDS_2 = 2000.0
CASES = [
    Case("integers", lambda count: list(range(count)), 1, SECONDS_2),
    Case("texts", texts, 1, SECONDS_2),
    Case("scalars in containers", mixed, 5, SECONDS_2),
    Case("instances", lambda count: [Item(number) for number in range(count)], 1),
    Case("arrays", arrays, 20),
    Case("with __reduce__", lambda count: [Reduced(number) for number in range(count)], 10),
    Case("with __getstate__", lambda count: [Stated(number) for number in range(count)], 10),
    Case("by copyreg", lambda count: [Registered(number) for number in range(count)], 10),
    Case("subclasses of list", lambda count: [Listed([number]) for number in range(count)], 10),
    Case("subclasses of dict", lambda count: [Mapped(label=number) for number in range(count)], 10),
    Case("named tuples", lambda count: [Pair(str(number), number) for number in range(count)], 10),
    Case("enum members", lambda count: [Split.TRAIN, Split.TEST] * (count // 2), 1),
]
UNPICKLABLE, FINE = "with an unpicklable object", "fine"


def work_of(case: Case, state: str) -> str:
    return f"{COUNT // case.share:,} {case.name}, {state}"


def goals() -> list[Goal]:
    found = []
    for case in CASES:
        fine, unpicklable = work_of(case, FINE), work_of(case, UNPICKLABLE)
        dumps = Key(fine, "pickle", 0)
        found.append(Goal(f"{fine}, of pickle.dumps", Key(fine, "headrace", 0), 2, dumps))
        if case.limit_ms:
            found.append(
                Goal(unpicklable, Key(unpicklable, "headrace", 0), case.limit_ms * COUNT / 10_000_000, unit="ms")
            )
        else:
            found.append(Goal(f"{unpicklable}, of pickle.dumps", Key(unpicklable, "headrace", 0), 2, dumps))
    return found


def ms(call: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def run_case(case: Case) -> list[Row]:
    made = case.make(COUNT // case.share)
    ways = {"pickle": lambda: ms(lambda: pickle.dumps(made)), "headrace": lambda: ms(lambda: doctor.check(made))}
    assert doctor.check(made).ok
    rows = in_turn(work_of(case, FINE), ways, "ms", ROUNDS)
    made.append(threading.Lock())
    assert [one.path for one in doctor.check(made).findings] == [f"obj[{len(made) - 1}]"]
    return rows + in_turn(work_of(case, UNPICKLABLE), {"headrace": ways["headrace"]}, "ms", ROUNDS)


def show(rows: list[Row]) -> None:
    dumps, fine, unpicklable = (row.value for row in rows)
    print(
        f"{rows[1].work:40} pickle.dumps {dumps:8.0f} ms   doctor {fine:8.0f} ms   ratio {in_words(fine / dumps)}   "
        f"with an unpicklable object {unpicklable:8.0f} ms   ratio {in_words(unpicklable / dumps)}",
        flush=True,
    )


def main() -> None:
    run_all(__doc__ or "", CASES, run_case, show, goals)


if __name__ == "__main__":
    main()
