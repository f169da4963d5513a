# SPDX-License-Identifier: Apache-2.0
"""headrace.sources.Tokens: samples of each kind of token file, compared with NumPy and with Megatron's layout."""

from __future__ import annotations

import copy
import pathlib
import pickle
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
import pytest
from drawn import draws
from headrace import _core, sources
from hypothesis import given, settings
from hypothesis import strategies as st
from token_files import MEGATRON_CODES, IndexedDataset, write_headless, write_llmc, write_megatron

DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def assert_samples(found: sources.Tokens, wanted: list[Any], has_labels: bool = False) -> None:
    assert len(found) == len(wanted)
    for sample, tokens in zip(found, wanted, strict=True):
        parts = sample if has_labels else (sample,)
        assert all(part.dtype == np.int64 and part.flags.owndata and part.flags.c_contiguous for part in parts)
        expected = (tokens[:-1], tokens[1:]) if has_labels else (tokens,)
        assert [part.tolist() for part in parts] == [list(map(int, part)) for part in expected]


def windows(tokens: Any, length: int, stride: int, has_labels: bool) -> list[Any]:
    wanted = length + has_labels
    return [tokens[i : i + wanted] for i in range(0, len(tokens) - wanted + 1, stride)]


# ---- compared with NumPy ----


@given(data=st.data())
@settings(deadline=None, max_examples=draws(150))
def test_windows_are_slices_of_the_files(data: st.DataObject) -> None:
    """Files of several lengths and kinds, with any dtype, length, stride and labels."""
    kind = data.draw(st.sampled_from(["headless", "npy", "llmc"]))
    dtype = data.draw(st.sampled_from(["uint16", "uint32"] if kind == "llmc" else DTYPES))
    length, has_labels = data.draw(st.integers(1, 40)), data.draw(st.booleans())
    stride = data.draw(st.none() | st.integers(1, 50))
    info = np.iinfo(dtype)
    numbers = st.integers(int(info.min), min(int(info.max), 2**63 - 1))
    arrays = [
        np.array(one, dtype) for one in data.draw(st.lists(st.lists(numbers, max_size=90), min_size=1, max_size=4))
    ]
    arrays = [np.resize(one, data.draw(st.integers(0, 20_000))) if len(one) > 80 else one for one in arrays]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        paths = [pathlib.Path(folder, f"{i}.{'npy' if kind == 'npy' else 'bin'}") for i in range(len(arrays))]
        for path, array in zip(paths, arrays, strict=True):
            if kind == "npy":
                np.save(path, array)
            else:
                (write_llmc if kind == "llmc" else write_headless)(path, array, dtype)
        given_dtype = dtype if kind == "headless" else data.draw(st.sampled_from([None, dtype]))
        wanted = [one for array in arrays for one in windows(array, length, stride or length, has_labels)]
        options = {"length": length, "stride": stride, "labels": has_labels, "dtype": given_dtype}
        if any(map(len, arrays)) and not wanted:
            with pytest.warns(UserWarning, match="there is no sample"):
                found = sources.Tokens(paths, **options)
        else:
            found = sources.Tokens(paths, **options)
        assert_samples(found, wanted, has_labels)
        assert found.lengths is None
        if wanted:
            assert_gathered(found, wanted, has_labels, data.draw(st.lists(st.integers(0, len(wanted) - 1), max_size=9)))


def assert_gathered(found: sources.Tokens, wanted: list[Any], has_labels: bool, indices: list[int]) -> None:
    length = len(wanted[0]) - has_labels
    rows = np.array([wanted[index] for index in indices], np.int64).reshape(len(indices), length + has_labels)
    x = np.empty((len(indices), length), np.int64)
    y = np.empty_like(x) if has_labels else None
    found._tokens.gather(np.array(indices, np.int64), x, y)
    np.testing.assert_array_equal(x, rows[:, :length])
    assert y is None or np.array_equal(y, rows[:, 1:])


documents_of_some_length = st.lists(st.lists(st.lists(st.integers(0, 127), max_size=9), max_size=5), max_size=6)


@given(documents_of_some_length, st.sampled_from(sorted(MEGATRON_CODES)), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=draws(120))
def test_megatron_samples_are_those_of_its_reader(
    documents: list[list[list[int]]], dtype: str, modes: bool, has_labels: bool
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        prefix = write_megatron(pathlib.Path(folder, "text_document"), documents, dtype, modes)
        reader = IndexedDataset(prefix)
        sequences = sources.Tokens(prefix + ".bin")
        assert_samples(sequences, [reader[number] for number in range(len(reader))])
        assert sequences.lengths is not None and sequences.lengths.tolist() == reader.sizes.tolist()
        joined = sources.Tokens(prefix, documents=True, labels=has_labels)
        wanted = reader.documents()
        lengths = [max(len(one) - has_labels, 0) for one in wanted]
        assert joined.lengths is not None and joined.lengths.tolist() == lengths
        if has_labels:
            assert [(x.tolist(), y.tolist()) for x, y in joined] == [(w[:-1].tolist(), w[1:].tolist()) for w in wanted]
        else:
            assert_samples(joined, wanted)


@given(
    files=st.lists(st.lists(st.integers(0, 3), max_size=30), min_size=1, max_size=4),
    is_llmc=st.booleans(),
    has_labels=st.booleans(),
)
@settings(deadline=None, max_examples=draws(120))
def test_separators_split_files_into_documents(files: list[list[int]], is_llmc: bool, has_labels: bool) -> None:
    """In llm.c's files the separator begins a document, otherwise it ends one."""
    wanted: list[list[int]] = []
    for tokens in files:
        document: list[int] = []
        for token in tokens:
            if is_llmc and token == 3 and document:
                wanted.append(document)
                document = []
            document.append(token)
            if not is_llmc and token == 3:
                wanted.append(document)
                document = []
        wanted += [document] if document else []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        write = write_llmc if is_llmc else write_headless
        paths = [write(pathlib.Path(folder, f"{number}.bin"), tokens) for number, tokens in enumerate(files)]
        found = sources.Tokens(paths, separator=3, labels=has_labels)
        for one in (found, pickle.loads(pickle.dumps(found))):
            assert_samples(one, wanted, has_labels)
            assert one.lengths is not None and one.lengths.tolist() == [len(w) - has_labels for w in wanted]


def test_long_files_are_scanned_and_read(tmp_path: pathlib.Path) -> None:
    """Longer than the pieces in which files are read."""
    tokens = np.random.default_rng(0).integers(0, 5000, 300_000)
    path = write_headless(tmp_path / "a.bin", tokens)
    found = sources.Tokens(path, separator=17)
    ends = np.append(np.flatnonzero(tokens == 17) + 1, len(tokens))
    assert_samples(found, np.split(tokens, ends[:-1]))


# ---- a source as a sequence ----


def open_hundred(tmp_path: pathlib.Path) -> sources.Tokens:
    """Not a fixture, which would keep the file open beyond the test."""
    return sources.Tokens(write_headless(tmp_path / "a.bin", range(100)), length=10)


@pytest.mark.parametrize("index", [3, -7, np.int64(3), np.int8(-7), np.array(3)])
def test_ints_of_any_kind_are_indices(tmp_path: pathlib.Path, index: Any) -> None:
    hundred = open_hundred(tmp_path)
    assert hundred[index].tolist() == list(range(30, 40))


@pytest.mark.parametrize("index", [10, -11, 2**70])
def test_index_out_of_range_names_source_and_length(tmp_path: pathlib.Path, index: int) -> None:
    hundred = open_hundred(tmp_path)
    with pytest.raises(IndexError, match=rf"Tokens: index {index} is out of range, there are 10 samples .*a\.bin"):
        hundred[index]
    with pytest.raises(IndexError):
        hundred.where(index)


@pytest.mark.parametrize("index", [1.0, "1", None, slice(2), [1]])
def test_other_indices_are_type_errors(tmp_path: pathlib.Path, index: Any) -> None:
    hundred = open_hundred(tmp_path)
    with pytest.raises(TypeError, match="Tokens: an index should be an int"):
        hundred[index]


def test_samples_are_new_arrays(tmp_path: pathlib.Path) -> None:
    hundred = open_hundred(tmp_path)
    first = hundred[0]
    first += 1
    assert hundred[0].tolist() == list(range(10)) and next(iter(hundred)).tolist() == list(range(10))


def test_labels_do_not_share_memory_with_tokens(tmp_path: pathlib.Path) -> None:
    x, y = sources.Tokens(write_headless(tmp_path / "a.bin", range(9)), length=4, labels=True)[1]
    x[:] = 0
    assert y.tolist() == [5, 6, 7, 8]


def test_place_of_a_sample_has_file_and_offset(tmp_path: pathlib.Path) -> None:
    hundred = open_hundred(tmp_path)
    assert hundred.where(2) == f"{tmp_path}/a.bin: 10 tokens of uint16 from byte 40 on"
    write_llmc(tmp_path / "b.bin", range(100), "uint32")
    found = sources.Tokens(tmp_path / "b.bin", length=10, labels=True)
    assert found.where(-1) == f"{tmp_path}/b.bin: 11 tokens of uint32 from byte 1,344 on"


def test_report_says_what_was_found(tmp_path: pathlib.Path) -> None:
    write_headless(tmp_path / "a.bin", range(105))
    np.save(tmp_path / "b.npy", np.arange(7, dtype=np.int32))
    found = sources.Tokens([tmp_path / "a.bin", tmp_path / "b.npy"], length=10)
    assert found.report() == {
        "unit": "windows",
        "samples": 10,
        "tokens": 112,
        "unused_tokens": 12,
        "files": [
            {"path": f"{tmp_path}/a.bin", "format": "without a head", "dtype": "uint16", "tokens": 105, "samples": 10},
            {"path": f"{tmp_path}/b.npy", "format": "NumPy", "dtype": "int32", "tokens": 7, "samples": 0},
        ],
    }
    assert repr(found) == f"sources.Tokens(2 files from '{tmp_path}/a.bin' on, length=10, 10 samples)"
    with pytest.warns(UserWarning, match="a window takes 201 tokens and the longest file has 105"):
        assert len(sources.Tokens(tmp_path / "a.bin", length=200, labels=True)) == 0


def test_megatron_files_of_a_pattern_come_once(tmp_path: pathlib.Path) -> None:
    write_megatron(tmp_path / "a", [[[1, 2, 3]]])
    write_megatron(tmp_path / "b", [[[4], [5, 6]]])
    for paths in (f"{tmp_path}/*", f"{tmp_path}/*.idx", f"{tmp_path}/{{a,b}}.bin", f"{tmp_path}/{{a,b}}"):
        assert [sample.tolist() for sample in sources.Tokens(paths)] == [[1, 2, 3], [4], [5, 6]]
    assert sources.Tokens(f"{tmp_path}/a").report()["files"][0]["format"] == "Megatron"


class Marked(sources.Tokens):
    mark = 0


def test_pickle_is_a_handle_that_opens_the_files_again(tmp_path: pathlib.Path) -> None:
    path = write_headless(tmp_path / "a.bin", range(50_000))
    found = Marked(path, length=10, stride=7, labels=True)
    found.mark = 5
    handle = pickle.dumps(found)
    assert len(handle) < 1000
    for other in (pickle.loads(handle), copy.copy(found), copy.deepcopy(found)):
        assert type(other) is Marked and other.mark == 5 and len(other) == len(found)
        assert np.array_equal(other[123], found[123]) and repr(other) == repr(found)


# ---- arguments ----


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, ValueError, "so it has no sequences; give the length of windows, or a separator"),
        ({"documents": True}, ValueError, "so it has no documents"),
        ({"length": 0}, ValueError, "length should be from 1 to"),
        ({"length": 2.5}, TypeError, "length should be an int, but got 2.5"),
        ({"length": True}, ValueError, "length should be"),
        ({"length": 3, "stride": 0}, ValueError, "stride should be from 1 to"),
        ({"stride": 3}, ValueError, "stride=3 is the distance of windows; give their length too"),
        ({"length": 3, "separator": 1}, ValueError, "give one of length and separator"),
        ({"documents": True, "separator": 1}, ValueError, "give one of documents and separator"),
        ({"separator": -1}, ValueError, "separator should be from 0"),
        ({"length": 3, "vocab_size": 0}, ValueError, "vocab_size should be from 1"),
        ({"length": 3, "dtype": "float32"}, ValueError, "dtype should be an integer"),
        ({"length": 3, "dtype": ">u2"}, ValueError, "in the byte order of this machine"),
        ({"length": 3, "dtype": "tokens"}, TypeError, "dtype should be a dtype of NumPy"),
        ({"length": 3, "dtype": "uint64"}, ValueError, "no multiple of the 8 bytes of uint64"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: pathlib.Path, options: Any, error: type[Exception], text: str) -> None:
    path = write_headless(tmp_path / "a.bin", range(101))
    with pytest.raises(error, match=text):
        sources.Tokens(path, **options)


def test_headless_npy_is_an_error_that_says_so(tmp_path: pathlib.Path) -> None:
    """OLMo writes such files."""
    path = write_headless(tmp_path / "part-0.npy", range(100))
    with pytest.raises(ValueError, match=r"part-0\.npy has no head of NumPy's, which OLMo's .npy files lack too"):
        sources.Tokens(path, length=10)
    assert sources.Tokens(path, length=10, dtype=np.uint16)[0].tolist() == list(range(10))


def test_token_above_vocabulary_is_an_error_that_names_the_place(tmp_path: pathlib.Path) -> None:
    path = write_headless(tmp_path / "a.bin", [1, 2, 3, 4, 50257, 5, 6, 7])
    found = sources.Tokens(path, length=4, vocab_size=50257)
    assert found[0].tolist() == [1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"a\.bin has token 50257 at byte 8, but vocab_size is 50257"):
        found[1]


def test_core_refuses_arrays_of_other_sizes(tmp_path: pathlib.Path) -> None:
    """A mistake of ours must not write outside of an array."""
    hundred = open_hundred(tmp_path)
    array = np.empty(10, np.int64)
    for count, length, target in ((10, 10, array[:9]), (10, 9, array[:9]), (10, 10, array.astype(np.int32))):
        with pytest.raises(ValueError, match=r"expected|not as hr_tokens_find"):
            hundred._tokens.read(0, count, length, target, None)
    with pytest.raises(ValueError, match="expected 20 64-bit integers"):
        hundred._tokens.gather(np.array([0, 1]), array, None)
    with pytest.raises(ValueError, match="labels"):
        hundred._tokens.gather(np.array([0]), array, array.copy())
    with pytest.raises(ValueError, match="ends that are found by a scan"):
        hundred._tokens.set_ends(np.array([1]))


def test_import_needs_neither_numpy_nor_torch() -> None:
    code = (
        "import sys, headrace; print(sorted(name for name in sys.modules if name.startswith('headrace'))); "
        "import headrace.sources; print([name for name in ('numpy', 'torch', 'typing') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path = {sys.path!r}; {code}"], capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "['headrace']" and "numpy" not in lines[1] and "torch" not in lines[1], done.stderr


def test_units_are_those_of_the_library() -> None:
    assert [_core.TOKENS_WINDOWS, _core.TOKENS_SEQUENCES, _core.TOKENS_DOCUMENTS, _core.TOKENS_SEPARATED] == [
        0,
        1,
        2,
        3,
    ]
