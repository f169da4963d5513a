# SPDX-License-Identifier: Apache-2.0
"""The calls that the option `device` makes of torch.cuda, with a torch.cuda that notes them. No GPU runs here."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from headrace.torch._device import cuda


class Code(enum.IntEnum):
    success = 0
    refused = 2


class Event:
    def __init__(self, stream: Stream) -> None:
        self.stream, self.happened = stream, False

    def query(self) -> bool:
        return self.happened

    def synchronize(self) -> None:
        self.happened = True


class Stream:
    """A stream that notes for what it waits."""

    made = 0

    def __init__(self, device: Any = None) -> None:
        Stream.made += 1
        self.cuda_stream, self.device_index = Stream.made, torch.device(device or "cuda:0").index
        self.waited: list[Stream] = []
        self.is_capturing = False

    def record_event(self) -> Event:
        return Event(self)

    def wait_event(self, event: Event) -> None:
        self.waited.append(event.stream)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())


class Cudart:
    cudaError = Code

    def __init__(self) -> None:
        self.code, self.calls = Code.success, []  # type: list[Any]

    def cudaHostRegister(self, address: int, size: int, flags: int) -> Code:
        self.calls.append((address, size, flags))
        return self.code

    def cudaHostUnregister(self, address: int) -> Code:
        self.calls.append(address)
        return self.code

    def cudaGetErrorString(self, code: Code) -> str:
        return "out of memory"


class Fake:
    """torch.cuda with two GPUs."""

    def __init__(self) -> None:
        self.current = {0: Stream("cuda:0"), 1: Stream("cuda:1")}
        self.index = 0
        self.cudart = Cudart()
        self.errors_cleared = 0

    def current_stream(self, index: int | None = None) -> Stream:
        return self.current[self.index if index is None else index]

    def set_stream(self, stream: Stream) -> None:
        self.index = stream.device_index
        self.current[self.index] = stream

    def is_current_stream_capturing(self) -> bool:
        return self.current[self.index].is_capturing

    def device(self, device: torch.device) -> Any:
        return _Device(self, device.index)

    def stream(self, stream: Stream) -> Any:
        return _InStream(self, stream)


class _Device:
    def __init__(self, fake: Fake, index: int) -> None:
        self.fake, self.index = fake, index

    def __enter__(self) -> None:
        self.before, self.fake.index = self.fake.index, self.index

    def __exit__(self, *_: object) -> None:
        self.fake.index = self.before


class _InStream:
    def __init__(self, fake: Fake, stream: Stream) -> None:
        self.fake, self.stream = fake, stream

    def __enter__(self) -> None:
        self.before = self.fake.index, dict(self.fake.current)
        self.fake.set_stream(self.stream)

    def __exit__(self, *_: object) -> None:
        self.fake.index, self.fake.current = self.before


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    fake = Fake()
    for name in ("current_stream", "set_stream", "is_current_stream_capturing", "device", "stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: fake.index)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake.cudart)
    monkeypatch.setattr(cuda, "_runtime", lambda: None)
    monkeypatch.setattr(cuda.Cuda, "_clear_error", lambda self: setattr(fake, "errors_cleared", 1))
    cuda._streams_of.cache_clear()
    yield fake
    cuda._streams_of.cache_clear()


def opened(index: int) -> cuda.Cuda:
    return cuda.Cuda(torch.device("cuda", index))


def test_registering_says_why_it_failed_and_clears_the_error(fake: Fake) -> None:
    device = opened(0)
    assert device.register(4096, 8192) is None and device.unregister(4096) is None
    assert fake.cudart.calls == [(4096, 8192, 1), 4096] and not fake.errors_cleared
    fake.cudart.code = Code.refused
    assert device.register(4096, 8192) == "out of memory (2)"
    assert fake.errors_cleared


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("raises", [False, True])
def test_streams_and_the_device_are_as_before_after_a_send(fake: Fake, index: int, raises: bool) -> None:
    device, before = opened(index), dict(fake.current)
    seen: list[Any] = []

    def send() -> None:
        seen.append((fake.index, fake.current[fake.index]))
        if raises:
            raise KeyboardInterrupt

    if raises:
        with pytest.raises(KeyboardInterrupt):
            device.run(send)
    else:
        device.run(send)
    assert seen == [(index, device._streams.copies)]
    assert (fake.index, fake.current) == (0, before)


def test_copies_and_streams_of_consumers_wait_for_each_other(fake: Fake) -> None:
    device = opened(0)
    copies, side = device._streams.copies, Stream("cuda:0")
    first = fake.current[0]
    device.wait(None)
    assert copies.waited == []
    device.wait(device.record())
    fake.set_stream(side)
    device.wait(device.record())
    assert first.waited == side.waited == [copies]
    device.run(lambda: device.wait(None))
    assert copies.waited == [first, side]
    other = opened(0)  # another loader
    assert other._streams.copies is copies


def test_captured_stream_of_a_consumer_is_not_waited_for(fake: Fake) -> None:
    """Waiting for a stream that captures makes the copies a part of the graph: they would not run now."""
    device = opened(0)
    side = Stream("cuda:0")
    fake.set_stream(side)
    device.wait(device.record())
    fake.set_stream(Stream("cuda:0"))
    side.is_capturing = True  # in another thread
    with pytest.raises(RuntimeError, match="captured"):
        device.run(lambda: device.wait(None))
    assert device._streams.copies.waited == []
    side.is_capturing = False
    device.run(lambda: device.wait(None))
    assert device._streams.copies.waited == [side]


def test_capture_on_another_gpu_does_not_count(fake: Fake) -> None:
    device = opened(1)
    fake.current[0].is_capturing = True
    assert not device.is_capturing() and fake.index == 0
    fake.current[1].is_capturing = True
    assert device.is_capturing() and fake.index == 0


def test_wait_for_a_copy_has_a_deadline(fake: Fake) -> None:
    device = opened(0)
    event = device.record()
    assert not device.synchronize(event, 0.0)
    assert device.synchronize(event, None) and device.query(event)
    assert not device.synchronize(None, 0.001)


def test_allocations_and_copies_are_torchs() -> None:
    device = cuda.Cuda.__new__(cuda.Cuda)
    device._device = torch.device("cpu")
    sources = [torch.arange(6.0).reshape(2, 3).t(), torch.ones(4, dtype=torch.bool)]
    targets = device.allocate(sources)
    device.copy(targets, sources)
    for source, target in zip(sources, targets, strict=True):
        assert torch.equal(source, target) and source.stride() == target.stride()
