# SPDX-License-Identifier: Apache-2.0
"""The code that runs in a worker process: its main function, its job, and what it leaves for the report on its end."""
