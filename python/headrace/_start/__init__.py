# SPDX-License-Identifier: Apache-2.0
"""How a worker process comes to be.

The fork server and what it preloads, the way of the dataset to the worker (transport), pickling, signals and the
garbage collector while processes start, and which multiprocessing contexts can be used.
"""
