# SPDX-License-Identifier: Apache-2.0
"""Memory, forks and threads of images: nothing grows, and nothing hangs."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import photos
import pytest

pytestmark = pytest.mark.skipif(photos.MISSING, reason=photos.WHY_MISSING)
if not photos.MISSING:
    photos.import_torchvision()
    import torch
    from headrace import images
    from headrace.images import _deferred
    from PIL import Image
    from processes import until
    from torchvision import transforms as v1

PATH = photos.PHOTOS / "china.jpg"
ROUNDS = int(os.environ.get("HEADRACE_EXAMPLES", "1500"))
MOST_GROWTH = 6 << 20  # bytes; one image of the files has 0.8 MB of pixels


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_does_not_grow_with_images(tmp_path: Path) -> None:
    """Whole images, parts, lazy images that are never used, deferred tensors, and files that Pillow refuses."""
    path, broken = tmp_path / "a.jpg", tmp_path / "b.jpg"
    data = photos.encode(Image.open(PATH).resize((200, 150)), quality=90)
    path.write_bytes(data)
    broken.write_bytes(data[:-500])
    native = images.native(v1.Compose([v1.RandomResizedCrop(64), v1.ToTensor()]))
    batch = _deferred.Batch()

    def once() -> None:
        image = images.open(path)
        image.convert("L").resize((30, 20)).tobytes()
        image.crop((5, 5, 90, 80)).getpixel((1, 1))
        images.load_rgb(path)
        with _deferred.batching():
            views = [native(image) for _ in range(3)]
        batch.finish(views, 2, keeps=False)
        with pytest.raises(OSError):
            images.load_rgb(broken)

    for _ in range(ROUNDS // 3):
        once()
    before = resident_bytes()
    for _ in range(ROUNDS):
        once()
    assert resident_bytes() - before < MOST_GROWTH


def test_process_is_forked_while_threads_make_images() -> None:
    """A thread of Python makes batches with threads in C while this one forks. Each child makes images itself."""
    native = images.native(v1.Compose([v1.Resize(64), v1.ToTensor()]))
    expected = v1.Compose([v1.Resize(64), v1.ToTensor()])(Image.open(PATH).convert("RGB"))
    is_over = threading.Event()
    made = 0

    def make() -> list[torch.Tensor]:
        with _deferred.batching():
            tensors = [native(images.load_rgb(PATH)) for _ in range(4)]
        _deferred.Batch().finish(tensors, 3, keeps=True)
        return tensors

    def make_all() -> None:
        nonlocal made
        while not is_over.is_set():
            make()
            made += 1

    thread = threading.Thread(target=make_all)
    thread.start()
    try:
        for number in range(8):
            assert until(lambda number=number: made > number, 60)
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)
                os._exit(not all(torch.equal(tensor, expected) for tensor in make()))
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        is_over.set()
        thread.join()


def test_child_uses_an_image_that_a_thread_was_decoding() -> None:
    """The thread decodes the same image again and again, so that most children inherit its lock locked."""
    image = images.load_rgb(PATH)
    expected = Image.open(PATH).convert("RGB").resize((50, 40)).tobytes()
    is_over = threading.Event()
    made = 0

    def decode_all() -> None:
        nonlocal made
        while not is_over.is_set():
            assert image.resize((50, 40)).tobytes() == expected
            made += 1

    thread = threading.Thread(target=decode_all)
    thread.start()
    try:
        for number in range(20):
            assert until(lambda number=number: made > number, 60)
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)
                os._exit(image.resize((50, 40)).tobytes() != expected)
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        is_over.set()
        thread.join()


def test_threads_of_a_run_get_no_signals() -> None:
    """A signal that arrives while images are made is handled by the main thread, and the images are right."""
    native = images.native(v1.Compose([v1.Resize(64), v1.ToTensor()]))
    expected = v1.Compose([v1.Resize(64), v1.ToTensor()])(Image.open(PATH).convert("RGB"))
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: seen.append(threading.get_native_id()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        while len(seen) < 20:
            with _deferred.batching():
                tensors = [native(images.load_rgb(PATH)) for _ in range(6)]
            _deferred.Batch().finish(tensors, 3, keeps=True)
            assert all(torch.equal(tensor, expected) for tensor in tensors)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert set(seen) == {threading.get_native_id()}
