# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job: compares what they read in each epoch."""
