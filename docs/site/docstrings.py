# SPDX-License-Identifier: Apache-2.0
"""Turns the docstrings of headrace, which are plain text, into reStructuredText for Sphinx.

A paragraph is one of these: text; arguments or parts, each as `name: what it is` with further lines indented by four
characters, also below a line such as `Args:`; code or a picture, indented by four characters. A word in backticks is
code.
"""

import re
from collections.abc import Iterator

_INDENT = "    "
_ENTRY = re.compile(r"[\w.*]+(?:, [\w.*]+)*: ")


def convert(lines: list[str]) -> list[str]:
    """Returns the lines of a docstring as reStructuredText."""
    paragraphs = "\n".join(lines).strip("\n").split("\n\n")
    result: list[str] = []
    for paragraph in _join_code(paragraphs):
        result += [*_convert(paragraph.split("\n")), ""]
    return result


def _join_code(paragraphs: list[str]) -> Iterator[str]:
    """Joins pieces of code that a blank line divides."""
    code = ""
    for paragraph in paragraphs:
        if _is_code(paragraph):
            code += ("\n\n" if code else "") + paragraph
            continue
        if code:
            yield code
        code = ""
        yield paragraph
    if code:
        yield code


def _is_code(paragraph: str) -> bool:
    return paragraph.startswith(_INDENT) and not _ENTRY.match(paragraph.lstrip())


def _convert(lines: list[str]) -> list[str]:
    if _is_code(lines[0]):
        return ["::", "", *(_INDENT + line for line in lines)]
    if lines[0].endswith(":") and len(lines) > 1 and all(line.startswith(_INDENT) for line in lines[1:]):
        return [f"**{_inline(lines[0])}**", "", *_entries([line[len(_INDENT) :] for line in lines[1:]])]
    if all(line.startswith(_INDENT) for line in lines):
        return _entries([line[len(_INDENT) :] for line in lines])
    if _ENTRY.match(lines[0]):
        return _entries(lines)
    return [_inline(line) for line in lines]


def _entries(lines: list[str]) -> list[str]:
    """Returns a list of fields. A line that neither begins one nor is indented goes on with the one above."""
    result = []
    for line in lines:
        if match := _ENTRY.match(line):
            name = match[0][:-2].replace("*", r"\*")
            result.append(f":{name}: {_inline(line[match.end() :])}")
        else:
            result.append(_INDENT + _inline(line.strip()))
    return result


def _inline(text: str) -> str:
    """Returns text with code in backticks as code, and other marks of reStructuredText without their meaning."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a piece of code goes on in the next line
        return re.sub(r"([`*|_]|\\)", r"\\\1", text)
    parts[::2] = [re.sub(r"([*|]|\\|_(?=\W|$))", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f"``{part}``" if part.strip() == part and part else part for part in parts[1::2]]
    return "".join(parts)
