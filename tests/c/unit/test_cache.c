/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "../support/cache_scene.h"

/* The cache in one process: names, folders, builds, claims, damage and removal. */

static const char *data_path(const hr_cached *cached) {
    struct hr_cached_info info;
    hr_cached_look(cached, &info);
    return info.path;
}

/* ---- names and folders ---- */

static void names_that_are_no_names_are_refused(void **state) {
    char text[301];
    (void)state;
    memset(text, 'n', 300);
    text[300] = '\0';
    assert_refused(hr_cache_check_name("", "0"), -EINVAL, "is empty");
    assert_refused(hr_cache_check_name("a/b", "0"), -EINVAL, "has a slash");
    assert_refused(hr_cache_check_name(".hidden", "0"), -EINVAL, "begins with a dot");
    assert_refused(hr_cache_check_name("..", "0"), -EINVAL, "begins with a dot");
    assert_refused(hr_cache_check_name("a\nb", "0"), -EINVAL, "control character");
    assert_refused(hr_cache_check_name(text, "0"), -EINVAL, "300 bytes");
    assert_refused(hr_cache_check_name("a", text), -EINVAL, "300 bytes");
    must(hr_cache_check_name("v1.2 of \xc3\xa4", ""));
}

static void a_root_that_is_a_file_is_refused(void **state) {
    char path[128];
    hr_cache *other;
    (void)state;
    snprintf(path, sizeof path, "%s/file", root);
    fclose(fopen(path, "w"));
    assert_refused(hr_cache_open(path, &other), -ENOTDIR, "is not a folder");
}

static void a_root_that_others_may_write_to_is_refused(void **state) {
    hr_cache *other;
    (void)state;
    chmod(root, 0777);
    assert_refused(hr_cache_open(root, &other), -EPERM, "chmod go-w");
}

static void a_root_of_another_user_is_refused(void **state) {
    hr_cache *other;
    (void)state;
    if (geteuid() != 0) skip(); /* only the superuser can give a folder away */
    must(chown(root, 12345, (gid_t)-1));
    assert_refused(hr_cache_open(root, &other), -EPERM, "belongs to user 12345");
}

static void a_root_that_is_a_link_is_refused(void **state) {
    char path[128];
    hr_cache *other;
    (void)state;
    snprintf(path, sizeof path, "%s/link", root);
    must(symlink("/dev/shm", path));
    assert_refused(hr_cache_open(path, &other), -ELOOP, "is a symbolic link");
}

#ifdef HR_FAILPOINTS
static void a_root_on_a_network_file_system_is_refused(void **state) {
    hr_cache *other;
    (void)state;
    setenv("HEADRACE_FAIL", "statfs_nfs:EIO", 1);
    assert_refused(hr_cache_open(root, &other), -EOPNOTSUPP, "is on NFS");
}
#endif

/* ---- building and attaching ---- */

static void what_is_built_is_attached_with_its_texts(void **state) {
    struct hr_cache_request request = request_for("features", "stamp\nof \\two lines");
    struct hr_cached_info info;
    hr_cached *cached;
    (void)state;
    hr_cached_detach(put_object(&request, 1));
    must(hr_cache_attach(cache, "features", "0", &cached));
    check(has_object(cached, 1));
    hr_cached_look(cached, &info);
    assert_string_equal(info.name, "features");
    assert_string_equal(info.version, "0");
    assert_string_equal(info.stamp, request.stamp);
    assert_string_equal(info.meta, "meta");
    assert_string_equal(info.format, "raw");
    assert_int_equal(info.keep, HR_CACHE_KEEP_BOOT);
    must(hr_cached_verify(cached));
    hr_cached_detach(cached);
    assert_int_equal(count_in("claims"), 0);
    assert_int_equal(count_in("partial"), 0);
}

static void an_empty_object_can_be_built(void **state) {
    struct hr_cache_request request = request_for("empty", NULL);
    struct hr_cached_info info;
    hr_cached *cached;
    (void)state;
    hr_cache_build *build = begin(&request);
    must(hr_cache_build_reserve(build, 0, 0, ""));
    must(hr_cache_build_finish(build, NULL, &cached));
    hr_cached_look(cached, &info);
    check(info.bytes == 0 && info.data == NULL);
    must(hr_cached_verify(cached));
    hr_cached_detach(cached);
}

static void a_file_of_the_caller_can_be_published(void **state) {
    struct hr_cache_request request = request_for("file", NULL);
    const char *path;
    hr_cached *cached;
    unsigned char bytes[OBJECT_BYTES];
    (void)state;
    hr_cache_build *build = begin(&request);
    must(hr_cache_build_file(build, OBJECT_BYTES, &path));
    FILE *file = fopen(path, "w");
    fill_bytes(bytes, OBJECT_BYTES, 0, 3);
    check(fwrite(bytes, 1, OBJECT_BYTES, file) == OBJECT_BYTES);
    fclose(file);
    must(hr_cache_build_finish(build, "of a file", &cached));
    check(has_object(cached, 3));
    must(hr_cached_verify(cached));
    hr_cached_detach(cached);
}

static void an_object_that_is_missing_is_named(void **state) {
    hr_cached *cached;
    (void)state;
    assert_refused(hr_cache_attach(cache, "nothing", "0", &cached), -ENOENT, "there is no 'nothing' version '0'");
}

static void another_stamp_builds_again_and_maps_stay(void **state) {
    struct hr_cache_request first = request_for("features", "one"), second = request_for("features", "two");
    hr_cached *old = put_object(&first, 1), *same, *found;
    hr_cache_build *build;
    (void)state;
    check(ask(&first, &same, &build) == HR_CACHE_ATTACHED);
    hr_cached *new = put_object(&second, 2);
    check(has_object(old, 1) && has_object(same, 1) && has_object(new, 2));
    must(hr_cache_attach(cache, "features", "0", &found));
    check(has_object(found, 2));
    assert_int_equal(count_in("trash"), 1);
    hr_cached_detach(old);
    assert_int_equal(count_in("trash"), 1);
    hr_cached_detach(same);
    assert_int_equal(count_in("trash"), 0);
    hr_cached_detach(new);
    hr_cached_detach(found);
}

#ifdef HR_FAILPOINTS
static void objects_are_replaced_without_a_swap(void **state) {
    struct hr_cache_request first = request_for("features", "one"), second = request_for("features", "two");
    (void)state;
    hr_cached_detach(put_object(&first, 1));
    setenv("HEADRACE_FAIL", "swap:EINVAL", 1);
    hr_cached *new = put_object(&second, 2);
    check(has_object(new, 2));
    assert_int_equal(count_in("objects"), 1);
    assert_int_equal(count_in("trash"), 0);
    hr_cached_detach(new);
}
#endif

static void objects_of_a_job_end_with_the_last_claim(void **state) {
    struct hr_cache_request request = request_for("samples", NULL);
    hr_cached *other;
    (void)state;
    request.keep = HR_CACHE_KEEP_JOB;
    hr_cached *one = put_object(&request, 1);
    must(hr_cache_attach(cache, "samples", "0", &other));
    hr_cached_detach(one);
    assert_int_equal(count_in("objects"), 1);
    hr_cached_unclaim(other);
    assert_int_equal(count_in("objects"), 0);
    check(has_object(other, 1)); /* it is still mapped */
    hr_cached_detach(other);
    assert_int_equal(count_in("trash"), 0);
}

/* ---- chunks ---- */

static void a_second_builder_keeps_the_finished_chunks(void **state) {
    struct hr_cache_request request = request_for("rows", "s");
    hr_cached *cached;
    (void)state;
    hr_cache_build *build = begin(&request);
    must(hr_cache_build_reserve(build, OBJECT_BYTES, CHUNK, "meta"));
    must(write_chunk(build, 1, 1));
    hr_cache_build_abandon(build);
    build = begin(&request);
    assert_int_equal(write_object(build, 1), CHUNKS - 1);
    must(hr_cache_build_finish(build, NULL, &cached));
    check(has_object(cached, 1));
    hr_cached_detach(cached);
}

static void a_chunk_that_was_damaged_is_made_again(void **state) {
    struct hr_cache_request request = request_for("rows", "s");
    (void)state;
    hr_cache_build *build = begin(&request);
    must(hr_cache_build_reserve(build, OBJECT_BYTES, CHUNK, "meta"));
    must(write_chunk(build, 0, 1));
    must(write_chunk(build, 1, 1));
    must(hr_cache_build_write(build, CHUNK + 5, "x", 1));
    hr_cache_build_abandon(build);
    build = begin(&request);
    assert_int_equal(write_object(build, 1), CHUNKS - 1);
    hr_cache_build_abandon(build);
}

static void chunks_of_another_stamp_or_size_are_not_kept(void **state) {
    struct hr_cache_request request = request_for("rows", "s"), other = request_for("rows", "t");
    (void)state;
    hr_cache_build *build = begin(&request);
    assert_int_equal(write_object(build, 1), CHUNKS);
    hr_cache_build_abandon(build);
    build = begin(&other);
    assert_int_equal(write_object(build, 2), CHUNKS);
    assert_int_equal(count_in("partial"), 1);
    hr_cache_build_abandon(build);
    build = begin(&other);
    must(hr_cache_build_reserve(build, OBJECT_BYTES, 2 * CHUNK, "meta"));
    check(!hr_cache_build_has(build, 0) && !hr_cache_build_has(build, 1));
    hr_cache_build_abandon(build);
}

static void writes_outside_of_the_object_are_refused(void **state) {
    struct hr_cache_request request = request_for("rows", NULL);
    (void)state;
    hr_cache_build *build = begin(&request);
    assert_refused(hr_cache_build_write(build, 0, "x", 1), HR_E_STATE, "reserve space");
    must(hr_cache_build_reserve(build, OBJECT_BYTES, CHUNK, ""));
    assert_refused(hr_cache_build_write(build, OBJECT_BYTES, "x", 1), -ERANGE, "are not within");
    assert_refused(hr_cache_build_write(build, UINT64_MAX, "x", 2), -ERANGE, "are not within");
    assert_refused(hr_cache_build_mark(build, CHUNKS), -ERANGE, "has no chunk 3");
    assert_refused(hr_cache_build_reserve(build, 1, 1, ""), HR_E_STATE, "has its place already");
    hr_cache_build_abandon(build);
}

/* ---- failures ---- */

static void one_that_waits_gets_the_text_and_a_later_call_builds(void **state) {
    struct hr_cache_request request = request_for("features", NULL);
    hr_cache_ticket *ticket;
    hr_cached *cached;
    hr_cache_build *other;
    uint64_t count;
    (void)state;
    hr_cache_build *build = begin(&request);
    request.only_try = 1;
    must(hr_cache_ask(cache, &request, &ticket));
    /* In this thread, it would be a deadlock. */
    assert_refused(hr_cache_wait(ticket, 0, &cached, &other), -EDEADLK, "asks for 'features' itself");
    hr_cache_build_fail(build, "Traceback", 9, 0);
    check(hr_cache_wait(ticket, 0, &cached, &other) == HR_CACHE_BUILD);
    check(hr_cache_ticket_failure(ticket, &count) == NULL && count == 0);
    assert_int_equal(count_in("partial"), 0);
    hr_cache_build_abandon(other);
    hr_cache_ticket_free(ticket);
}

static void a_truncated_object_is_refused_and_built_again(void **state) {
    struct hr_cache_request request = request_for("features", "s");
    hr_cached *cached = put_object(&request, 1), *other;
    (void)state;
    must(truncate(data_path(cached), 100));
    hr_cached_detach(cached);
    assert_refused(hr_cache_attach(cache, "features", "0", &other), HR_E_CORRUPT, "it was truncated");
    cached = put_object(&request, 2);
    check(has_object(cached, 2));
    hr_cached_detach(cached);
}

static void a_flipped_bit_is_found(void **state) {
    struct hr_cache_request request = request_for("features", NULL);
    hr_cached *cached = put_object(&request, 1);
    (void)state;
    int fd = open(data_path(cached), O_RDWR);
    check(pwrite(fd, "\xff", 1, CHUNK + 3) == 1);
    close(fd);
    assert_refused(hr_cached_verify(cached), HR_E_CORRUPT, "bytes 4096 to 8192");
    hr_cached_detach(cached);
}

/* Every byte of the record, changed: an error or an object that is whole, and no crash. */
static void a_damaged_record_is_an_error(void **state) {
    struct hr_cache_request request = request_for("features", NULL);
    char path[256], text[4096];
    hr_cached *cached = put_object(&request, 1), *other;
    (void)state;
    snprintf(path, sizeof path, "%.*sinfo", (int)(strrchr(data_path(cached), '/') + 1 - data_path(cached)),
             data_path(cached));
    int fd = open(path, O_RDWR);
    ssize_t bytes = read(fd, text, sizeof text);
    check(bytes > 100);
    for (ssize_t i = 0; i < bytes - 1; i++) {
        char changed = (char)(text[i] ^ 1);
        check(pwrite(fd, &changed, 1, i) == 1);
        int r = hr_cache_attach(cache, "features", "0", &other);
        check(r == HR_E_CORRUPT || r == HR_E_VERSION);
        check(pwrite(fd, &text[i], 1, i) == 1);
    }
    close(fd);
    hr_cached_detach(cached);
}

#ifdef HR_FAILPOINTS
static void a_full_disk_at_each_write_is_an_error(void **state) {
    static const char *const plans[] = {"mkdir:ENOSPC",      "open:ENOSPC",         "fallocate:ENOSPC",
                                        "write_data:ENOSPC", "write_record:ENOSPC", "write_sums:ENOSPC",
                                        "rename:ENOSPC",     "statfs_full:ENOSPC",  "open:EMFILE"};
    struct hr_cache_request request = request_for("features", NULL);
    (void)state;
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        hr_cached *cached = NULL;
        hr_cache_build *build = begin(&request);
        setenv("HEADRACE_FAIL", plans[i], 1);
        int r = write_object(build, 1);
        if (r >= 0) r = hr_cache_build_finish(build, NULL, &cached);
        if (r >= 0) print_error("%s: no error\n", plans[i]);
        check(r == -ENOSPC || r == -EMFILE);
        check(*hr_error_message());
        unsetenv("HEADRACE_FAIL");
        hr_cache_build_fail(build, "full", 4, 0);
        assert_int_equal(count_in("objects") + count_in("partial") + count_in("trash"), 0);
    }
    setenv("HEADRACE_FAIL", "write_state:ENOSPC", 1);
    hr_cached *cached;
    hr_cache_build *build;
    check(ask(&request, &cached, &build) == -ENOSPC);
    unsetenv("HEADRACE_FAIL");
    hr_cached_detach(put_object(&request, 1));
}

static void a_cgroup_that_is_too_small_is_seen_before(void **state) {
    struct hr_cache_request request = request_for("large", NULL);
    char path[256];
    (void)state;
    snprintf(path, sizeof path, "mkdir -p %s/m/proc/self %s/m/sys/fs/cgroup/job", root, root);
    check(system(path) == 0);
    static const char *const files[][2] = {{"proc/self/cgroup", "0::/job\n"},
                                           {"proc/meminfo", "MemAvailable: 99999999 kB\n"},
                                           {"sys/fs/cgroup/job/memory.max", "33554432\n"},
                                           {"sys/fs/cgroup/job/memory.current", "1048576\n"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/m/%s", root, files[i][0]);
        FILE *file = fopen(path, "w");
        fputs(files[i][1], file);
        fclose(file);
    }
    snprintf(path, sizeof path, "%s/m", root);
    setenv("HEADRACE_ROOT", path, 1);
    hr_cache_build *build = begin(&request);
    assert_refused(hr_cache_build_reserve(build, 64 << 20, 0, ""), -ENOSPC, "left in the cgroup 0.03 GiB");
    unsetenv("HEADRACE_ROOT");
    hr_cache_build_abandon(build);
}
#endif

static void a_root_that_vanishes_leaves_a_private_copy(void **state) {
    struct hr_cache_request request = request_for("features", NULL);
    struct hr_cached_info info;
    hr_cached *cached;
    (void)state;
    hr_cache_build *build = begin(&request);
    must(write_object(build, 1));
    remove_root();
    must(hr_cache_build_finish(build, NULL, &cached));
    hr_cached_look(cached, &info);
    check(info.is_private && has_object(cached, 1));
    hr_cached_detach(cached);
}

/* ---- removal ---- */

static void what_is_claimed_is_removed_by_force_only(void **state) {
    struct hr_cache_request request = request_for("features", NULL);
    struct hr_cached_info info;
    hr_cached *one = put_object(&request, 1), *later, *none;
    (void)state;
    hr_cached_look(one, &info);
    assert_refused(hr_cache_remove(cache, "features", "0", 0), -EBUSY, "processes have 'features'");
    must(hr_cache_remove(cache, "features", "0", 1));
    check(hr_cache_attach(cache, "features", "0", &none) == -ENOENT);
    must(hr_cache_attach_id(cache, "features", "0", info.id, &later)); /* a later worker of a job that has it */
    hr_cached_detach(one);
    check(has_object(later, 1));
    assert_int_equal(count_in("trash"), 1);
    hr_cached_detach(later);
    assert_int_equal(count_in("trash"), 0);
    assert_refused(hr_cache_remove(cache, "features", "0", 0), -ENOENT, "there is no 'features'");
    assert_int_equal(count_in("locks"), 0);
}

static void what_is_being_built_is_not_removed(void **state) {
    struct hr_cache_request request = request_for("features", NULL);
    (void)state;
    hr_cache_build *build = begin(&request);
    assert_refused(hr_cache_remove(cache, "features", "0", 1), -EBUSY, "builds 'features'");
    hr_cache_build_abandon(build);
}

static void an_id_that_is_no_id_is_refused(void **state) {
    hr_cached *none;
    (void)state;
    assert_refused(hr_cache_attach_id(cache, "features", "0", "../../etc", &none), -EINVAL, "is not an id");
}

static void the_quota_deletes_the_oldest_and_nothing_claimed(void **state) {
    static const char *const names[] = {"a", "b", "c", "d"};
    struct hr_cache_collected result;
    hr_cached *kept = NULL, *found;
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct hr_cache_request request = request_for(names[i], NULL);
        hr_cached *one = put_object(&request, (uint64_t)i);
        if (i == 0)
            kept = one;
        else
            hr_cached_detach(one);
    }
    must(hr_cache_attach(cache, "b", "0", &found)); /* now "c" is the one that was attached longest ago */
    hr_cached_detach(found);
    must(hr_cache_collect(cache, -1, 3 * OBJECT_BYTES, NULL, NULL, &result));
    check(result.objects == 1 && result.bytes == OBJECT_BYTES && result.bytes_left == 3 * OBJECT_BYTES);
    check(hr_cache_attach(cache, "c", "0", &found) == -ENOENT);
    must(hr_cache_collect(cache, -1, 0, NULL, NULL, &result));
    check(result.objects == 2 && result.bytes_left == OBJECT_BYTES); /* all that is left is claimed */
    check(has_object(kept, 0));
    hr_cached_detach(kept);
    must(hr_cache_collect(cache, 0, UINT64_MAX, NULL, NULL, &result));
    check(result.objects == 1 && result.bytes_left == 0);
}

static void leftovers_are_collected(void **state) {
    struct hr_cache_request request = request_for("rows", "s");
    struct hr_cache_collected result;
    (void)state;
    hr_cache_build *build = begin(&request);
    must(write_object(build, 1));
    must(hr_cache_collect(cache, -1, UINT64_MAX, NULL, NULL, &result));
    assert_int_equal(result.objects, 0); /* it is being built */
    hr_cache_build_abandon(build);
    must(hr_cache_collect(cache, -1, UINT64_MAX, NULL, NULL, &result));
    assert_int_equal(result.objects, 1);
    assert_int_equal(count_in("partial"), 0);
}

/* ---- listing ---- */

static int note_entry(void *context, const struct hr_cache_entry *entry) {
    struct hr_cache_entry *entries = context;
    entries[entry->state] = *entry;
    return 0;
}

static int note_claim(void *context, const struct hr_cache_claim *claim) {
    *(struct hr_cache_claim *)context = *claim;
    return 0;
}

static void the_list_has_objects_builds_and_claims(void **state) {
    struct hr_cache_request request = request_for("features", NULL), other = request_for("rows", NULL);
    struct hr_cache_entry entries[HR_CACHE_DAMAGED + 1] = {0};
    struct hr_cache_claim claim = {0};
    struct hr_cached_info info;
    hr_cached *cached = put_object(&request, 1);
    (void)state;
    hr_cache_build *build = begin(&other);
    must(write_object(build, 1));
    hr_cache_build_progress(build, 3, 9);
    must(hr_cache_list(cache, note_entry, entries));
    check(entries[HR_CACHE_READY].state == HR_CACHE_READY && entries[HR_CACHE_READY].claim_count == 1);
    check(entries[HR_CACHE_READY].info.bytes == OBJECT_BYTES && entries[HR_CACHE_READY].attached_ns > 0);
    check(entries[HR_CACHE_BUILDING].builder.is_building);
    check(entries[HR_CACHE_BUILDING].builder.pid == (uint32_t)getpid());
    check(entries[HR_CACHE_BUILDING].builder.done == 3 && entries[HR_CACHE_BUILDING].builder.total == 9);
    hr_cached_look(cached, &info);
    must(hr_cache_claims(cache, info.id, note_claim, &claim));
    check(claim.pid == (uint32_t)getpid() && claim.is_visible && strstr(claim.command, "test_unit_cache"));
    hr_cache_build_abandon(build);
    must(hr_cache_list(cache, note_entry, entries));
    check(entries[HR_CACHE_ORPHAN].state == HR_CACHE_ORPHAN);
    hr_cached_detach(cached);
}

#define T(test) cmocka_unit_test_setup_teardown(test, open_scene, close_scene)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_that_are_no_names_are_refused),
        T(a_root_that_is_a_file_is_refused),
        T(a_root_that_others_may_write_to_is_refused),
        T(a_root_of_another_user_is_refused),
        T(a_root_that_is_a_link_is_refused),
        T(what_is_built_is_attached_with_its_texts),
        T(an_empty_object_can_be_built),
        T(a_file_of_the_caller_can_be_published),
        T(an_object_that_is_missing_is_named),
        T(another_stamp_builds_again_and_maps_stay),
        T(objects_of_a_job_end_with_the_last_claim),
        T(a_second_builder_keeps_the_finished_chunks),
        T(a_chunk_that_was_damaged_is_made_again),
        T(chunks_of_another_stamp_or_size_are_not_kept),
        T(writes_outside_of_the_object_are_refused),
        T(one_that_waits_gets_the_text_and_a_later_call_builds),
        T(a_truncated_object_is_refused_and_built_again),
        T(a_flipped_bit_is_found),
        T(a_damaged_record_is_an_error),
        T(a_root_that_vanishes_leaves_a_private_copy),
        T(what_is_claimed_is_removed_by_force_only),
        T(what_is_being_built_is_not_removed),
        T(an_id_that_is_no_id_is_refused),
        T(the_quota_deletes_the_oldest_and_nothing_claimed),
        T(leftovers_are_collected),
        T(the_list_has_objects_builds_and_claims),
#ifdef HR_FAILPOINTS
        T(a_root_on_a_network_file_system_is_refused),
        T(objects_are_replaced_without_a_swap),
        T(a_full_disk_at_each_write_is_an_error),
        T(a_cgroup_that_is_too_small_is_seen_before),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
