# SPDX-License-Identifier: Apache-2.0
"""Remote objects: the fetcher with its network code, and the command that starts it.

`fetcher` is the process that asks servers, one per folder and user; headrace's C library starts it
(src/remote/README.md). `https`, `buckets` and `hub` read objects for it, `accounts` finds the credentials for buckets,
`settings` has what a request brings, `addresses` says what an address is and what of it may be shown, `failures` are
its errors. Processes that read samples import `command` only.
"""
