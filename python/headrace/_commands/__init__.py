# SPDX-License-Identifier: Apache-2.0
"""The commands of the headrace program that are written in Python; `target` finds the object that a user names."""
