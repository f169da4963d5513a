# SPDX-License-Identifier: Apache-2.0
"""headrace.Loader: the engine without torch."""
