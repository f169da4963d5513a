/* SPDX-License-Identifier: Apache-2.0 */
/* The file in which a fetcher shows to observers what it has done. They only read, so that no observer keeps a fetcher
 * alive. */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/hash.h"
#include "fetcher.h"

enum { FIGURES_VERSION = 1, TRIES = 4 };
static const char magic[8] = "HRFETCH";
static const int64_t OUT_OF_DATE_NS = 5 * HR_NS_PER_S; /* then it was left by a fetcher that has ended */

/* The file is written by one call, and may be torn in a read: then its checksum is wrong. */
struct shown {
    char magic[8];
    uint64_t version, sum; /* sum: of all behind it */
    char boot[HR__BOOT_BYTES];
    struct hr_fetcher_figures figures;
};

static uint64_t sum_of(const struct shown *shown) {
    return hr__hash(shown->boot, sizeof *shown - offsetof(struct shown, boot), FIGURES_VERSION);
}

/* ---- the fetcher ---- */

/* Named by a rename, so that no observer finds an empty file, or that of another fetcher that still runs. */
static bool open_file(hr_fetcher *fetcher) {
    char path[HR__PATH_BYTES], *temporary = NULL;
    if (fetcher->figures_fd >= 0) return true;
    int r = hr__path(path, "%s/figures", fetcher->folder);
    if (r == 0) r = hr__file_create(path, &fetcher->figures_fd, &temporary);
    if (r == 0) r = hr__file_publish(fetcher->figures_fd, temporary, path);
    if (r < 0) {
        hr__file_remove(temporary);
        hr__close(&fetcher->figures_fd);
    }
    hr__free(temporary);
    return r == 0;
}

void hr_fetcher_show(hr_fetcher *fetcher, uint64_t requests, uint64_t retries) {
    struct hr_fetcher_info info;
    struct shown shown = {.version = FIGURES_VERSION};
    if (!open_file(fetcher)) return;
    hr_fetcher_look(fetcher, &info);
    memcpy(shown.magic, magic, sizeof magic);
    hr__boot_id(shown.boot);
    shown.figures = (struct hr_fetcher_figures){.began_ns = fetcher->began_ns,
                                                .at_ns = hr__now_ns(),
                                                .pid = hr__pid(),
                                                .fetched_bytes = info.fetched_bytes,
                                                .sent_bytes = info.sent_bytes,
                                                .requests = requests,
                                                .retries = retries,
                                                .kept_bytes = info.kept_bytes,
                                                .quota_bytes = info.quota_bytes,
                                                .connections = info.connections,
                                                .jobs = info.jobs};
    shown.sum = sum_of(&shown);
    if (hr__write_at(fetcher->figures_fd, 0, &shown, sizeof shown) < 0) hr__close(&fetcher->figures_fd);
}

/* ---- observers ---- */

static int read_once(int fd, struct shown *shown) {
    char boot[HR__BOOT_BYTES] = "";
    int r = hr__read_at(fd, 0, shown, sizeof *shown);
    if (r < 0) return r == -EIO ? -ENOENT : r;
    if (memcmp(shown->magic, magic, sizeof magic) != 0 || shown->version != FIGURES_VERSION) return -EPROTO;
    if (shown->sum != sum_of(shown)) return -EAGAIN;
    hr__boot_id(boot);
    bool is_old = memcmp(shown->boot, boot, sizeof boot) != 0 || hr__now_ns() - shown->figures.at_ns > OUT_OF_DATE_NS ||
                  shown->figures.at_ns > hr__now_ns();
    return is_old ? -ENOENT : 0;
}

int hr_fetcher_peek(const char *folder, struct hr_fetcher_figures *ret_figures) {
    struct shown shown;
    char path[HR__PATH_BYTES];
    int fd = -1;
    int r = hr__path(path, "%s/figures", folder);
    if (r == 0) r = hr__file_open(path, &fd);
    if (r < 0) return r;
    for (int i = 0; i < TRIES; i++)
        if ((r = read_once(fd, &shown)) != -EAGAIN) break;
    hr__close(&fd);
    if (r == 0) *ret_figures = shown.figures;
    return r;
}
