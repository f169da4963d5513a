# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/check_docs.py: opening comments, and what the documents say about the tree."""

import pytest

SPDX = "SPDX-License-Identifier: " + "Apache-2.0"
LAYERS = """# How it works

## The layers

```
 faces     cli/
 systems   frozen  loader  sampler  cache  launch  image  source  record  verdict
 parts     batch  crew  board  remote
 ground    arena
           os     every raw system call
           base   knows no system
```
"""
TREE = {
    "src/os/clock.c": f"/* {SPDX} */\n/* Clocks. */\n#include <time.h>\n\nint hr__now(void) {{ return 0; }}\n",
    "src/os/os.h": f"/* {SPDX} */\n#ifndef HR_OS\n\n/*\n * Declarations.\n */\n\nint hr__now(void);\n",
    "include/headrace/cup.h": f'/* {SPDX} */\n#ifdef __cplusplus\nextern "C" {{\n#endif\n\n/* A cup. */\n\nint cup;\n',
    "python/headrace/start.py": f'# {SPDX}\n"""Starts."""\n\n\ndef begin(): ...\n',
    "python/headrace/py.typed": "",
    "docs/architecture.md": LAYERS,
    "README.md": "[Layers](docs/architecture.md#the-layers), `os/clock.c`: `hr__now`, `begin` (`start.py`), `src/`.\n",
    "CONTRIBUTING.md": "`make test ONLY=os` runs tests.",
    "Makefile": "test: all\n",
    "notes.txt": "`gone.c`",
}

BAD = [
    ("src/os/clock.c", f"/* {SPDX} */\n#include <time.h>\n\nint x; /* one */\n", "has no opening comment"),
    ("src/os/clock.c", f"/* {SPDX} */\n#include <time.h>\n\n/* The number. */\nint x;\n", "has no opening comment"),
    ("src/os/clock.c", f"/* {SPDX} */\n\n/* ---- part ---- */\n\nint x;\n", "has no opening comment"),
    ("python/headrace/start.py", f"# {SPDX}\nx = 1\n", "has no opening comment"),
    ("python/headrace/_core.pyi", f"# {SPDX}\nx: int\n", "has no opening comment"),
    ("README.md", "Read `os/gone.c`.", "`os/gone.c` is no file or folder"),
    ("CONTRIBUTING.md", "Read `src/gone/`.", "`src/gone/` is no file or folder"),
    ("src/os/README.md", "Read `gone.c`.", "`gone.c` is no file or folder"),
    ("README.md", "Read `src/os/clock.c`: `hr__today`.", "`hr__today` is not in `src/os/clock.c`"),
    ("README.md", "Read `hr__today` (`clock.c`).", "`hr__today` is not in `clock.c`"),
    ("README.md", "Read it (`hr__today`, `clock.c`).", "`hr__today` is not in `clock.c`"),
    ("docs/cup.md", "Read [it](gone.md).", "the link to gone.md leads nowhere"),
    ("docs/cup.md", "Read [it](architecture.md#gone).", "the link to architecture.md#gone leads to no heading"),
    (
        "docs/architecture.md",
        LAYERS.replace("  board", ""),
        "the picture of the layers has no row with batch",
    ),
    ("docs/architecture.md", LAYERS + 350 * "\n", "has 362 lines, more than 350"),
    ("docs/architecture.md", "Read `hr__today`." + LAYERS, "`hr__today` is nowhere in the code"),
    ("CONTRIBUTING.md", "Run tests/python/gone.", "`tests/python/gone` is no file or folder"),
    ("src/os/event.c", f"/* {SPDX} */\n/* See docs/gone.md. */\n", "`docs/gone.md` is no file or folder"),
    ("src/os/event.c", f"/* {SPDX} */\n/*\n * Steps:\n *   now   os/gone.c\n */\n", "`os/gone.c` is no file or folder"),
    ("src/os/event.c", f"/* {SPDX} */\n/*\n * Steps:\n *   now   os/clock.c\n */\n", "`now` is not in `os/clock.c`"),
    ("README.md", "Run `make tea` first.", "the Makefile has no target tea"),
    ("README.md", "```sh\nmake tea   # hot\n```", "the Makefile has no target tea"),
    ("Makefile", "test:\n\tpytest tests/gone\n", "`tests/gone` is no file or folder"),
    ("docs/architecture.md", LAYERS + "    hr__today     os/clock.c\n", "`hr__today` is not in `os/clock.c`"),
    ("docs/architecture.md", "# How\n\n## The layers\n", "the picture of the layers has no row with base"),
]


def test_docs_true_papers_pass(run_tool, write_files):
    result = run_tool("check_docs.py", write_files(TREE))
    assert (result.returncode, result.stdout.strip()) == (0, "")


@pytest.mark.parametrize(("name", "text", "complaint"), BAD)
def test_docs_untrue_statement_named(run_tool, write_files, name, text, complaint):
    result = run_tool("check_docs.py", write_files(TREE | {name: text}))
    assert result.returncode == 1
    assert result.stdout.startswith(f"{name}: {complaint}")


def test_files_have_their_first_sentence(run_tool):
    lines = run_tool("list_files.py", "src/os/clock.c", "CLOCKS").stdout.splitlines()
    assert lines == ["src/os/clock.c: Clocks and deadlines."]
