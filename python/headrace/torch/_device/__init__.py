# SPDX-License-Identifier: Apache-2.0
"""The option `device`: batches that arrive on a GPU. choose.py says which device, sender.py copies batches there from
their slots, cuda.py is what torch does for that, and move.py is the plain way, which needs no extension."""
