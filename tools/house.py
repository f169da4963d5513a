# SPDX-License-Identifier: Apache-2.0
"""Counts what makes the tree hard to live in: long files, circles of rooms, tables, what is written twice.

`house.py [FOLDER]` prints a line for each count, of this checkout or of another one, so that two can be compared.
`house.py --texts [FOLDER]` prints each text of 40 letters and more in the product, to see which ones a change adds.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import check_imports
from common import ROOT, list_files

PRODUCT = ("src", "include", "cli", "python")
SUFFIXES = (".c", ".h", ".py", ".pyi")
LONG = 400  # lines of a file
MIN_TEXT = 40
STATE = re.compile(r"^ {8}self\._(\w+)\b[^=\n]*=(?!=)", re.MULTILINE)
_TABLE = re.compile(r"^(\w+)(?:: [^=]+)? = (?:PerLoader|weakref\.WeakKeyDictionary)\(", re.MULTILINE)
_CODE = re.compile(r"\.co_(?:consts|freevars|names)\b")
_WALKED = re.compile(r"\bco_consts\b|\b__closure__\b|\bgc\.get_referents\b|\breducer_override\b|\bpersistent_id\b")


class Tree:
    """The files of the product in a checkout, and their texts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        paths = (path for path in list_files(root) if path.suffix in SUFFIXES)
        relative = {path.relative_to(root).as_posix(): path for path in paths}
        self.texts = {name: path.read_text() for name, path in relative.items() if name.startswith(PRODUCT)}

    def python(self, folder: str = "") -> dict[str, str]:
        start = f"python/headrace/{folder}"
        return {name: text for name, text in self.texts.items() if name.startswith(start) and name.endswith(".py")}

    def count(self, pattern: str, *folders: str) -> int:
        texts = [text for folder in folders or ("",) for text in self.python(folder).values()]
        return sum(len(re.findall(pattern, text, re.MULTILINE)) for text in texts)


def count_lines(tree: Tree) -> int:
    return sum(text.count("\n") for text in tree.texts.values())


def list_long(tree: Tree) -> list[str]:
    return [name for name, text in tree.texts.items() if text.count("\n") > LONG]


def list_flat(tree: Tree) -> list[str]:
    return [name for name in tree.python("torch/") if name.count("/") == 3]


def list_torch_rooms(tree: Tree) -> list[str]:
    rooms = {name.split("/")[3] for name in tree.python("torch/") if name.count("/") > 3}
    return [f"{room} {len(tree.python(f'torch/{room}/'))}" for room in sorted(rooms)]


def list_tables(tree: Tree) -> list[str]:
    """Tables by loader: PerLoader in each module that makes one, or the dict of records in torch/_own/table.py."""
    found = [f"{name}: {table}" for name, text in tree.python().items() for table in _TABLE.findall(text)]
    own = tree.texts.get("python/headrace/torch/_own/table.py", "")
    return found + (["python/headrace/torch/_own/table.py: _kept"] if "_kept" in own else [])


def list_state_of_loader(tree: Tree) -> list[str]:
    """Private attributes that headrace.Loader sets, apart from what its arguments are: the context, and what kind of
    dataset and seed it was given."""
    arguments = {"context", "is_iterable", "is_seed_given"}
    text = tree.texts["python/headrace/_numpy/loader.py"]
    return sorted(set(STATE.findall(text.partition("def __getstate__")[0])) - arguments)


def list_edges(tree: Tree) -> set[tuple[str, str]]:
    """Edges between the top folders of the package."""
    edges = check_imports.list_edges(tree.root / "python")
    tops = {(".".join(a.split(".")[:2]), ".".join(b.split(".")[:2])) for a, b in edges}
    return {(a, b) for a, b in tops if a != b and check_imports.TOP not in (a, b)}


def list_mutual(tree: Tree) -> list[str]:
    edges = list_edges(tree)
    return sorted(f"{a} {b}" for a, b in edges if a < b and (b, a) in edges)


def list_circle(tree: Tree) -> list[str]:
    edges = dict.fromkeys(list_edges(tree), "")
    return sorted({a for a, b in edges if check_imports.can_reach(edges, b, a)})


def list_walkers(tree: Tree) -> list[str]:
    return [name for name, text in tree.python().items() if _WALKED.search(text)]


def list_readers_of_code(tree: Tree) -> list[str]:
    return [name for name, text in tree.python().items() if len(set(_CODE.findall(text))) > 1]


def list_public(tree: Tree) -> list[str]:
    """Functions that the public headers declare."""
    headers = (text for name, text in tree.texts.items() if re.fullmatch(r"include/headrace/\w+\.h", name))
    code = re.sub(r"/\*.*?\*/", "", "\n".join(headers), flags=re.DOTALL)
    return sorted(set(re.findall(r"\b(hr_\w+)\(", code)) - set(re.findall(r"#define (hr_\w+)\(", code)))


def list_uncalled(tree: Tree) -> list[str]:
    """Public functions that no face and no example calls."""
    faces = [text for name, text in tree.texts.items() if name.startswith(("cli/", "python/headrace/_core/"))]
    faces += [path.read_text() for path in (tree.root / "examples/c").glob("*.c")]
    called = set(re.findall(r"\bhr_\w+", "\n".join(faces)))
    return [name for name in list_public(tree) if name not in called]


def list_twice(tree: Tree) -> list[str]:
    loaders = ("torch/", "_numpy/", "_loader/")
    patterns = {
        "Engine(...)": r"\bEngine\($",
        "InProcessSamples(...)": r"\bInProcessSamples\($",
        "_raise_timeout": r"def _raise_timeout\(",
        "__del__ of iterators": r"def __del__\(self, is_finalizing",
    }
    return [f"{name} {tree.count(pattern, *loaders)}" for name, pattern in patterns.items()]


def list_judges(tree: Tree) -> list[str]:
    files = ("python/headrace/_report/rules.py", "cli/top_verdict.c", "src/verdict/verdict.c")
    limits = re.compile(r"\b0\.9\d*\b|\b90\b|\b0\.0[1-9]\b")
    return [name for name in files if limits.search(tree.texts.get(name, ""))]


COUNTS: dict[str, Callable[[Tree], int | list[str]]] = {
    "product lines": count_lines,
    f"files over {LONG} lines": list_long,
    "files flat in torch/": list_flat,
    "rooms of torch/, with their files": list_torch_rooms,
    "tables of loaders": list_tables,
    "private attributes of state in headrace.Loader": list_state_of_loader,
    "calls and definitions that both loaders have": list_twice,
    "mutual pairs of rooms": list_mutual,
    "rooms in a circle": list_circle,
    "walkers": list_walkers,
    "readers of a function's code": list_readers_of_code,
    "judges of why a loop waits": list_judges,
    "public functions of C": lambda tree: len(list_public(tree)),
    "public functions of C without a caller": list_uncalled,
}


def list_texts(tree: Tree) -> Iterator[str]:
    """The texts of Python (without docstrings) and of C that users may read."""
    for name, text in sorted(tree.texts.items()):
        if name.endswith(".py"):
            yield from texts_of_python(ast.parse(text))
        else:
            joined = re.sub(r'"\s*\n\s*"', "", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))
            yield from re.findall(rf'"((?:[^"\\]|\\.){{{MIN_TEXT},}})"', joined)


def texts_of_python(module: ast.Module) -> Iterator[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(module)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            if len(node.value) >= MIN_TEXT:
                yield " ".join(node.value.split())


def main(words: list[str]) -> None:
    wants_texts = words[:1] == ["--texts"]
    folder = words[wants_texts] if len(words) > wants_texts else "."
    tree = Tree(ROOT if folder == "." else Path(folder).resolve())
    if wants_texts:
        print(*sorted(set(list_texts(tree))), sep="\n")
        return
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=tree.root, capture_output=True, text=True)
    print(f"commit {commit.stdout.strip()}")
    for name, count in COUNTS.items():
        found = count(tree)
        print(f"{name}: {found if isinstance(found, int) else len(found)}")
        for one in found if isinstance(found, list) else []:
            print(f"    {one}")


if __name__ == "__main__":
    main(sys.argv[1:])
