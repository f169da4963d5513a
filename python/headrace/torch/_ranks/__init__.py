# SPDX-License-Identifier: Apache-2.0
"""Ranks of torch.distributed: how they compare loaders, and which one failed first."""
