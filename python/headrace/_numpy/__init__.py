# SPDX-License-Identifier: Apache-2.0
"""headrace.Loader: loads batches of NumPy arrays, without torch.

The loader, its iterators with and without workers, the batch maker of its workers, and the default collate function.
"""
