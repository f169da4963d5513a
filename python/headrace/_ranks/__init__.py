# SPDX-License-Identifier: Apache-2.0
"""The ranks of a training: which one this process is, and how many there are."""
