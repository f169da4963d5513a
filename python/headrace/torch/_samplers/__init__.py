# SPDX-License-Identifier: Apache-2.0
"""The samplers of torch's loaders: which one is known, its indices, and how an order is dealt to ranks."""
