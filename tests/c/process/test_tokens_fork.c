/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../unit/tokens_scene.h"

/* Children that are forked while threads of their parent read: they go on with its files, whatever the threads were at.
 */

enum { CHILDREN = 20 };

static void children_read_their_parents_files(void **state) {
    struct reader readers[READERS], own;
    struct hr__thread threads[READERS];
    struct rlimit before;
    hr_tokens *tokens;
    int status;
    (void)state;
    lower_limit(&before);
    must(hr_tokens_open(put_numbered(READ_FILES), READ_FILES, &(struct hr_tokens_options){.length = 4}, &tokens));
    start_readers(tokens, readers, threads);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t pid = fork();
        own = (struct reader){tokens, 3, 0};
        if (pid == 0) read_many(&own), _exit(own.errors != 0);
        check(waitpid(pid, &status, 0) == pid && status == 0);
    }
    join_readers(readers, threads);
    check(setrlimit(RLIMIT_NOFILE, &before) == 0);
    hr_tokens_close(tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(children_read_their_parents_files, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
