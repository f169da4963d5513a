# SPDX-License-Identifier: Apache-2.0
"""What batches are made of: what is drawn, samples made one by one, and replacements for bad ones."""
