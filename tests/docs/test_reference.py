# SPDX-License-Identifier: Apache-2.0
"""Each public name of the Python package, each function of the C API, each option of the commands and of the loaders,
and each key of a message is explained on exactly one page of the reference."""

from __future__ import annotations

import collections
import importlib.util
import os
import pathlib
import re
import sys
import types

import build_docs
import c_reference
import pytest
from headrace._commands import doctor, doctor_machine, replay, report, warm
from headrace._commands import help as help_command

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs/reference/python").glob("*.md"))
PACKAGES = ["headrace", "headrace.torch", "headrace.doctor", "headrace.frozen", "headrace.images", "headrace.sources"]
_ENTRY = re.compile(r"^\.\. auto(?:class|function|exception):: (\S+)$", re.MULTILINE)
# The same objects as in headrace.frozen, which is where they are explained.
ALSO_FROZEN = {"FrozenError", "freeze", "freeze_attributes", "open", "thaw"}
TEXTS = {"headrace.__version__"}


def list_entries() -> collections.Counter[str]:
    return collections.Counter(name for page in PAGES for name in _ENTRY.findall(page.read_text()))


@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_name_is_on_one_page(package: str) -> None:
    if package == "headrace.images":
        pytest.importorskip("PIL", reason="make build/images.stamp installs Pillow")
    module, entries = importlib.import_module(package), list_entries()
    for name in module.__all__:
        value, full = getattr(module, name), f"{package}.{name}"
        if isinstance(value, types.ModuleType) or full in TEXTS:
            continue
        if full == "headrace.cache":  # an object; its methods are explained
            full = "headrace.cache.__call__"
        if package == "headrace" and name in ALSO_FROZEN:
            full = f"headrace.frozen.{name}"
        assert entries[full] == 1, f"{full} is on {entries[full]} pages of docs/reference/python"


def test_methods_of_cache_are_on_one_page() -> None:
    import headrace

    methods = [name for name in vars(type(headrace.cache)) if not name.startswith("_")]
    assert {name: list_entries()[f"headrace.cache.{name}"] for name in methods} == dict.fromkeys(methods, 1)


def test_each_public_name_has_docstring() -> None:
    for name in list_entries():
        if name.startswith("headrace.images.") and importlib.util.find_spec("PIL") is None:
            continue
        value = _find(name)
        assert (value.__doc__ or "").strip(), f"{name} has no docstring"


def _find(name: str) -> object:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            value = getattr(value, part)
        return value
    raise AssertionError(f"there is no {name}")


# ---- C ----


def test_each_c_function_is_on_one_page(tmp_path: pathlib.Path) -> None:
    declared = [
        name
        for header in (ROOT / "include/headrace").glob("*.h")
        for name in re.findall(r"^HR_API\b[^;{]*?\b(hr_\w+)\(", header.read_text(), re.MULTILINE)
    ]
    assert c_reference.main(ROOT / "include", tmp_path) == 0
    pages = [path.read_text() for path in tmp_path.glob("*.md")]
    for name in declared:
        found = sum(bool(re.search(rf"^HR_API\b[^;{{]*?\b{name}\(", page, re.MULTILINE)) for page in pages)
        assert found == 1, f"{name} is on {found} pages of the C reference"
    assert len(declared) == len(set(declared)) > 100


# ---- commands and their options ----


@pytest.fixture
def installed_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")


def list_commands(words: list[str]) -> list[str]:
    """Returns the commands that a help lists."""
    return re.findall(r"^  ([a-z]+) {2,}\S", build_docs.help_of(words), re.MULTILINE)


def options_in_c() -> dict[str, set[str]]:
    """Returns the options that each command in C reads, from the tables of the program."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "cli").glob("*.c"):
        tables = re.findall(
            r'struct option options\[\] = \{(.*?)\};.*?parse_options\("([a-z ]+)"', path.read_text(), re.DOTALL
        )
        found.update({command: set(re.findall(r'"(--[a-z-]+)"', table)) for table, command in tables})
    rows = re.findall(r'\] = \{"(--[a-z-]+)"(.*?)\},', (ROOT / "cli/run_options.c").read_text(), re.DOTALL)
    found["run"] = {name for name, _ in rows}
    found["exec"] = {name for name, rest in rows if rest.rstrip().endswith("1")}
    return found


def options_of_words() -> dict[str, set[str]]:
    """Returns those of commands in C that compare words: --of-job is only for a loader that starts `record`."""
    texts = {command: (ROOT / f"cli/{command}.c").read_text() for command in ("top", "record")}
    return {command: set(re.findall(r'strcmp\(\w+, "(--[a-z-]+)"', text)) for command, text in texts.items()}


def options_in_python() -> list[tuple[str, set[str]]]:
    """Returns each form of the commands in Python, with the options that it reads, in the order of the pages."""
    commands = [("doctor", doctor), ("doctor", doctor_machine), ("replay", replay), ("report", report)]
    found = []
    for command, module in [*commands, ("cache warm", warm)]:
        options = {option for action in module._parser()._actions for option in action.option_strings}
        found.append((command, {option for option in options if option.startswith("--")}))
    return found


def test_each_command_has_one_page(installed_program: None) -> None:
    commands = [*list_commands(["headrace"]), *(f"cache {name}" for name in list_commands(["headrace", "cache"]))]
    assert sorted(["", *commands]) == sorted(build_docs.COMMANDS)


def test_each_option_of_commands_is_on_page(installed_program: None) -> None:
    found = options_in_c() | options_of_words()
    assert {"run", "exec", "index", "cache ls", "cache gc"} <= set(found) and len(found["run"]) > 20
    assert "--once" in found["top"] and "--output" in found["record"]
    forms: dict[str, list[str]] = {}
    for command, options in [*found.items(), *options_in_python()]:
        texts = forms.setdefault(
            command, re.findall(r"^```text$(.*?)^```$", build_docs.command_page(command), re.M | re.S)
        )
        shown = collections.Counter(re.findall(r"^  (?:-\w,? (?:\w+, )?)?(--[a-z-]+)", texts.pop(0), re.MULTILINE))
        options -= {"--machine-help"}  # which shows the second form
        assert {name: shown[name] for name in options} == dict.fromkeys(options, 1), command
    assert not any(forms.values())


# ---- options of the loaders, and messages ----


def test_each_option_of_loaders_is_on_one_page() -> None:
    from headrace import _options

    rows = collections.Counter(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/options.md").read_text(), re.MULTILINE))
    assert rows == collections.Counter(list(_options.TABLE))


def test_each_key_of_message_is_on_one_page() -> None:
    pages = collections.Counter(build_docs.list_pages().values())
    assert max(pages.values()) == 1
    assert {name: pages[f"reference/messages/{name}"] for name in help_command.list_keys()} == dict.fromkeys(
        help_command.list_keys(), 1
    )
