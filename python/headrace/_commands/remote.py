# SPDX-License-Identifier: Apache-2.0
"""Parts that the commands about remote objects share: URLs, the settings of storage=, and the reason of an error."""

from __future__ import annotations

import argparse
import json
from typing import Any

from headrace._commands.common import Failed
from headrace._remote.addresses import is_remote


def add_storage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--storage",
        metavar="FILE",
        help="a JSON file with the settings that sources take as storage= (default: keys of the environment)",
    )


def checked_storage(options: argparse.Namespace) -> dict[str, Any] | None:
    """Returns the settings of --storage; None: it was not given. Raises Failed, whose text has nothing of the file."""
    if options.storage is None:
        return None
    try:
        with open(options.storage) as file:
            found = json.load(file)
    except OSError as error:
        raise Failed(f"cannot read {options.storage}: {error.strerror}") from None
    except ValueError:
        raise Failed(f"{options.storage} is not a JSON file") from None
    if not isinstance(found, dict):
        raise Failed(f'{options.storage} should have a JSON object, such as {{"region": "eu-west-1"}}')
    return found


def refuse_local(words: list[str], hint: str) -> None:
    """Raises Failed if a word is no URL. hint: what to do instead."""
    local = [word for word in words if not is_remote(word)]
    if local:
        raise Failed(f"{local[0]} is no URL; {hint}")


def reason(error: BaseException) -> str:
    """Returns the text of an exception, without the number that OSError puts before it."""
    return str(getattr(error, "strerror", None) or error)
