# SPDX-License-Identifier: Apache-2.0
"""The check of words follows the glossary, and finds bad beginnings of docstrings and bad names of tests."""

import check_words
import pytest

GOOD = [
    '"""Returns the dataset again, if another process asks."""',
    "def test_dataset_is_read_again_after_a_restart():",
    "/* The worker closes it. */",
    "if value is None:",
    "a renewed mandate",
    "take_lease(); a ticket, a claim and a job",
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
    ("int open_anew(int fd);", "again, or a new"),
    ("for want of memory", "because"),
    ("It is mended.", "fix"),
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


@pytest.mark.parametrize(
    ("line", "name", "advice"),
    [
        ("take_lease(samples);", "src/cache/samples.c", "a lease belongs to a batch"),
        ("/* A ticket. */", "src/arena/fork.c", "a ticket belongs to the cache"),
        ("class Job:", "python/headrace/_loader/worker/main.py", "a job is that of all ranks"),
    ],
)
def test_word_with_a_meaning_elsewhere_is_found(line, name, advice):
    (complaint,) = check_words.check_line(line, name)
    assert advice in complaint
    assert check_words.check_line(line, "src/launch/launch.c") == []


def test_line_is_named_with_its_number(run_tool, write_files):
    files = {"tools/a.py": "x = 1\n# anew\n"}
    result = run_tool("check_words.py", write_files(files))
    assert result.returncode == 1
    assert result.stdout == 'tools/a.py:2: "anew": again, or a new ...\n'


GLOSSARY = """# Glossary

It begins.

## Own words

| word | meaning | home |
|---|---|---|
| byte lock | A lock. | `src/a.c` |
| crew | The workers. | `src/a.c` |
| crew | The workers again. | `src/a.c` |
| board | Unsorted. | `src/none.c` |
| slot | A part. | `src/a.c` |

## Words that we do not use

| pattern | say instead | where |
|---|---|---|
| `anew` | again | |
"""


def test_own_words_are_looked_for_in_their_homes(run_tool, write_files):
    files = {"docs/glossary.md": GLOSSARY, "src/a.c": "int byte_lock; /* Crews; a slotted spoon; the\n board */\n"}
    result = run_tool("check_words.py", write_files(files))
    assert result.returncode == 1
    assert result.stdout.splitlines() == [
        'docs/glossary.md: "crew" has more than one row',
        "docs/glossary.md: the own words are not sorted",
        'docs/glossary.md: "board": its home src/none.c does not exist',
        'docs/glossary.md: "slot" is not used in its home src/a.c',
    ]


def test_glossary_itself_is_followed():
    glossary = (check_words.ROOT / check_words.GLOSSARY).read_text()
    assert len(check_words.OWN_ROW.findall(glossary)) > 40
    assert len(check_words.WORDS) > 20
    assert check_words.check_own_words(check_words.ROOT, glossary) == []
