# SPDX-License-Identifier: Apache-2.0
"""Handles torch's tensors where no loader is involved: in pickles of batches, in frozen data, and over shared arrays.

headrace.torch, headrace.frozen and headrace.cache use it. Its modules import torch; only shared.py does so later, when
it makes a tensor.
"""
