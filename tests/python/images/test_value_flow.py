# SPDX-License-Identifier: Apache-2.0
"""Functions that pass the result of a call on, and others, told apart by their bytecode. Neither torch nor Pillow is
needed."""

from __future__ import annotations

import contextlib
import sys
from collections import namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from headrace.images._proof.passed_on import is_passed_on

kept: dict[Any, Any] = {}
answers: list[bool] = []


class Value:
    """Stands for a tensor."""

    shape = (2, 3)

    def __iter__(self) -> Any:
        return iter((1, 2))

    def __len__(self) -> int:
        return 2

    def __add__(self, other: int) -> int:
        return other


def make(*arguments: Any) -> Any:
    frame = sys._getframe(1)
    answers.append(is_passed_on(frame))
    return Value()


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


Pair = namedtuple("Pair", "value label")


class Made:
    """A dataset whose samples are made by Python code that an operator calls."""

    def __getitem__(self, index: int) -> Any:
        return make()


# ---- functions that only pass the result on ----


def returns() -> Any:
    return make()


def returns_with_label(index: int = 3) -> Any:
    value = make(str(index))
    label = int(str(index))
    return value, label


def assigns_if_there_is_a_step(step: Any = make) -> Any:
    value: Any = 3
    if step is not None:
        value = make()
    if value is None:
        raise ValueError("no value")
    return value, len("label")


def returns_a_dict(path: str = "a/b") -> Any:
    return {"image": make(), "name": path.split("/")[-1], path: [make(), make(3)]}


def fills_its_own_dict() -> Any:
    sample = {"image": make()}
    sample["label"] = len(sys.path)
    sample["again"] = sample["image"]
    return sample


def returns_views(count: int = 2) -> Any:
    return [make(number) for number in range(count)], {str(number): make() for number in range(count)}


def returns_from_a_block() -> Any:
    with contextlib.suppress(OSError):
        return make(), len("label")


def catches_errors() -> Any:
    value = None
    try:
        value = make()
        label = int("3")
    except ValueError as error:
        raise RuntimeError("bad") from error
    finally:
        len("label")
    return value, label


def unpacks() -> Any:
    value, label = returns_with_label()
    first, *_ = ({"a": 1}, 2)
    return {"image": value, "label": label, **first}


def takes_a_part() -> Any:
    return returns_with_label()[0], Made()[3]


def exchanges() -> Any:
    value, label = make(), 3
    value, label = label, value
    return value, label


def gives_values() -> Any:
    return list(yields())


def yields() -> Any:
    for number in range(2):
        yield make(), number


def goes_through(values: Any = None) -> Any:
    found = []
    for value in [make(), 2]:
        other = value
        found = [other]
    return found


class Named(NamedTuple):
    value: Any
    label: int = 3

    @classmethod
    def of(cls, value: Any) -> Any:
        return cls(type(value))


def returns_a_named_tuple(labels: Any = (1, 2)) -> Any:
    return Pair(make(), labels[0]), Named(value=make(str(3)))


def calls_classes_of_containers() -> Any:
    value = make()
    return dict(value=value), list((value,)), tuple([value])  # noqa: C408, C409, C410


def fills_an_empty_dict() -> Any:
    sample = {}
    sample["label"] = len(sys.path)
    sample["value"] = make()
    sample["text"] = str(len(sys.path))
    return sample


def replaces_in_its_own_dict(index: int = 0, *more: Any, **names: Any) -> Any:
    sample = {"value": index, "label": len(sys.path)}
    if sample["label"]:
        sample["value"] = make(sample["value"])
    return sample


def adds_to_a_tuple(index: int = 3) -> Any:
    pair = returns_with_label()
    return (*pair, index), pair + (index,), {**fills_an_empty_dict(), "index": index}  # noqa: RUF005


PASSING: list[Callable[[], Any]] = [
    returns,
    returns_with_label,
    assigns_if_there_is_a_step,
    returns_a_dict,
    fills_its_own_dict,
    returns_views,
    returns_from_a_block,
    catches_errors,
    takes_a_part,
    exchanges,
    gives_values,
    goes_through,
    returns_a_named_tuple,
    calls_classes_of_containers,
    fills_an_empty_dict,
    replaces_in_its_own_dict,
    adds_to_a_tuple,
]

# ---- functions that do more ----


def calls_a_function() -> Any:
    return Holder(make())


def calls_by_keyword() -> Any:
    return Holder(value=make())


def calls_with_all(*arguments: Any) -> Any:
    value = make()
    return Holder(*[value])


def calls_a_method() -> Any:
    return make().__len__()


def reads_an_attribute() -> Any:
    value = make()
    return value.shape


def asks_for_the_class() -> Any:
    value = make()
    return value, type(value) is Value


def compares() -> Any:
    value = make()
    return value, value == 3


def adds() -> Any:
    return make() + 3


def asks_for_truth() -> Any:
    value = make()
    return 3 if value else 4


def keeps_in_an_object(holder: Any = Holder(0)) -> Any:  # noqa: B008
    holder.value = make()
    return holder.value


def keeps_in_a_dict() -> Any:
    kept[3] = make()
    return 3


def keeps_in_a_global() -> Any:
    global kept_value
    kept_value = make()
    return 3


def keeps_in_a_closure() -> Any:
    value = make()

    def ask() -> Any:
        return type(value)

    return ask


def keeps_its_dict_first() -> Any:
    sample: dict[str, Any] = {}
    kept[4] = sample
    sample["value"] = make()
    return sample


def has_two_names_for_its_dict() -> Any:
    sample: dict[str, Any] = {}
    other = sample
    sample["value"] = make()
    return type(other["value"])


def writes_to_one_of_two_dicts(sample: Any = None) -> Any:
    if sample is None:
        sample = {}
    sample["value"] = make()
    return 3


def looks_into_its_dict() -> Any:
    sample: dict[str, Any] = {}
    sample["value"] = make()
    sample["class"] = type(sample["value"])
    return sample


def writes_to_another_dict(other: bool = False) -> Any:
    sample: dict[str, Any] = {}
    (kept if other else sample)["value"] = make()
    return sample


class Looking(Pair):  # type: ignore[misc, valid-type]
    """A named tuple with code of the user's."""

    def __new__(cls, value: Any, label: Any) -> Any:
        return super().__new__(cls, type(value), label)


def makes_a_subclass_of_a_named_tuple() -> Any:
    return Looking(make(), 3)


def calls_methods_of_classes() -> Any:
    return Named.of(make()), Named.of(value=make()), dict.fromkeys([make()])


def calls_what_a_class_gives(kinds: Any = (Holder,)) -> Any:
    return (Named or kinds)(make()), (kinds[0])(make()), len([Named, make()])


def calls_one_of_two(is_pair: bool = True) -> Any:
    value = make()
    return (Pair if is_pair else Holder)(value, 3)


class Joining:
    def __add__(self, other: Any) -> Any:
        return type(other[0])


def is_added_to_an_object() -> Any:
    return Joining() + (make(),)  # noqa: RUF005


def is_a_key() -> Any:
    return {make(): 3}


def is_in_a_set() -> Any:
    return {make(), 3}


def is_in_text() -> Any:
    return f"{make()}"


def looks_into_its_frame() -> Any:
    value = make()
    return value, len(locals())


def uses_it_in_a_handler() -> Any:
    value: Any = 3
    try:
        value = make()
        int("x")
    except ValueError:
        return type(value)
    return value


def uses_it_in_the_next_round() -> Any:
    value: Any = 3
    for _ in range(2):
        len(str(value))
        value = make()
    return value


def uses_it_after_a_yield() -> Any:
    def give() -> Any:
        value = make()
        yield value
        yield type(value)

    return list(give())


def enters() -> Any:
    with contextlib.suppress(TypeError, AttributeError), make():
        pass


def deletes_a_part() -> Any:
    value = [make()]
    del value[0]
    return value


def raises_it() -> Any:
    with contextlib.suppress(TypeError):
        raise make()


USING: list[Callable[[], Any]] = [
    calls_a_function,
    calls_by_keyword,
    calls_with_all,
    calls_a_method,
    reads_an_attribute,
    asks_for_the_class,
    compares,
    adds,
    asks_for_truth,
    keeps_in_an_object,
    keeps_in_a_dict,
    keeps_in_a_global,
    keeps_in_a_closure,
    keeps_its_dict_first,
    has_two_names_for_its_dict,
    writes_to_one_of_two_dicts,
    looks_into_its_dict,
    writes_to_another_dict,
    makes_a_subclass_of_a_named_tuple,
    calls_methods_of_classes,
    calls_what_a_class_gives,
    calls_one_of_two,
    is_added_to_an_object,
    is_a_key,
    is_in_a_set,
    is_in_text,
    looks_into_its_frame,
    uses_it_in_a_handler,
    uses_it_in_the_next_round,
    uses_it_after_a_yield,
    enters,
    deletes_a_part,
    raises_it,
]


@pytest.mark.parametrize("function", PASSING, ids=lambda one: one.__name__)
def test_function_that_passes_a_result_on_is_known(function: Callable[[], Any]) -> None:
    answers.clear()
    function()
    if sys.version_info < (3, 11) and function in (returns_from_a_block, catches_errors):
        return  # where an exception goes is not in a table there, so nothing is proved
    assert answers
    assert all(answers)


@pytest.mark.parametrize("function", USING, ids=lambda one: one.__name__)
def test_function_that_uses_a_result_is_known(function: Callable[[], Any]) -> None:
    answers.clear()
    function()
    assert answers
    assert not any(answers)


def test_named_tuple_that_is_replaced_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name may become another class, and it may get a method that looks at its values."""
    for change in (lambda: None, lambda: monkeypatch.setitem(globals(), "Pair", lambda *values: values)):
        answers.clear()
        change()
        returns_a_named_tuple()
        assert answers == [isinstance(Pair, type), True]
    monkeypatch.undo()
    for name in ("__new__", "__init__"):
        monkeypatch.setattr(Named, name, lambda *values, **names: None, raising=False)
        answers.clear()
        returns_a_named_tuple()
        assert answers == [True, False]
        monkeypatch.undo()


def test_result_of_an_operator_is_not_followed() -> None:
    """The operator's own function passes it on; the one that used the operator is not asked about here."""
    seen: list[bool] = []

    class Adding:
        def __add__(self, other: Any) -> Any:
            frame = sys._getframe(1)
            seen.append(is_passed_on(frame))
            return Value()

    def use() -> Any:
        return Adding() + 3

    use()
    assert seen == [False]


def test_unknown_instructions_count_as_use() -> None:
    def use() -> Any:
        return [*make_list()]

    def make_list() -> Any:
        return [make()]

    def ask() -> Any:
        frame = sys._getframe(1)
        answers.append(is_passed_on(frame))
        return [Value()]

    answers.clear()
    use()
    assert answers == [True]
    answers.clear()
    assert len({*ask()}) == 1
    assert answers == [False]
