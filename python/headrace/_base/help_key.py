# SPDX-License-Identifier: Apache-2.0
"""Names the page that explains a message, which `headrace help KEY` prints.

The pages are in headrace/_help. Messages of the C library name theirs by HR_HELP (headrace/face/error.h). The fallback
to torch's DataLoader uses this module too, so it does not import the extension.
"""


def help_on(key: str) -> str:
    """Returns the end of a message that has a page."""
    return f" (headrace help {key})"
