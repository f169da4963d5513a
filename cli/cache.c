/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include <headrace/error.h>
#include <headrace/store.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int show_help(FILE *to) {
    fputs("Usage: headrace cache verify FILE...\n"
          "\n"
          "  verify   read image files of frozen data (headrace.freeze, Builder) as a\n"
          "           whole, and check each of their parts against its checksum; exit\n"
          "           code 1: one is damaged, truncated, or not an image\n",
          to);
    return 0;
}

/* Returns 0, or 1 if the file is damaged. */
static int verify(const char *path) {
    hr_store *store;
    if (hr_store_open(path, HR_STORE_VERIFY, &store) < 0) {
        fprintf(stderr, "headrace: %s\n", hr_error_message());
        return 1;
    }
    struct hr_store_info info;
    hr_store_look(store, &info);
    printf("%s: %" PRIu64 " bytes, no damage found\n", path, info.bytes);
    hr_store_close(store);
    return 0;
}

int cache_command(int argc, char **argv) {
    for (int i = 2; i < argc && i < 4; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return show_help(stdout);
    if (argc > 2 && strcmp(argv[2], "verify") != 0) {
        fprintf(stderr, "headrace: unknown cache command '%s'; there is verify\n", argv[2]);
        return EXIT_USAGE;
    }
    if (argc < 4) {
        show_help(stderr);
        return EXIT_USAGE;
    }
    int code = 0;
    for (int i = 3; i < argc; i++) code |= verify(argv[i]);
    return code;
}
