# SPDX-License-Identifier: Apache-2.0
"""The base of the package: texts of exceptions and warnings, looking at a user's objects without running their
code, and what is known about this process and its machine."""
