# SPDX-License-Identifier: Apache-2.0
"""Handles torch's tensors where no loader is involved: in pickles of batches, in frozen data, and over shared arrays.

headrace.torch, headrace.store and headrace.cache use it. Its modules import torch, except shared.py, which does so when
it makes a tensor.
"""
