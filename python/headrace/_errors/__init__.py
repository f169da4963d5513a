# SPDX-License-Identifier: Apache-2.0
"""Exceptions on their way to the user: text, notes, and how one of a worker is raised in the trainer."""
