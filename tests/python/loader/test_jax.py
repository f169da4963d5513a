# SPDX-License-Identifier: Apache-2.0
"""Batches of headrace.Loader in jax, which looks into their memory instead of copying it.

In a process of its own: jax starts threads, and later tests fork this one.
"""

from __future__ import annotations

import io
import pathlib
from importlib.util import find_spec

import numpy as np
import pytest
from processes import run, run_python
from tar_files import write_tar

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed: make test-jax runs this")

SCRIPT = """
import gc

import headrace
import numpy as np
from processes import until

BATCHES, SIZE, SHAPE = 80, 2, (32, 128)


class Numbers:
    def __len__(self):
        return BATCHES * SIZE

    def __getitem__(self, i):
        return np.full(SHAPE, i, dtype=np.float32), np.int16(i)


def main(way):
    import jax

    convert = {"from_dlpack": jax.dlpack.from_dlpack, "asarray": jax.numpy.asarray, "device_put": jax.device_put}[way]
    add = jax.jit(lambda images: images.sum(axis=(1, 2)))
    kept, sums, kept_at, seen_at = {}, [], set(), set()
    loader = headrace.Loader(Numbers(), SIZE, num_workers=1, multiprocessing_context="spawn", persistent_workers=True)
    iterator = iter(loader)
    for number, (images, labels) in enumerate(iterator):
        arrays = convert(images), convert(labels)
        address = images.ctypes.data
        seen_at.add(address)
        if way == "from_dlpack":
            assert arrays[0].unsafe_buffer_pointer() == address, "a copy"
            assert address not in kept_at, "a later batch lies in memory that jax looks into"
        sums.append(add(arrays[0]))  # computed later, in jax's threads
        if number % 8 < 5:
            kept[number] = arrays
            kept_at.add(address)
        del images, labels, arrays
    assert len(kept) == 50 and len(sums) == BATCHES
    assert len(seen_at) < BATCHES, "no memory was used twice, so this proves nothing"
    for number, (images, labels) in kept.items():
        expected = np.arange(number * SIZE, number * SIZE + SIZE)
        np.testing.assert_array_equal(labels, expected.astype(np.int16))
        np.testing.assert_array_equal(images, np.broadcast_to(expected[:, None, None], (SIZE, *SHAPE)))
    np.testing.assert_array_equal(np.concatenate(sums), np.arange(BATCHES * SIZE) * (SHAPE[0] * SHAPE[1]))
    del images, labels
    kept.clear()
    assert until(lambda: gc.collect() >= 0 and iterator.report()["held"] == 0), iterator.report()
    print("right")


if __name__ == "__main__":
    main(WAY)
"""


@pytest.mark.parametrize("way", ["from_dlpack", "asarray", "device_put"])
def test_jax_arrays_keep_their_values_while_later_batches_come(tmp_path: pathlib.Path, way: str) -> None:
    assert run(tmp_path, SCRIPT.replace("WAY", repr(way)), JAX_PLATFORMS="cpu") == "right\n"


TAR = """
import sys

import headrace
import numpy as np
from headrace import sources


def main():
    import jax

    tar = sources.Tar("tar.tar", fields=("npy", "cls"))
    loader = headrace.Loader(tar, 4, num_workers=2, multiprocessing_context="spawn", persistent_workers=True)
    double = jax.jit(lambda images: 2 * images)
    for epoch in range(2):
        found = [(double(jax.dlpack.from_dlpack(images)), jax.numpy.asarray(labels)) for images, labels in loader]
        assert [np.asarray(labels).tolist() for _, labels in found] == [[*range(i, i + 4)] for i in range(0, 40, 4)]
        for images, labels in found:
            wanted = np.broadcast_to(2.0 * np.asarray(labels)[:, None], (4, 100))
            np.testing.assert_array_equal(np.asarray(images), wanted)
    print("right")


if __name__ == "__main__":
    main()
"""


def test_jax_gets_samples_of_tar_files(tmp_path: pathlib.Path) -> None:
    members = []
    for number in range(40):
        array = io.BytesIO()
        np.save(array, np.full(100, number, np.float32))
        members += [(f"{number:02d}.npy", array.getvalue()), (f"{number:02d}.cls", b"%d" % number)]
    path = write_tar(tmp_path / "a.tar", members)
    assert run(tmp_path, TAR.replace('"tar.tar"', repr(path)), JAX_PLATFORMS="cpu") == "right\n"


def test_example_of_jax_learns(tmp_path: pathlib.Path) -> None:
    example = pathlib.Path(__file__).resolve().parents[3] / "examples/train_jax.py"
    done = run_python(tmp_path, str(example), JAX_PLATFORMS="cpu")
    assert done.returncode == 0, done.stderr
    losses = [float(word) for word in done.stdout.split()[1:]]
    assert len(losses) == 5 and losses == sorted(losses, reverse=True) and losses[-1] < 0.3
