# SPDX-License-Identifier: Apache-2.0
"""What headrace does with torch's tensors without a loader: in pickles of batches, and in frozen data.

headrace.torch and headrace.store use it. Its modules import torch.
"""
