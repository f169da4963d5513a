# SPDX-License-Identifier: Apache-2.0
"""Exceptions and warnings on their way to the user: their text, their notes, and how the trainer raises an exception of
a worker."""
