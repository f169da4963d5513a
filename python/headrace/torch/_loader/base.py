# SPDX-License-Identifier: Apache-2.0
"""The base of headrace's DataLoader and of the fallback: torch's loader, which takes, checks and keeps headrace's own
options. _loader.py and _fallback.py derive from it."""

from __future__ import annotations

import inspect
import multiprocessing
import operator
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from headrace import _options
from headrace._base import exception_text, program
from headrace._loader.both import passes
from headrace._loader.both import state as _state
from headrace._options import Options
from headrace._ranks import worker_count
from headrace.sampling._epoch import Last
from headrace.sampling._state import StateError
from headrace.sampling._windows import Windows
from headrace.torch._device import choose, move
from headrace.torch._loader.as_any import AsAnyLoader
from headrace.torch._own import classes, iterators, loaders, table
from headrace.torch._own.classes import is_plan
from headrace.torch._samplers.per_rank import PerRank
from headrace.torch._samplers.plan_sampler import PlanSampler

_T_co = TypeVar("_T_co", covariant=True)
_HEADRACES = (
    'headrace: "headrace" is a start method here too: it forks workers from a server that has imported the script'
)
# Attributes that frameworks copy: the options device and device_prefetch, and steps_per_epoch (_options/table.py).
_DEVICE, _STEPS = "_headrace_device", "_headrace_steps"
_POSITION = "_headrace_position"  # in the attributes of a copy
_NUMBERS = ("batch_size", "num_workers", "timeout", "prefetch_factor")


def _explain_words(error: Exception, arguments: Mapping[str, Any]) -> None:
    """Names the numbers that are strings, for example from a command line: torch's exception only compares a string
    with a number, or shows it without quotes."""
    for name in _NUMBERS:
        if isinstance(arguments.get(name), str):
            other = ', or "auto"' if name == "num_workers" else ""
            text = (
                f"headrace: {name} is a string, {arguments[name]!r}; give a number (argparse converts with type=int)"
                f"{other}"
            )
            exception_text.add_text(error, text)


def _with_number(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, tuple[Any, ...], dict[str, Any]]:
    """Returns whether num_workers is "auto", and the arguments of torch's loader with the number by rule instead."""
    name = "num_workers"
    if worker_count.is_auto(kwargs.get(name)):
        return True, args, {**kwargs, name: worker_count.by_rule()}
    place = next((i for i, one in enumerate(args[1:], 1) if worker_count.is_auto(one)), None)
    if place is None or list(inspect.signature(classes.DataLoader.__init__).parameters)[place + 1] != name:
        return False, args, kwargs
    return True, (*args[:place], worker_count.by_rule(), *args[place + 1 :]), kwargs


def check_continuable(dataset: Any) -> None:
    """Raises StateError for a DataPipe, because its loader has torch's iterator as it is."""
    if isinstance(dataset, classes.DataPipes):
        raise StateError(
            f"headrace: DataPipes have a state of their own, so a loader of a {type(dataset).__name__} cannot be "
            "continued; save the state of the DataPipe, or use a Dataset or an IterableDataset"
        )


def moved(loader: Any, iterator: Any) -> Any:
    """Returns one of torch's iterators of a loader, which moves its batches if the loader has the option device."""
    given = table.option(loader, "device")
    if given is None or iterator is None:
        return iterator
    device = choose.resolved(given)
    return iterators.change_each(iterator, lambda batch: move.move(batch, device))


class DataLoader(Options, classes.DataLoader[_T_co]):
    """torch.utils.data.DataLoader with headrace's own options as keyword arguments and attributes."""

    @_options.shown_with(classes.DataLoader.__init__)
    def __init__(
        self,
        *args: Any,
        arena_limit: int | None = Options.arena_limit,
        max_restarts: int = Options.max_restarts,
        rng: str = Options.rng,
        seed: int | None = Options.seed,
        on_bad_sample: str | Callable[[Any, Exception], str] = Options.on_bad_sample,
        retries: int = Options.retries,
        stall_after: float = Options.stall_after,
        on_stall: str = Options.on_stall,
        shutdown_timeout: float = Options.shutdown_timeout,
        on_changed: str = Options.on_changed,
        held_back: int = Options.held_back,
        snapshot_every_n_steps: int = Options.snapshot_every_n_steps,
        compare_ranks: bool = Options.compare_ranks,
        steps_per_epoch: int | None = Options.steps_per_epoch,
        threads: int | str = Options.threads,
        sample_threads: int = Options.sample_threads,
        cache: int | str | bool | None = Options.cache,
        freeze: bool = Options.freeze,
        repair: str | None = Options.repair,
        device: Any = Options.device,
        device_prefetch: int = Options.device_prefetch,
        record: str | os.PathLike[str] | None = Options.record,
        **kwargs: Any,
    ) -> None:
        options = _options.own_of(locals())
        if seed is not None:
            options["seed"] = _options.check_seed(seed)
        for name, value in options.items():
            if _options.is_given(name, value):  # a subclass may use the name of an option that is not given
                setattr(self, name, value)
        is_auto, args, kwargs = _with_number(args, kwargs)
        try:
            super().__init__(*args, **kwargs)
        except (TypeError, ValueError) as error:
            names = inspect.signature(super().__init__).parameters
            _explain_words(error, {**dict(zip(names, args, strict=False)), **kwargs})
            raise
        _options.check_own(options)
        if choose.parsed(device) is not None:
            vars(self)[_DEVICE] = device, device_prefetch
        if is_auto and not isinstance(self.dataset, (classes.IterableDataset, *classes.DataPipes)):
            self._use_auto_workers()
        self._use_per_rank()
        with _options.explained_as_attributes():
            _options.Settings.of(vars(self), {}, isinstance(self.dataset, classes.IterableDataset))
        if steps_per_epoch is not None:
            self._use_steps(steps_per_epoch, held_back)
        self._warm_up()

    def _use_steps(self, steps: int, held_back: int) -> None:
        """Gives the loader epochs of so many steps. They are not read from the attribute, because a subclass may use
        that name."""
        check_continuable(self.dataset)
        checked = _options.check_steps_per_epoch(steps, held_back, loaders.is_iterable(self))
        table.kept(self).position.windows = Windows(checked)
        vars(self)[_STEPS] = checked

    def _use_per_rank(self) -> None:
        """Checks the sampler of a rank. Frameworks recognise by the attribute `sampler` that batches were dealt."""
        for one in (self.sampler, self.batch_sampler):
            if isinstance(one, PerRank) and one.tail == "exact" and self.drop_last:
                raise ValueError(
                    "headrace: drop_last=True leaves samples out, but per_rank(tail='exact') is to give each one once; "
                    "leave out drop_last"
                )
        if isinstance(self.batch_sampler, PerRank):
            vars(self)["sampler"] = self.batch_sampler  # torch's class allows no assignment
        elif is_plan(self.batch_sampler):
            self.batch_sampler.check_dataset(self.dataset)  # type: ignore[union-attr]
            vars(self)["sampler"] = PlanSampler(self.batch_sampler)
        elif is_plan(self.sampler):
            raise ValueError("headrace: a Plan gives batches; pass it as batch_sampler, without batch_size and sampler")

    @property
    def multiprocessing_context(self) -> Any:
        """Returns the context that starts workers, or None for the interpreter's default."""
        return super().multiprocessing_context

    @multiprocessing_context.setter
    def multiprocessing_context(self, given: Any) -> None:
        if isinstance(given, str) and given == "headrace" and self.num_workers > 0:
            given = self._headrace_context()
        try:
            classes.DataLoader.multiprocessing_context.fset(self, given)  # type: ignore[attr-defined]
        except ValueError as error:
            if isinstance(given, str) and self.num_workers > 0:
                exception_text.add_text(error, _HEADRACES)
            raise

    def __iter__(self) -> Any:
        """Returns an iterator over an epoch."""
        windows = table.kept(self).position.windows
        begin = super().__iter__
        return begin() if windows is None else windows.begin(passes.Passes(AsAnyLoader(self), begin))

    # ---- the place in an epoch ----

    def state_dict(self) -> dict[str, str]:
        """Returns how far this loader is: after the batches that were delivered, or at the next epoch's beginning after
        the last one. (Of an iterable dataset without a state, the last one is not known before the loop has ended.) It
        can be called at any time, and starts no worker. Random numbers are drawn only at the end of an epoch, if the
        sampler draws some there.

        The dict has one key and a string, about 1 KiB, or up to 16 KiB with the states of generators. In order
        (in_order=True) it is the same on each rank. Raises StateError for a sampler or an iterable dataset whose own
        state_dict returns objects that a state cannot contain."""
        return _state.state_dict(AsAnyLoader(self))

    def load_state_dict(self, state: Any) -> None:
        """Lets the next iter() of this loader continue where the state was taken, with any number of workers. With the
        samplers of torch and of headrace, the number of ranks and the batch size may be others too: what is left of the
        epoch is divided again.

        Raises TypeError and ValueError (StateError) for a state that is damaged, newer, of another library or of
        another dataset, and then changes nothing."""
        check_continuable(self.dataset)
        _state.load(AsAnyLoader(self), state)

    def skip(self, steps: int) -> None:
        """Lets the next iter() begin `steps` batches later, without making them. Raises TypeError and ValueError."""
        check_continuable(self.dataset)
        table.kept(self).position.skip(AsAnyLoader(self), _options.check_count("steps", steps))

    @property
    def last(self) -> Last | None:
        """The batch that was delivered last, or None: `epoch`, `step` (from 0), `indices` (as the sampler gave them),
        `weights` (float32 tensor: 1 for each sample, 0 for one that only fills up the step) and `global_count` (samples
        of this step on all ranks, without those; None if headrace does not know the order)."""
        found = table.kept(self).position.last()
        return None if found is None else found._replace(weights=torch.tensor(found.weights))

    @property
    def steps_left(self) -> int | None:
        """How many batches the epoch has left, or None if that is not known."""
        return table.kept(self).position.steps_left(AsAnyLoader(self))

    def __len__(self) -> int:
        """Returns the number of batches of an epoch. If the epoch is continued with another number of ranks or another
        batch size: the batches that were done before, and those that are left."""
        position = table.kept(self).position
        if position.windows is not None:
            return position.windows.steps
        return position.length(AsAnyLoader(self), super().__len__())

    def __getstate__(self) -> dict[str, Any]:
        """Returns the attributes for a copy or a pickle, with the state that the loader continues next, and without the
        workers that persist: a copy that has them would begin its epochs with the iterator of the loader."""
        position = table.kept(self).position
        found = {name: value for name, value in vars(self).items() if name != table.NAME}
        if "_iterator" in found:
            found["_iterator"] = None
        is_new = position.next_start is None and position.windows is None
        return found if is_new else {**found, _POSITION: position.copy(0)}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        found = {name: value for name, value in attributes.items() if name != table.NAME}
        if _POSITION in found:
            table.kept(self).position = found.pop(_POSITION)
        elif _STEPS in found:  # a subclass has its own __getstate__
            table.kept(self).position.windows = Windows(found[_STEPS])
        vars(self).update(found)

    def _set_epoch(self, epoch: int) -> None:
        """Does what set_epoch of the loaders says."""
        position = table.kept(self).position
        number = operator.index(epoch) if position.windows is None else _options.check_count("epoch", epoch)
        position.set_epoch(AsAnyLoader(self), number)

    # ---- workers ----

    def _headrace_context(self) -> Any:
        """Returns the context that multiprocessing_context="headrace" asks for. In the base: multiprocessing's own fork
        server, or what replaces it in a frozen program."""
        return multiprocessing.get_context(program.frozen_method())

    def _use_auto_workers(self) -> None:
        """Takes num_workers="auto" for a map-style dataset. In the base, the number by rule is used."""

    def _warm_up(self) -> None:
        """Prepares what a new loader will need. The base does nothing."""
