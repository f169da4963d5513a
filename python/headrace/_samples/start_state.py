# SPDX-License-Identifier: Apache-2.0
"""Describes where a worker starts in its dataset. The crew sends it to a new worker, and at each epoch to all
workers."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace._base import growth

installs_images = False  # images.install() is in force in this process


@dataclass
class StartState:
    """Says where a worker starts in its dataset. The first worker starts at the beginning, so it has defaults.

    epoch: how many epochs the iterator has started before. banned: samples, or whole batches, that are not tried again,
    and why; the keys are random_numbers.text_of their indices. state: the state_dict of an iterable dataset, pickled,
    to be loaded before the dataset is iterated. made: batches that the dataset had given when that state was taken.
    discard: batches after those which an earlier worker has made already; they are made again and discarded.
    digest: see headrace._loader.worker.repeated; of the batches that are made again.
    alone: so many tasks are made without threads first (sample_threads), because one of their samples has killed a
    worker, and it is not known which.
    is_ended: the iterable dataset has no more for this worker.
    epochs: what set_epoch has changed in the trainer's dataset, for workers that persist (see dataset_epochs).
    look_s: see headrace._base.growth. installs_images: images.install() is in force in the trainer.
    """

    epoch: int = 0
    banned: dict[str, str] = field(default_factory=dict)
    state: bytes | None = None
    made: int = 0
    discard: int = 0
    digest: tuple[int, int] | None = None
    alone: int = 0
    is_ended: bool = False
    epochs: dict[tuple[str | int, ...], int] = field(default_factory=dict)
    look_s: float | None = field(default_factory=lambda: growth.look_s)
    installs_images: bool = field(default_factory=lambda: installs_images)
