# SPDX-License-Identifier: Apache-2.0
"""Orders of the samples of a dataset, how they are divided among ranks, and the state that continues an epoch.

Only _order.py needs the extension, because headrace.torch continues epochs without it too.
"""
