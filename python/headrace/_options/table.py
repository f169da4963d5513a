# SPDX-License-Identifier: Apache-2.0
"""A row for each of headrace's own options: default, check, texts, and who reads it. Both loaders inherit them.

From the table come the attributes of both loaders, the defaults and checks of their arguments, the paragraphs of their
docstrings and docs/options.md. A new option is a row of `Options`, and a keyword in the two `__init__` functions that
type checkers read. This room needs no extension, because headrace.torch also checks the options if the engine cannot
run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace._options import checks


class Keeps(NamedTuple):
    """The attribute in which a constructor keeps an option that a change of the option's attribute must not touch, and
    the place in it if that is a tuple."""

    attribute: str
    place: int | None = None


class Option(NamedTuple):
    """A row of the table. `text` describes the option for users; `torch` and `numpy` are what only one of
    headrace.torch.DataLoader and headrace.Loader needs in addition. iterable: "", or the error for an iterable dataset;
    by_state: not for one that is continued by its state. to_workers: False if only the trainer reads the option."""

    default: Any
    check: Callable[[str, Any], Any]
    text: str
    torch: str = ""
    numpy: str = ""
    iterable: str = ""
    by_state: bool = False
    keeps: Keeps | None = None
    to_workers: bool = True


def _row(default: Any, check: Callable[[str, Any], Any], text: str, **others: Any) -> Any:
    return Option(default, check, text, **others)  # typed as Any: the attribute has the type of the option's value


class Options:
    """The table of headrace's own options, a row for each. Both loaders inherit the options as attributes, with the
    defaults as values."""

    arena_limit: int | None = _row(
        None,
        checks.check_arena_limit,
        """maximum shared memory in bytes, 64 KiB or more, for the batches that workers make and that you keep.
        None: half of the available memory. A batch that does not fit raises MemoryError. The attribute may be set
        later and is used for the next iteration, but not while persistent workers run.""",
        torch="If it is None and headrace.torch.install() was given a limit, that limit is used.",
        to_workers=False,
    )
    max_restarts: int = _row(
        0,
        checks.check_count,
        """how many dead workers an iterator replaces. A new worker makes the lost batches again.
        An iterable dataset is continued by its state_dict and load_state_dict, or from its start if it has a true
        attribute `replayable` (in the instance or its class; an answer of `__getattr__` does not count). Otherwise the
        death of its worker raises. A forked worker that hangs before it could start is always replaced, and is not
        counted here. If a worker ends before its first task in the same way as the worker that it replaced, it is not
        replaced again.""",
        torch="With 0, the death of a worker raises RuntimeError, as with torch.",
        numpy="The default is 3.",
    )
    rng: str = _row(
        "worker",
        checks.one_of("worker", "sample"),
        """"worker": the random numbers of a worker continue from sample to sample. "sample": random, numpy and
        torch (if it is used), and generators that the dataset, its transforms and collate_fn have of their own, are
        seeded again for each sample, by seed, epoch, index, and how often the index was drawn before, so that a sample
        does not depend on the worker that makes it. A generator that cannot be seeded is named in a warning.""",
        torch="""With "sample" the dataset's __getitem__ is called for each sample, and its __getitems__ is not
        used.""",
        iterable='rng="sample" needs a map-style dataset (one with __getitem__), but this dataset is iterable',
    )
    seed: int | None = _row(
        None,
        checks.check_optional_seed,
        """seed of rng="sample" and of on_bad_sample="refill".""",
        torch="With None it is the seed that torch draws from `generator` for each iterator.",
        numpy="It is also the seed of shuffling, and of random and numpy in the workers. With None it is drawn once.",
        to_workers=False,
    )
    on_bad_sample: str | Callable[[Any, Exception], str] = _row(
        "raise",
        checks.check_bad_sample,
        """what to do if a sample raises an exception. "raise": raise it. "skip": leave the sample out, so that
        its batch is smaller. "refill": use another sample. Or a function (index, exception) that returns one of these
        words. The other sample is one that the sampler gave earlier in this epoch, chosen by seed, epoch and position,
        out of ten. If no sample was given yet, it is the next good one, out of a hundred. In an iterable dataset it is
        the next sample, and `index` counts the samples of the worker. A map-style dataset keeps its number of batches.
        Only exceptions of class Exception are handled; others, such as SystemExit, end the run, with any number of
        workers. Bad samples are listed at the end of the epoch and in report().""",
    )
    retries: int = _row(
        0,
        checks.check_count,
        """how often a sample is made again if an I/O error was raised that may pass:
        EIO, ESTALE, timeouts, connections that were reset or refused or that ended in the middle of an answer, and the
        like; an answer with status 429 or 5xx (http.client, urllib, urllib3, requests, httpx, aiohttp, botocore, and
        the clients of Google and Azure are known); an exception that one of these led to; a group of such exceptions.
        Before the first further try it waits 0.1 s, before each other one four times as long, up to 10 s, and
        up to half less or more. If all fail, on_bad_sample decides. A warning at the end of the epoch lists the
        samples, and report() counts the tries as "retried". With rng="worker" a try continues with the random numbers
        of the one before; with rng="sample" it has the same. An iterable dataset needs state_dict and
        load_state_dict: it goes back to the state before the batch (with workers, see snapshot_every_n_steps), and what
        it gave after that is drawn again and dropped, with the random numbers of the first time. Before its first
        sample an epoch has no state; then the dataset is iterated again, if it has a true attribute `replayable`, or is
        of Hugging Face's datasets. An iterable dataset without a state, or with a shuffle buffer that is not in it, is
        refused: after an error its iterator may go on behind the sample that failed, which would be lost without a
        word. Try again in the dataset, where it reads.""",
        torch="The dataset's __getitem__ is called for each sample, and its __getitems__ is not used.",
        iterable="retries= needs a map-style dataset (one with __getitem__), or an iterable one that is continued by "
        "state_dict and load_state_dict, without a shuffle buffer that is not in its state. This dataset is iterable, "
        "and after an error its iterator may give the next sample instead of the one that failed; try again where the "
        "dataset reads",
        by_state=True,
    )
    stall_after: float = _row(
        30.0,
        checks.check_stall_after,
        """if the loop waits and no worker makes progress for this number of seconds, the stacks of the worker
        that it waits for are shown.""",
    )
    on_stall: str = _row(
        "wait",
        checks.one_of("wait", "raise", "restart"),
        """what to do after stall_after seconds. "wait": continue to wait. "raise": raise RuntimeError.
        "restart": kill and replace the worker. With "wait" and "raise", a worker that is stopped or in a debugger is
        only reported.""",
    )
    shutdown_timeout: float = _row(
        5.0,
        checks.check_shutdown_timeout,
        """closing a loader kills every worker that has not ended after this number of seconds, and returns.""",
    )
    on_changed: str = _row(
        "error",
        checks.one_of("error", "finish", "next_epoch"),
        """what load_state_dict does if the dataset has another number of samples than the state. "error": raise
        ValueError. "finish": end this epoch with the old samples, which are the first ones; the next epoch has
        all. "next_epoch": leave the rest of the epoch out.""",
    )
    held_back: int = _row(
        0,
        checks.check_count,
        """how many batches a framework has taken ahead of the training: state_dict counts so many of those that
        were delivered last as not delivered. Needs in_order=True.""",
    )
    snapshot_every_n_steps: int = _row(
        1,
        checks.check_steps,
        """for an iterable dataset with state_dict and load_state_dict: each worker takes its state
        after so many batches. A loader that is continued begins there, and makes the batches after it again.""",
    )
    compare_ranks: bool = _row(
        True,
        checks.check_flag,
        """False: what this loader reads is not compared with what other ranks read. Set it in all ranks, so
        that none waits for the others.""",
    )
    steps_per_epoch: int | None = _row(
        None,
        checks.check_optional_steps,
        """an epoch has so many steps, and the next one goes on where it ended: the passes over the sampler,
        or over an iterable dataset, follow each other without a gap, whatever N is. Each pass is what an epoch
        is without the option, and has its own number, which rng="sample" and `set_epoch` of the sampler get.
        Set it when the loader is made; a change of the attribute has no effect. Not for install().""",
        keeps=Keeps("_headrace_steps"),
        to_workers=False,
    )
    threads: int | str = _row(
        1,
        checks.check_threads,
        """how many threads of each worker make the images of headrace.images.native, from 1 to 256; with
        num_workers=0, of this process. "auto": the cores that this process may use, divided by the workers of all
        local ranks.""",
        numpy="It has no effect here, because images.native makes torch's tensors.",
    )
    sample_threads: int = _row(
        1,
        checks.check_sample_threads,
        """how many samples of a map-style dataset each worker, or with num_workers=0 this process, makes at a
        time, each in a thread: for datasets that wait for a disk, a network or a database. In a worker, samples
        of the next batches that it was given are begun early, so give a `prefetch_factor` with which batch_size
        * prefetch_factor is not less. Batches, their order and exceptions are as without threads. Several
        threads call the dataset: open files, generators of random numbers and the like that they would share
        are refused where they are found, and random numbers come from headrace.sample_generator. See
        docs/guides/slow.md.""",
        torch="A dataset with a __getitems__ of its own is refused.",
        iterable="sample_threads= needs a map-style dataset (one with __getitem__), but this dataset is iterable: "
        "leave out sample_threads, and let the dataset's __iter__ read ahead in threads of its own",
    )
    cache: int | str | bool | None = _row(
        None,
        checks.check_cache,
        """keep the samples of a map-style dataset in memory that all workers, ranks and jobs of this machine
        share, up to so many bytes ("40G"; "auto": what the machine has room for), so that each is made once: see
        headrace.cache_samples. Random steps have to run behind the cache: give them to
        headrace.cache_samples(dataset, transform=...). `report()` has what was kept under "cache".""",
        iterable="cache= needs a map-style dataset (one with __getitem__ and __len__), but this dataset is iterable",
    )
    freeze: bool = _row(
        False,
        checks.check_flag,
        """before the workers start, replace the large containers of the dataset, in place, by views of frozen data
        that all processes share: see headrace.freeze_attributes.""",
    )
    repair: str | None = _row(
        None,
        checks.check_repair,
        """"auto": if an object cannot be pickled for the workers, make it again in them where headrace knows how
        (locks, loggers, views, lambdas, files opened for reading), and list it in a warning. None: raise the
        exception.""",
    )
    device: Any = _row(
        None,
        checks.check_device,
        """"cuda" or "cuda:N": batches arrive on this GPU, so `.to(device)` of them does nothing, and pin_memory has
        no effect. None or "cpu": they stay on the CPU. Tensors in tuples, lists, dicts and named tuples are copied
        while the GPU computes, from memory that it reads directly; any other object with a method `to` is moved by
        that. Set it when the loader is made; a change of the attribute has no effect. Not for install(). More is in
        docs/device.md.""",
        numpy="It has to be None here: NumPy's arrays are on the CPU.",
        keeps=Keeps("_headrace_device", 0),
        to_workers=False,
    )
    device_prefetch: int = _row(
        1,
        checks.check_count,
        """with `device`: how many batches are sent to the GPU before the loop asks for them. Each
        takes the memory of a batch there. 0: each batch is sent when the loop asks for it.""",
        numpy="It has no effect here.",
        keeps=Keeps("_headrace_device", 1),
        to_workers=False,
    )
    record: str | os.PathLike[str] | None = _row(
        None,
        checks.check_record,
        """a folder in which another process records what this loader does, for `headrace report`; it is made if it is
        missing. HEADRACE_RECORD in the environment does it for all loaders of a script. More is in docs/seeing.md.""",
        to_workers=False,
    )


class ArenaLimit:
    """The attribute arena_limit of a loader: it is checked when it is set, and refused if it would have no effect.

    The value is in the loader's __dict__ under the same name, because Lightning makes new loaders from what is there.
    """

    def __get__(self, loader: Any, owner: object = None) -> int | None:
        return None if loader is None else vars(loader).get("arena_limit")

    def __set__(self, loader: Any, limit: int | None) -> None:
        checks.check_limit(limit)
        if vars(loader).get("_iterator") is not None:
            raise ValueError("arena_limit should not be set while persistent workers run; create a new loader")
        vars(loader)["arena_limit"] = limit


TABLE: dict[str, Option] = {name: row for name, row in vars(Options).items() if isinstance(row, Option)}
DEFAULTS = {name: row.default for name, row in TABLE.items()}
for _name, _default in DEFAULTS.items():
    setattr(Options, _name, _default)
Options.arena_limit = ArenaLimit()  # type: ignore[assignment]
