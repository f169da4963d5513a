# SPDX-License-Identifier: Apache-2.0
"""The loader, its iterators, install() and the fallback."""
