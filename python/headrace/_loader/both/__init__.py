# SPDX-License-Identifier: Apache-2.0
"""Loads and counts the epochs of both loaders: what headrace keeps of a loader, how an epoch begins, its state, and its
iterators.

It sees each loader as an AnyLoader. headrace.torch and headrace.Loader say what only they know: how a batch is
collated, what the samplers are, and how seeds are drawn.
"""
