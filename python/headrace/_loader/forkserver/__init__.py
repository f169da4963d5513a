# SPDX-License-Identifier: Apache-2.0
"""headrace's fork server: a process that has imported what workers need, and from which they are forked.

client.py is the trainer's side, context.py gives it to multiprocessing, and server.py is the server itself. fitness.py
and import_watch.py say whether a process that has imported the user's modules is safe to fork.
"""
