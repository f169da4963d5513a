# SPDX-License-Identifier: Apache-2.0
"""Looks into a user's objects: what they can do, and which of them grow in the workers' memory."""
