# SPDX-License-Identifier: Apache-2.0
"""Finds what keeps an object from being pickled for worker processes. Use headrace.doctor.check.

The engine uses it too, when workers cannot be started or a batch cannot be sent.
"""
