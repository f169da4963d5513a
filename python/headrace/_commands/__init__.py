# SPDX-License-Identifier: Apache-2.0
"""The commands of the program that are written in Python, and how they find a user's object."""
