# SPDX-License-Identifier: Apache-2.0
"""Says from a recording whether a training waited for its data, why, and what to change: `headrace report`."""
