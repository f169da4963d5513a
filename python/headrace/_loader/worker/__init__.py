# SPDX-License-Identifier: Apache-2.0
"""The code that runs in a worker process: its main function, how it makes batches, and its diagnostics."""
