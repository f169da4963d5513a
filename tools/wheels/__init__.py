# SPDX-License-Identifier: Apache-2.0
"""The parts of `make wheels`, which tools/make_wheels.py puts together."""
