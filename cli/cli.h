/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_CLI_H
#define HR_CLI_H

enum { EXIT_USAGE = 2 };

/* `headrace cache`, with the program's own arguments. Returns the exit code. */
int cache_command(int argc, char **argv);

#endif
