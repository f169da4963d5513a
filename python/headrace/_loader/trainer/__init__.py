# SPDX-License-Identifier: Apache-2.0
"""The trainer's side of a loader: it submits tasks to workers, receives batches, and watches over the processes."""
