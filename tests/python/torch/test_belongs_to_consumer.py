# SPDX-License-Identifier: Apache-2.0
"""A batch belongs to the consumer, who may write into it, keep it and pass it on, in any thread, for any time."""

from __future__ import annotations

import copy
import gc
import io
import multiprocessing
import os
import pickle
import queue
import random
import threading
from typing import Any

import datasets as d
import numpy as np
import pytest
import torch
from compare import describe
from loaders import LOADERS, METHODS, Headrace, Torch, only_headrace
from processes import private_bytes, shared_bytes, until

MB = 1 << 20


def forked(kind: Any, dataset: Any, **options: Any) -> Any:
    options.setdefault("num_workers", 1)
    options.setdefault("multiprocessing_context", "fork")
    return kind(dataset, **options)


def is_image(batch: torch.Tensor, index: int) -> bool:
    return bool((batch == index).all())


def consume(queue_in: Any, queue_out: Any) -> None:
    """Runs in another process: checks a received batch after the sender has freed its own."""
    torch.set_num_threads(1)  # a forked child of a process with OpenMP threads must not start its own
    for _ in range(3):
        image, labels = queue_in.get()
        queue_out.put((image.unique().tolist(), labels.tolist()))


@pytest.mark.parametrize("method", METHODS)
def test_a_consumer_may_keep_every_batch(method: str) -> None:
    kept = [
        list(kind(d.Images(120), 2, num_workers=1, multiprocessing_context=method, prefetch_factor=2))
        for kind in (Headrace, Torch)
    ]
    assert describe(kept[0]) == describe(kept[1])


@LOADERS
def test_writing_into_a_batch_alters_no_other(kind: Any) -> None:
    kept = []
    for image, labels in forked(kind, d.Images(60), batch_size=2, num_workers=2):
        image.add_(1000)
        labels.mul_(-1)
        kept.append((image, labels))
    for number, (image, labels) in enumerate(kept):
        first, second = 2 * number, 2 * number + 1
        assert is_image(image[0], 1000 + first) and is_image(image[1], 1000 + second)
        assert labels.tolist() == [-first, -second]


@LOADERS
def test_numpy_batches_may_be_written_and_grown(kind: Any) -> None:
    dataset = d.Zoo(["large numpy", "numpy i4", "large numpy"])
    first, small, second = list(forked(kind, dataset, batch_size=None, collate_fn=d.identity))
    assert first.flags.writeable and small.flags.writeable
    first[...] = -1
    assert second.ravel()[5] == 5
    assert np.concatenate([small, small]).shape == (4, 3)


READ_ONLY = np.arange(20_000.0)
READ_ONLY.flags.writeable = False


@only_headrace
@pytest.mark.parametrize(
    "batch",
    [
        {"array": READ_ONLY, "odd": {1}},
        {"array": READ_ONLY, "again": READ_ONLY},
        {"array": np.asfortranarray(READ_ONLY.reshape(100, 200)), "odd": {1}},
        {"array": READ_ONLY[::2], "odd": {1}},
        {"array": np.frombuffer(b"abcdefgh", "i4"), "odd": {1}},
        {"array": READ_ONLY, "tensor": torch.arange(10.0), "odd": {1}},
    ],
    ids=["pickled", "twice", "fortran", "strided", "small", "with a tensor"],
)
def test_a_read_only_array_arrives_as_one_that_may_be_written(batch: Any) -> None:
    (arrived,) = forked(Headrace, [0], batch_size=1, collate_fn=lambda _: batch)
    assert arrived["array"].flags.writeable
    assert arrived["array"].dtype == batch["array"].dtype and (arrived["array"] == batch["array"]).all()
    arrived["array"][0] = 5
    assert arrived.get("again", arrived["array"]) is arrived["array"]
    assert (arrived.get("tensor", batch.get("tensor")) is None) == ("tensor" not in batch)


class Wraps(d.Squares):
    """Counts on beyond its end."""

    def __getitems__(self, indices: Any) -> list[Any]:
        indices %= len(self)
        return [self[int(index)] for index in indices]


@LOADERS
@pytest.mark.skipif(pickle.DEFAULT_PROTOCOL >= 5, reason="what was read-only arrives so by protocol 5, as with torch")
def test_worker_may_write_to_indices_of_a_read_only_array(kind: Any) -> None:
    indices = np.arange(8, 14)
    indices.flags.writeable = False
    batches = list(forked(kind, Wraps(10), batch_sampler=[indices]))
    assert [index.tolist() for index, _ in batches] == [[8, 9, 0, 1, 2, 3]]


@LOADERS
def test_a_default_device_of_the_consumers_is_not_the_batchs(kind: Any) -> None:
    """A batch that is pickled, and one that is not."""
    for collate_fn in (lambda samples: [torch.stack(samples), {1}], None):
        batches = iter(forked(kind, list(torch.arange(8.0)), batch_size=4, collate_fn=collate_fn))
        with torch.device("meta"):
            first, second = batches
        received = [batch[0] if collate_fn else batch for batch in (first, second)]
        assert [batch.tolist() for batch in received] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@LOADERS
def test_a_batch_is_an_ordinary_tensor(kind: Any) -> None:
    images = [image for image, _ in forked(kind, d.Images(8), batch_size=2)]
    image = images[0]
    assert image.data_ptr() % 64 == 0 or kind is Torch
    assert image.numpy().flags.writeable
    image.numpy()[0, 0, 0] = 77
    assert image[0, 0, 0] == 77
    assert torch.from_dlpack(image)[0, 0, 0] == 77
    assert image.float().requires_grad_().sum().requires_grad
    saved = io.BytesIO()
    torch.save(image, saved)
    saved.seek(0)
    assert torch.equal(torch.load(saved), image)
    assert torch.equal(copy.deepcopy(image), image)
    assert torch.equal(pickle.loads(pickle.dumps(image)), image)
    view = image.view(-1)[5:9]
    del image
    assert view.tolist() == [0, 0, 0, 0]
    moved = images[1].share_memory_()
    assert moved.is_shared() and is_image(moved[0], 2)
    images[2].set_()
    assert images[2].numel() == 0
    assert is_image(images[3][1], 7)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@LOADERS
def test_a_batch_outlives_its_iterator_its_loader_and_the_epoch(kind: Any, method: str) -> None:
    loader = kind(d.Images(40), 2, num_workers=1, multiprocessing_context=method)
    iterator = iter(loader)
    kept = [next(iterator)[0] for _ in range(5)]
    del iterator
    for image, _ in loader:
        image.fill_(-1)
    assert all(is_image(kept[n][1], 2 * n + 1) for n in range(5))
    del loader, image
    gc.collect()
    assert all(is_image(kept[n][0], 2 * n) for n in range(5))
    kept[2].zero_()
    assert is_image(kept[1][0], 2) and is_image(kept[3][0], 6)


@LOADERS
def test_a_batch_outlives_the_next_epoch_of_persistent_workers(kind: Any) -> None:
    loader = forked(kind, d.Images(40), batch_size=2, persistent_workers=True)
    kept = [image for image, _ in loader][::3]
    for _ in range(3):
        for image, _ in loader:
            image.fill_(-1)
    assert all(is_image(image[0], 6 * n) for n, image in enumerate(kept))


@LOADERS
def test_batches_may_be_released_by_other_threads_in_any_order(kind: Any) -> None:
    shuffler = random.Random(5)
    handed: queue.SimpleQueue[Any] = queue.SimpleQueue()
    wrong: list[int] = []

    def hold() -> None:
        mine: list[tuple[torch.Tensor, int]] = []
        while True:
            item = handed.get()
            if item is None:
                break
            mine.append(item)
            del item
            if len(mine) > 8:
                image, number = mine.pop(shuffler.randrange(len(mine)))
                if not is_image(image, number):
                    wrong.append(number)
                del image
        wrong.extend(number for image, number in mine if not is_image(image, number))

    threads = [threading.Thread(target=hold) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        for image, number in forked(kind, d.Images(300), batch_size=None, num_workers=2):
            handed.put((image, number))
            del image
    for _ in threads:
        handed.put(None)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []


@LOADERS
def test_forked_child_reads_a_kept_batch_after_100_more(kind: Any) -> None:
    iterator = iter(
        forked(kind, d.Images(150, side=128), batch_size=2, prefetch_factor=2, sampler=list(range(150)) * 2)
    )
    for _ in range(5):
        next(iterator)
    kept = [next(iterator)[0] for _ in range(4)]
    go_read, go_write = os.pipe()
    answer_read, answer_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(go_write)
            os.read(go_read, 1)
            good = all(is_image(kept[n][k], 10 + 2 * n + k) for n in range(4) for k in range(2))
            os.write(answer_write, b"good" if good else b"bad")
        finally:
            os._exit(0)
    os.close(go_read)
    os.close(answer_write)
    del kept
    for _ in range(100):
        next(iterator)[0].fill_(-5)
    os.close(go_write)
    with os.fdopen(answer_read, "rb") as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    assert answer == b"good"


@LOADERS
def test_parent_write_to_a_shared_batch_reaches_no_other_batch(kind: Any) -> None:
    """The child writes into what it inherited while the parent goes on: no delivered batch shows it."""
    iterator = iter(forked(kind, d.Images(200, side=128), batch_size=2, prefetch_factor=2))
    kept = [next(iterator)[0] for _ in range(3)]
    go_read, go_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(go_write)
            os.read(go_read, 1)
            for image in kept:
                image.fill_(-9)
        finally:
            os._exit(0)
    os.close(go_read)
    del kept
    later = [next(iterator)[0] for _ in range(20)]
    os.close(go_write)
    os.waitpid(child, 0)
    later += [image for image, _ in iterator]
    assert all(is_image(image[0], 6 + 2 * n) for n, image in enumerate(later))


@LOADERS
def test_a_kept_batch_is_read_in_another_loaders_worker(kind: Any) -> None:
    event = multiprocessing.get_context("fork").Event()
    iterator = iter(forked(kind, d.Images(250, side=128), batch_size=2, prefetch_factor=2))
    kept = [next(iterator)[0] for _ in range(3)]
    second = iter(forked(kind, d.Held(kept, event), batch_size=None))
    del kept
    gc.collect()
    for _ in range(100):
        next(iterator)[0].fill_(-5)
    event.set()
    assert list(second) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("method", ["fork", "spawn"])
@LOADERS
def test_a_batch_passes_through_a_multiprocessing_queue(kind: Any, method: str) -> None:
    context = multiprocessing.get_context(method)
    there, back = context.Queue(), context.Queue()
    consumer = context.Process(target=consume, args=(there, back), daemon=True)
    consumer.start()
    iterator = iter(forked(kind, d.Images(60, side=128), batch_size=2))
    answers = []
    for _ in range(3):
        there.put(next(iterator))
        answers.append(back.get(timeout=100))
        for _ in range(5):
            next(iterator)[0].fill_(-1)
    assert answers == [([n, n + 1], [n, n + 1]) for n in (0, 12, 24)]
    consumer.join(60)
    assert consumer.exitcode == 0
    for one in (there, back):
        one.close()
        one.join_thread()


@LOADERS
def test_kept_labels_of_many_image_batches_keep_no_images(kind: Any) -> None:
    prefetched = 2 * 2 * 2 * MB  # 2 workers, 2 batches each, of 2 MiB
    loader = forked(kind, d.Images(16_000, side=256), batch_size=8, num_workers=2)
    iterator = iter(loader)
    me = os.getpid()
    labels, private, peak = [], 0, 0
    for number, (image, label) in enumerate(iterator):
        assert image.nbytes == 2 * MB
        labels.append(label)
        if number == 20:
            private = private_bytes()
        if number % 50 == 49:
            peak = max(peak, shared_bytes([me, *(worker.pid for worker in iterator._workers)]))
    assert len(labels) == 2000 and torch.cat(labels).tolist() == list(range(16_000))
    assert peak < 4 * prefetched, f"{peak / MB:.0f} MiB shared"  # all images: 4,000 MiB
    grown = private_bytes() - private
    assert grown < 32 * MB, f"{grown / MB:.0f} MiB private; {loader.report()['copied']} batches were copied"


@LOADERS
def test_memory_of_kept_rows_is_freed_with_the_last_row(kind: Any) -> None:
    before = shared_bytes([os.getpid()])
    kept = [image[:1] for image, _ in forked(kind, d.Images(160, side=128), batch_size=4)]
    assert all(is_image(row, 4 * n) for n, row in enumerate(kept))
    del kept
    gc.collect()
    assert until(lambda: shared_bytes([os.getpid()]) - before < 2 * MB)


@pytest.mark.parametrize("batches", [1, 60])
@LOADERS
def test_the_shared_memory_comes_back_when_all_is_released(kind: Any, batches: int) -> None:
    before = shared_bytes([os.getpid()])
    iterator = iter(forked(kind, d.Images(400, side=256), batch_size=4))
    kept = [next(iterator)[0].fill_(n) for n in range(batches)]
    assert shared_bytes([os.getpid()]) - before >= batches * MB // 2
    del iterator
    assert all(is_image(image, n) for n, image in enumerate(kept))
    del kept
    gc.collect()
    assert until(lambda: shared_bytes([os.getpid()]) - before < 2 * MB)


@LOADERS
def test_a_consumer_in_steady_state_does_not_grow(kind: Any) -> None:
    loader = forked(kind, d.Images(600, side=128), batch_size=4, persistent_workers=True)
    sizes = []
    for _ in range(3):
        for image, _ in loader:
            image.fill_(1)
        del image
        gc.collect()
        workers = [worker.pid for worker in loader._iterator._workers]
        sizes.append(shared_bytes([os.getpid(), *workers]) + private_bytes())
    assert sizes[2] - sizes[0] < 24 * MB, sizes


@only_headrace
def test_kept_batches_of_many_tensors_cost_no_descriptors() -> None:
    before = len(os.listdir("/proc/self/fd"))
    iterator = iter(forked(Headrace, d.Tensors(40, 114, 10_000), batch_size=None, num_workers=2))
    kept = []
    for number in range(30):
        kept.append(next(iterator))
        assert len(os.listdir("/proc/self/fd")) - before <= 6 + 4 * 2, number
    assert all(bool((tensor == n + t).all()) for n, batch in enumerate(kept) for t, tensor in enumerate(batch))


@only_headrace
def test_iterating_starts_no_thread_in_the_trainer() -> None:
    before = set(os.listdir("/proc/self/task"))
    for number, _ in enumerate(forked(Headrace, d.Images(20), batch_size=2, num_workers=2)):
        if number == 5:
            assert set(os.listdir("/proc/self/task")) <= before


@only_headrace
def test_limit_below_kept_batches_gives_copies_and_one_warning(recwarn: pytest.WarningsRecorder) -> None:
    limit = 16 * MB
    iterator = iter(forked(Headrace, d.Images(120, side=256), batch_size=4, num_workers=2, arena_limit=limit))
    kept, peak = [], 0
    for number, (image, _) in enumerate(iterator):
        kept.append(image)
        if number % 10 == 9 and number < 25:
            peak = max(peak, shared_bytes([os.getpid(), *(worker.pid for worker in iterator._workers)]))
    assert len(kept) == 30 and all(is_image(image[0], 4 * n) for n, image in enumerate(kept))
    assert peak <= limit + 4 * MB
    about = [warning for warning in recwarn.list if "held" in str(warning.message) or "batches" in str(warning.message)]
    assert len(about) == 1, [str(warning.message) for warning in recwarn.list]
