# SPDX-License-Identifier: Apache-2.0
"""Runs a loader and says what is slow, what grows and what is wrong with its order: `headrace doctor --run SOURCE`."""
