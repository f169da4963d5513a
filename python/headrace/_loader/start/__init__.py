# SPDX-License-Identifier: Apache-2.0
"""Starts worker processes.

The transport of the dataset to the worker, the pickling of batches, signals and the garbage collector while processes
start, and the check of multiprocessing contexts. forkserver, worker and trainer use this one; it uses none of
them.
"""
