# SPDX-License-Identifier: Apache-2.0
"""The types that can be frozen, a file per family. To add a type, add a row to the table ROWS of its family.

A value of such a type is stored as a name and its parts. The extension calls the functions of `hooks`.
"""
