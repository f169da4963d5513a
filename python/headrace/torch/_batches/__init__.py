# SPDX-License-Identifier: Apache-2.0
"""How the batches of torch's loaders are made: in workers, by torch's collate functions, from rows."""
