# SPDX-License-Identifier: Apache-2.0
"""The states of torch's loaders, and how an epoch begins or continues."""
