# SPDX-License-Identifier: Apache-2.0
"""torch's own classes, and everything that headrace does with private names of torch."""
