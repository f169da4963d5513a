# SPDX-License-Identifier: Apache-2.0
"""Builds the site in build/docs/html from the documents of the repository, with Sphinx. No network is needed.

build_docs.py [BUILDER]: html (the default), man, text, or another builder of Sphinx.

The documents stay where readers of the repository look for them. This script copies them to build/docs/source, each to
the place of its page, changes the links between them, and adds the pages that are made from code: the C reference, the
commands with their help, and a page for each example. A link to a file that is no page becomes the path of the file,
and a link whose text is the path of a page gets the title of that page.
"""

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

import c_reference
from common import ROOT, list_files

SOURCE = ROOT / "build/docs/source"
SETTINGS = ROOT / "docs/site"  # conf.py and the tree of pages
COMMANDS = ["", "run", "exec", "doctor", "replay", "report", "help", "index", "top", "record", "completion", "cache"]
COMMANDS += [f"cache {word}" for word in ("warm", "ls", "info", "verify", "rm", "gc")]
# Forms of commands that have options of their own, with the options that show their help.
SECOND_FORMS = {
    "doctor": {"A machine, or a loader at work": ["--machine-help"]},
    "cache warm": {"The samples of a dataset": ["--dataset", "SOURCE", "--help"]},
}
_LINK = re.compile(r"\[(?P<words>(?:[^][]|\[[^][]*\])*)\]\((?P<path>[^)#\s:]*)(?P<anchor>#[^)\s]*)?\)")
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)


def page_of(name: str) -> str | None:
    """Returns the page of a file of the repository, as a path without a suffix, or None if it has no page."""
    path = Path(name)
    if name == "README.md":
        return "index"
    if path.parts[0] == "docs" and path.suffix == ".md" and path.parts[1] != "site":
        return path.relative_to("docs").with_suffix("").as_posix()
    if name.startswith("python/headrace/_help/"):
        return f"reference/messages/{path.stem}"
    if name.startswith("include/headrace/") and len(path.parts) == 3:
        return f"reference/c/{path.stem}"  # write_c_reference writes it
    if path.parts[0] == "examples" and path.suffix in (".md", ".py", ".c"):
        return "examples/index" if path.name == "README.md" else f"examples/{path.name.replace('.', '-')}"
    if path.suffix == ".md" and path.name == "README.md":
        return f"developers/{'-'.join(part.strip('_') for part in path.parts[:-1])}"
    return f"developers/{path.stem.lower()}" if path.suffix == ".md" and len(path.parts) == 1 else None


def list_pages() -> dict[str, str]:
    """Returns the page of each file of the repository that is one."""
    names = (path.relative_to(ROOT).as_posix() for path in list_files(ROOT))
    return {name: page for name in names if (page := page_of(name))}


def move_links(text: str, name: str, pages: dict[str, str]) -> str:
    """Returns the text of a file with its links as they have to be on its page."""
    folder, here = posixpath.dirname(name), posixpath.dirname(pages[name]) or "."

    def moved(match: re.Match[str]) -> str:
        words, path, anchor = match["words"], match["path"], match["anchor"] or ""
        if not path:
            return match[0]
        target = posixpath.normpath(posixpath.join(folder, path))
        page = pages.get(target) or pages.get(f"{target}/README.md")
        if page:
            is_path = words.endswith(".md") and not anchor
            return f"[{'' if is_path else words}]({posixpath.relpath(page, here)}.md{anchor})"
        if target.startswith("docs/") and target.endswith(".svg"):
            return f"[{words}]({posixpath.relpath(target.removeprefix('docs/'), here)})"
        return words if target in words else f"{words} (`{target}`)"

    parts = _FENCED.split(text)
    parts[::2] = [_LINK.sub(moved, part) for part in parts[::2]]
    return "".join(parts)


def write(page: str, text: str) -> None:
    """Writes the source of a page, unless it is there: Sphinx reads only what has changed."""
    path = SOURCE / f"{page}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    _written.add(path)


_written: set[Path] = set()


def write_documents(pages: dict[str, str]) -> None:
    """Writes the pages of documents and examples."""
    for name, page in pages.items():
        if name.startswith("include/"):
            continue
        text = (ROOT / name).read_text()
        if page.startswith("reference/messages/"):
            text = name_key(text, posixpath.basename(page))
        if name.endswith(".md"):
            tree = (SETTINGS / "tree.txt").read_text() if page == "index" else ""
            write(page, move_links(text, name, pages) + tree)
        else:
            write(page, example(name, text))
    for picture in (ROOT / "docs").glob("*.svg"):
        shutil.copy2(picture, SOURCE / picture.name)


def name_key(text: str, key: str) -> str:
    """Returns the page about a message with its key below the title, for those who search for what the message ends
    with."""
    title, _, rest = text.partition("\n")
    return f"{title}\n\nMessages end with `(headrace help {key})`.\n{rest}"


def example(name: str, text: str) -> str:
    """Returns the page of an example."""
    language = "python" if name.endswith(".py") else "c"
    title = name.removeprefix("examples/")
    return f"# {title}\n\n`{name}` of the repository.\n\n````{language}\n{text}````\n"


def write_c_reference() -> None:
    """Writes a page for each public header."""
    target = ROOT / "build/docs/c"
    if c_reference.main(ROOT / "include", target):
        raise SystemExit("build_docs: a declaration has no comment")
    for path in target.glob("*.md"):
        page = "index" if path.stem == "README" else path.stem
        write(f"reference/c/{page}", path.read_text())


def write_commands() -> None:
    """Writes a page for each command."""
    rows = ["# Commands\n\nThese pages are what `--help` prints. They are man pages, too: `make man`.\n"]
    for command in COMMANDS:
        words = ["headrace", *command.split()]
        name, shown = "-".join(words), " ".join(words)
        write(f"reference/commands/{name}", command_page(command))
        rows.append(f"- [{shown}]({name}.md): {command_about(shown)}")
    write("reference/commands/index", "\n".join(rows) + "\n")


def command_page(command: str) -> str:
    """Returns the page of a command, which is what its help says."""
    words = ["headrace", *command.split()]
    shown = " ".join(words)
    page = f"# {shown}\n\n{command_about(shown)}\n\n```text\n{help_of(words).rstrip()}\n```\n"
    for title, options in SECOND_FORMS.get(command, {}).items():
        page += f"\n## {title}\n\n```text\n{help_of(words, *options).rstrip()}\n```\n"
    return page


def help_of(words: list[str], *options: str) -> str:
    return subprocess.run([*words, *(options or ["--help"])], check=True, capture_output=True, text=True).stdout


def command_about(shown: str) -> str:
    """Returns what the help of the program, or of `headrace cache`, says about a command."""
    *above, name = shown.split()
    if not above:
        return "Brings samples to training processes."
    match = re.search(rf"^  {name} +(.*(?:\n {{5,}}.*)*)", help_of(above), re.MULTILINE)
    assert match, f"the help of {' '.join(above)} does not have {name}"
    about = re.sub(r"; see `.*", "", " ".join(match[1].split()))
    return f"{about[0].upper()}{about[1:]}."


def write_trees() -> None:
    """Adds the list of its pages to the page of each folder, where Sphinx finds them."""
    write(
        "reference/messages/index",
        "# Messages\n\nWhat they mean, and what to do. A message ends with its key: `(headrace help KEY)`.\n",
    )
    write("developers/index", "# Developers\n\nHow headrace works inside, a page for each part.\n")
    with_own_lists = ("reference/c", "reference/commands", "reference/python", "examples")
    for folder in (*with_own_lists, "reference/messages", "developers"):
        index, option = f"{folder}/index", ":hidden:" if folder in with_own_lists else ":maxdepth: 1"
        path = SOURCE / f"{index}.md"
        names = sorted(page.stem for page in _written if page.parent == path.parent and page != path)
        write(index, path.read_text() + f"\n```{{toctree}}\n{option}\n\n" + "\n".join(names) + "\n```\n")


def remove_others() -> None:
    """Removes pages of files that are gone."""
    for path in SOURCE.rglob("*.md"):
        if path not in _written:
            path.unlink()


def main(builder: str = "html") -> int:
    SOURCE.mkdir(parents=True, exist_ok=True)
    write_documents(list_pages())
    write_c_reference()
    write_commands()
    write_trees()
    remove_others()
    arguments = ["-m", "sphinx", "-W", "--keep-going", "-q", "-b", builder, "-c", SETTINGS, SOURCE]
    return subprocess.run([sys.executable, *map(str, arguments), str(ROOT / "build/docs" / builder)]).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
