# SPDX-License-Identifier: Apache-2.0
"""headrace.cache: one copy of a dataset for all jobs on a machine. `interface.py` has the public functions."""
