# SPDX-License-Identifier: Apache-2.0
"""The last line of `make test` and `make check` counts tests and checks."""

import re

import check
import pytest
import run_tests
from common import ROOT, Tally

CMOCKA = "[==========] 3 test(s) run.\n[  PASSED  ] 2 test(s).\n[  FAILED  ] 1 test(s), listed below:\n"


@pytest.mark.parametrize(
    ("result", "tally"),
    [
        ({"result": "OK", "stderr": "[  PASSED  ] 5 test(s).\n"}, Tally(5, 0, 0)),
        ({"result": "OK", "stdout": "moved 3 arrays\n"}, Tally(1, 0, 0)),
        ({"result": "FAIL", "stderr": CMOCKA}, Tally(2, 1, 0)),
        ({"result": "TIMEOUT", "stderr": ""}, Tally(0, 1, 0)),
        ({"result": "FAIL", "stderr": "[  PASSED  ] 5 test(s).\n"}, Tally(5, 1, 0)),
        ({"result": "SKIP"}, Tally(0, 0, 1)),
    ],
)
def test_a_program_counts_as_the_tests_in_it(result, tally):
    assert run_tests.count_program(result) == tally


def test_gdb_command_stops_at_each_failed_c_test():
    result = {
        "stderr": "[  FAILED  ] a_slot_is_free\n[  FAILED  ] 1 test(s), listed below:\n[  FAILED  ] a_slot_is_free\n",
        "command": [str(ROOT / "build/dev/tests/test_unit_base")],
    }
    expected = "gdb -ex 'break a_slot_is_free' -ex run --args build/dev/tests/test_unit_base"
    assert run_tests.gdb_command(result) == expected


def test_a_run_that_failed_without_a_failed_test_is_a_failure():
    assert Tally(passed=3).with_status(1) == Tally(3, 1)
    assert Tally(3, 2).with_status(1) == Tally(3, 2)
    assert Tally(3).with_status(0) == Tally(3)


PROGRAMS = ["arena", "crew", "crew_stop"]
FILES = ["tests/python/engine/test_crew.py", "tests/python/loader/test_samples.py"]


@pytest.mark.parametrize(
    ("words", "selected"),
    [
        (["crew"], (["crew", "crew_stop"], FILES[:1])),
        (["samples", "arena"], (["arena"], FILES[1:])),
        (["python/"], ([], FILES)),
        (["loader/", "stop"], (["crew_stop"], FILES[1:])),
    ],
)
def test_words_select_programs_and_files_by_name(words, selected):
    assert run_tests.select(words, PROGRAMS, FILES) == selected


def test_word_without_a_test_is_an_error_with_close_names():
    with pytest.raises(ValueError, match="'sampels' in its name; there is samples"):
        run_tests.select(["crew", "sampels"], PROGRAMS, FILES)


def test_failed_command_shows_itself_and_its_output():
    with pytest.raises(check.Failed, match=r"(?s)\$ sh -c .*spilled.*exit status 3"):
        check.run("sh", "-c", "echo spilled; exit 3")


def test_an_unknown_check_is_named_with_what_exists(run_tool):
    result = run_tool("check.py", "taste")
    assert result.returncode == 2
    assert "no check taste; there is tidy, tsan" in result.stderr


DIES = """
import os, shutil

def test_passes():
    pass

def test_dies():
    shutil.rmtree(os.environ["HEADRACE_CACHE"])  # which conftest.py would have removed at the end
    os._exit(3)
"""


def test_run_of_pytest_that_dies_names_its_test(tmp_path, inner_pytest, monkeypatch, capfd):
    command, environment = inner_pytest
    (tmp_path / "build").mkdir()
    (tmp_path / "test_dies.py").write_text(DIES)
    for name in ("PYTHONPATH", "TMPDIR"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    run = run_tests.Pytest(1, [*command[command.index("-c") :], f"--claims={tmp_path}", "test_dies.py"])
    assert run.finish(tmp_path) == Tally(failed=1)
    assert re.search(r"ended with status 3 in \S*::test_dies; ", capfd.readouterr().out)
