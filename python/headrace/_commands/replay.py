# SPDX-License-Identifier: Apache-2.0
"""The command headrace replay: makes samples of a dataset in this process, to see why one fails."""

from __future__ import annotations

import argparse
import ast
import contextlib
import faulthandler
import importlib
import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace._base import lookup
from headrace._commands.common import Failed, positive, reports_failure, show, show_failed_output, users_part
from headrace._commands.target import load
from headrace._options import is_iterable_only, is_torchs_loader

_DESCRIPTION = """\
Makes samples of a dataset in the foreground: calls dataset[index] in this
process, without workers, and prints one line for each. The first one that
raises ends it, with the whole traceback and exit code 1.

SOURCE is one of
  module:name          a dataset; or a loader, for its dataset; or a function
                       that returns one of these when it is called without
                       arguments. The name may be dotted; modules in the current
                       directory can be imported.
  path/script.py:name  the same in a script; its main guard does not run
  path/data.pkl        a file that pickle.dump(dataset, file) has written.
                       Loading it can run any code: only load files that you
                       trust.

INDEX is an integer, another Python literal ('"a key"', '(1, 2)'), or a range
10:20, from 10 to 19. Of an iterable dataset it is how many items to take
first: 0 shows the first item, 10 the eleventh.
"""

_RANGE = re.compile(r"(-?\d+):(-?\d+)")
_MOST_ENTRIES = 8  # of a container, in the line that describes a sample
_MOST_LEVELS = 3


# ---- what is asked for ----


def _indices(text: str) -> Sequence[Any]:
    if match := _RANGE.fullmatch(text):
        indices = range(int(match[1]), int(match[2]))
        if not indices:
            raise argparse.ArgumentTypeError(
                f"the range {text} is empty: the second number must be larger, as in 10:20"
            )
        return indices
    try:
        return [ast.literal_eval(text)]
    except (ValueError, SyntaxError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither an integer nor a range such as 10:20 nor a Python literal; "
            f"a string key needs its own quotes: '\"{text}\"'"
        ) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "headrace replay", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", metavar="SOURCE", help="where the dataset is")
    parser.add_argument("indices", metavar="INDEX", nargs="+", type=_indices, help="which samples to make")
    parser.add_argument("--seed", type=int, help='seed the generators before each sample as rng="sample" does')
    parser.add_argument("--epoch", type=int, help="the epoch that --seed is used for (default: 0)")
    parser.add_argument(
        "--draw", type=int, help="how often the sampler gave the index before in the epoch, for --seed (default: 0)"
    )
    parser.add_argument("--pdb", action="store_true", help="start a debugger at the line that raises")
    parser.add_argument("--repeat", type=positive, default=1, metavar="N", help="make all samples N times")
    return parser


# ---- the dataset ----


class _Items:
    """Gives the items of an iterable dataset by number, in one pass as long as numbers rise. `taken` counts them."""

    def __init__(self, dataset: Iterable[Any]) -> None:
        self._dataset = dataset
        self._iterator = iter(dataset)
        self.taken = 0

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, int) or index < 0:
            raise Failed(f"index {index!r}: the dataset is iterable, and its items have the numbers 0, 1, 2, ...")
        if index < self.taken:
            if self._iterator is self._dataset:
                raise Failed(
                    "the dataset is an iterator, which gives each item once: ask for rising numbers, each once"
                )
            self._iterator = iter(self._dataset)
            self.taken = 0
        for item in self._iterator:
            self.taken += 1
            if self.taken > index:
                return item
        raise Failed(f"the dataset ends after {self.taken} items: there is no item {index}")


def _is_loader(value: Any) -> bool:
    """Returns True for loaders. A `dataset` attribute is not enough: subsets and wrapped datasets have one too."""
    has_parts = lookup.has_attribute(value, "dataset") and lookup.has_attribute(value, "sampler")
    return is_torchs_loader(value) or (has_parts and not lookup.has_special(value, "__getitem__"))


def dataset_of(value: Any, source: str) -> Any:
    """Returns what has samples by index: the value, the result of calling it, or the dataset of that loader."""
    is_dataset = lookup.has_special(value, "__getitem__") or lookup.has_special(value, "__iter__")
    if isinstance(value, type) or (callable(value) and not is_dataset):
        value = value()
    if _is_loader(value):
        value = value.dataset
    if is_iterable_only(value):
        return _Items(value)
    if not lookup.has_special(value, "__getitem__"):
        raise Failed(f"{source} gives no dataset: {type(value).__name__} has neither __getitem__ nor __iter__")
    return value


# ---- samples ----

_Get = Callable[[Any], tuple[Any, float]]


def _describe(value: Any, level: int = 0) -> str:
    """Returns the type, with shape and dtype of arrays, and the same for the items of a container."""
    try:
        return _details(value, level)
    except Exception:  # raised by the sample: by its shape or its length, or it is a number of 5,000 digits
        return type(value).__name__


def _details(value: Any, level: int) -> str:
    name = type(value).__name__
    if lookup.has_attribute(value, "shape") and lookup.has_attribute(value, "dtype"):
        return f"{name} {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"{name} {{{_describe_all(value.items(), len(value), level)}}}"
    if isinstance(value, (list, tuple)):
        return f"{name} ({_describe_all(((None, item) for item in value), len(value), level)})"
    if isinstance(value, (str, bytes)):
        return f"{name} of {len(value)}"
    if isinstance(value, (int, float)):
        return f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value!r}"
    return name


def _describe_all(entries: Iterable[tuple[Any, Any]], count: int, level: int) -> str:
    if level == _MOST_LEVELS:
        return f"{count} entries"
    words = [
        ("" if key is None else f"{key}: ") + _describe(value, level + 1)
        for key, value in itertools.islice(entries, _MOST_ENTRIES)
    ]
    if count > _MOST_ENTRIES:
        words.append(f"{count - _MOST_ENTRIES} more")
    return ", ".join(words)


def _length_passed(dataset: Any, index: Any, error: BaseException) -> int | None:
    """Returns the length of the dataset if the error is that the index is out of its range; else None."""
    if not isinstance(error, (IndexError, KeyError)) or not isinstance(index, int) or isinstance(dataset, Mapping):
        return None
    try:
        length = len(dataset)
    except Exception:  # the dataset has no length, or cannot give it
        return None
    return None if -length <= index < length else length


def _failure(dataset: Any, index: Any, error: BaseException) -> Failed:
    if isinstance(error, KeyboardInterrupt):
        return Failed(None, code=130)
    if (length := _length_passed(dataset, index, error)) is not None:
        return Failed(f"index {index} is out of range: the dataset has {length} samples")
    if isinstance(dataset, _Items) and dataset.taken < index:
        return Failed(f"item {dataset.taken} raised, on the way to item {index}", code=1)
    return Failed(None, code=1)


def _make(dataset: Any, index: Any, get: _Get) -> None:
    print(f"{index!r}  ", end="", flush=True)  # printed now, because the sample may hang or crash
    start = time.perf_counter()
    try:
        sample, seconds = get(index)
        description = _describe(sample)
    except Failed:
        print("does not exist", flush=True)
        raise
    except BaseException as error:
        print(f"raised {type(error).__name__}  {time.perf_counter() - start:.6f} s", flush=True)
        raise _failure(dataset, index, error) from error
    print(f"{description}  {seconds:.6f} s", flush=True)


def _getter(dataset: Any, seed: int | None, epoch: int, draw: int) -> _Get:
    """Returns a function that makes a sample, with a seed as SampleMaker does, and returns it with its seconds."""

    def get(index: Any) -> tuple[Any, float]:
        start = time.perf_counter()
        return dataset[index], time.perf_counter() - start

    if seed is None:
        return get
    from headrace._samples.own_generators import OwnGenerators, roots_of
    from headrace._samples.random_numbers import seed_all
    from headrace._samples.sample_generators import SampleInWork

    with contextlib.suppress(ImportError):  # a worker imports it, and seeds it before the first sample
        importlib.import_module("numpy.random")
    own = OwnGenerators(roots_of(dataset, None))

    def get_seeded(index: Any) -> tuple[Any, float]:
        own.seed(seed_all(seed, epoch, index, draw))
        with SampleInWork(seed, epoch, index, draw):
            return get(index)

    def get_twice_if_late(index: Any) -> tuple[Any, float]:
        """Makes the sample again if the dataset has made a generator only when it was asked for it."""
        try:
            made = get_seeded(index)
        except Exception:
            if not own.look():
                raise
        else:
            if not own.has_made():
                return made
        return get_seeded(index)

    return get_twice_if_late


def _replay(asked: argparse.Namespace) -> None:
    value = load(asked.source)
    with reports_failure(f"{asked.source} gives no dataset; headrace calls it without arguments if it can be called"):
        dataset = dataset_of(value, asked.source)
    if asked.seed is not None and isinstance(dataset, _Items):
        raise Failed("--seed: samples of an iterable dataset do not have their own random numbers")
    get = _getter(dataset, asked.seed, asked.epoch or 0, asked.draw or 0)
    for _ in range(asked.repeat):
        for index in itertools.chain(*asked.indices):
            _make(dataset, index, get)


# ---- what the user sees when something fails ----


def _standard_debugger() -> Any:
    """Returns pdb. It imports `code` and `cmd`; if the project has modules with these names, it still gets Python's."""
    path, names = sys.path, ["code", "cmd"]
    own = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path = [os.path.dirname(os.__file__)]
    try:
        return importlib.import_module("pdb")
    finally:
        sys.path = path
        sys.modules.update(own)


def _post_mortem(error: BaseException) -> None:
    """Starts the debugger that PYTHONBREAKPOINT names, if it has a post_mortem; else pdb."""
    debugger = os.environ.get("PYTHONBREAKPOINT", "").rpartition(".")[0]
    try:
        debug = importlib.import_module(debugger).post_mortem
    except (ImportError, ValueError, AttributeError):
        debug = _standard_debugger().post_mortem
    debug(users_part(error) or error.__traceback__)


def _report(failed: Failed, debug: bool) -> int:
    if failed.__cause__ is not None:
        show(failed.__cause__)
    if failed.text:
        print(f"headrace replay: {failed.text}", file=sys.stderr)
    if failed.__cause__ is not None and debug:
        _post_mortem(failed.__cause__)
    return failed.code


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit code: 0, 1 if a sample raises, 2 if something else is wrong, 130 after an
    interrupt."""
    parser = _parser()
    asked = parser.parse_intermixed_args(arguments)
    for name in ("epoch", "draw"):
        if getattr(asked, name) is not None and asked.seed is None:
            parser.error(f"--{name} is only used with --seed")
    with contextlib.suppress(RuntimeError, OSError, ValueError, AttributeError):  # there is no stderr
        faulthandler.enable()
    try:
        _replay(asked)
        return 0
    except Failed as failed:
        return _report(failed, asked.pdb)
    except KeyboardInterrupt as error:
        show(error)
        return 130
    except OSError as error:  # from a print; exceptions of the user's code are Failed
        show_failed_output(error, "headrace replay")
        return 1
