# SPDX-License-Identifier: Apache-2.0
"""The samples that batches are made of: drawing indices, making samples one by one, and replacing bad ones. Trainer and
workers use it."""
