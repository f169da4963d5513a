# SPDX-License-Identifier: Apache-2.0
"""Handles torch's tensors where no loader is involved: in pickles of batches, and in frozen data.

headrace.torch and headrace.store use it. Its modules import torch.
"""
