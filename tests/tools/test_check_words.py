# SPDX-License-Identifier: Apache-2.0
"""The check of words finds old words, bad beginnings of docstrings and bad names of tests."""

import check_words
import pytest

GOOD = [
    '"""Returns the dataset again, if another process asks."""',
    "def test_dataset_is_read_again_after_a_restart():",
    "/* The worker closes it. */",
]

BAD = [
    ("# a data set", "dataset"),
    ("it starts anew", "again, or a new"),
    ("nobody asks", "no process"),
    ("of whom it is", "the process, thread or user that"),
    ("no memory to be had", "available"),
    ("it waits in vain", "without a result"),
    ("every culprit", "cannot be pickled"),
    ("beside the other run", "next to"),
    ("a stillborn worker", "hung at start"),
    ("NULL: there is none", "does not exist"),
    ('    """What a user sees."""', "start with a verb"),
    ("/* Whether it runs. */", "start with a verb"),
    ("def test_what_is_sent_arrives():", "test_<subject>_<result>"),
    ("def test_" + "a" * 56 + "():", "60 characters"),
]


@pytest.mark.parametrize("line", GOOD)
def test_plain_line_passes(line):
    assert check_words.check_line(line) == []


@pytest.mark.parametrize(("line", "advice"), BAD)
def test_old_word_is_found_with_advice(line, advice):
    (complaint,) = check_words.check_line(line)
    assert advice in complaint


def test_line_is_named_except_in_the_table_of_words(run_tool, write_files):
    files = {"tools/a.py": "x = 1\n# anew\n", "tools/check_words.py": "# anew\n"}
    result = run_tool("check_words.py", write_files(files))
    assert result.returncode == 1
    assert result.stdout == 'tools/a.py:2: "anew": again, or a new ...\n'
