# SPDX-License-Identifier: Apache-2.0
"""Says what this machine, its container and its limits mean for loaders: `headrace doctor` without SOURCE."""
