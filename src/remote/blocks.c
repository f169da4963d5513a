/* SPDX-License-Identifier: Apache-2.0 */
/* The file that has the kept part of an object. */
#include "blocks.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base.h"
#include "base/hash.h"
#include "os/os.h"

static const char magic[8] = "HRBLOCK";
static const uint64_t MOST_BYTES = UINT64_C(1) << 62;

_Static_assert((int)HR__BOOT_BYTES >= (int)HR__BOOT_ID_BYTES, "the head has room for the id of a boot");

enum { BITS_PER_BYTE = 8, CHUNK_BYTES = 512, SUM_BYTES = sizeof(uint64_t), SUMS_AT_ONCE = 64 };
static const uint64_t SUM_SEED = 0x756e6974;

/* ---- the layout ---- */

int hr__blocks_plan(uint64_t bytes, struct hr__blocks_plan *ret_plan) {
    struct hr__blocks_plan plan = {0};
    if (bytes > MOST_BYTES) return -EFBIG;
    plan.unit_count = (bytes + HR__UNIT_BYTES - 1) / HR__UNIT_BYTES;
    plan.bit_bytes = (plan.unit_count + BITS_PER_BYTE - 1) / BITS_PER_BYTE;
    plan.tail = hr__round_up(bytes, HR__TAIL_ALIGN);
    plan.bits_at = plan.tail + hr__round_up(sizeof(struct hr__blocks_head), 64);
    plan.saved_at = plan.bits_at + plan.bit_bytes;
    plan.sums_at = hr__round_up(plan.saved_at + plan.bit_bytes, SUM_BYTES);
    plan.size_at = plan.sums_at + plan.unit_count * SUM_BYTES;
    plan.file_bytes = plan.size_at + sizeof(uint64_t);
    *ret_plan = plan;
    return 0;
}

bool hr__is_name(const char *name) {
    return strspn(name, "0123456789abcdef") == HR__NAME_BYTES && !name[HR__NAME_BYTES];
}

int hr__blocks_path(const char *root, const char *name, char *ret_path) {
    return hr__path(ret_path, "%s/%.2s/%.*s", root, name, HR__NAME_BYTES, name);
}

static uint64_t sum_of(const struct hr__blocks_head *head) {
    return hr__hash(head, offsetof(struct hr__blocks_head, boot), HR__BLOCKS_VERSION);
}

/* Returns true if a head is that of the object, made by this version of headrace. */
static bool is_right(const struct hr__blocks_head *head, const char *name, uint64_t bytes) {
    return memcmp(head->magic, magic, sizeof magic) == 0 && head->version == HR__BLOCKS_VERSION &&
           head->unit_bytes == HR__UNIT_BYTES && head->bytes == bytes &&
           memcmp(head->name, name, HR__NAME_BYTES) == 0 && head->sum == sum_of(head);
}

static bool is_of_this_boot(const struct hr__blocks_head *head) {
    char boot[HR__BOOT_ID_BYTES] = "";
    hr__boot_id(boot);
    return *boot && strncmp(head->boot, boot, sizeof boot) == 0;
}

/* Reads the head of an open file. -ENOENT: it is not the file of this object. */
static int read_head(int fd, const char *name, const struct hr__blocks_plan *plan, uint64_t bytes,
                     struct hr__blocks_head *ret_head) {
    struct hr__file_info info;
    int r = hr__file_look_fd(fd, &info);
    if (r == 0 && (!info.is_regular || info.bytes != plan->file_bytes || info.user != hr__user())) r = -ENOENT;
    if (r == 0) r = hr__read_at(fd, plan->tail, ret_head, sizeof *ret_head);
    return r == 0 && !is_right(ret_head, name, bytes) ? -ENOENT : r;
}

/* ---- looking at a file whose object is not known ---- */

int hr__blocks_look(int fd, const char *name, struct hr__blocks_look *ret_look) {
    struct hr__blocks_look look;
    struct hr__file_info info;
    uint64_t bytes = 0;
    int r = hr__file_look_fd(fd, &info);
    if (r == 0 && info.bytes < sizeof bytes) r = -ENOENT;
    if (r == 0) r = hr__read_at(fd, info.bytes - sizeof bytes, &bytes, sizeof bytes);
    if (r == 0 && hr__blocks_plan(bytes, &look.plan) < 0) r = -ENOENT;
    if (r == 0) r = read_head(fd, name, &look.plan, bytes, &look.head);
    if (r < 0) return r;
    look.head.shown[sizeof look.head.shown - 1] = '\0';
    look.is_of_this_boot = is_of_this_boot(&look.head);
    *ret_look = look;
    return 0;
}

int hr__blocks_bits(int fd, const struct hr__blocks_look *look, uint64_t first, unsigned char *bits, size_t count) {
    uint64_t at = look->is_of_this_boot ? look->plan.bits_at : look->plan.saved_at;
    int r = hr__read_at(fd, at + first, bits, count);
    atomic_thread_fence(memory_order_acquire); /* as in hr__blocks_have */
    return r;
}

int hr__blocks_sums(int fd, const struct hr__blocks_look *look, uint64_t unit, uint64_t *sums, size_t count) {
    return hr__read_at(fd, look->plan.sums_at + unit * SUM_BYTES, sums, count * SUM_BYTES);
}

uint64_t hr__unit_sum(uint64_t unit, const void *data, uint64_t bytes) {
    return hr__hash(data, bytes, hr__hash_word(unit, SUM_SEED));
}

/* ---- readers ---- */

int hr__blocks_open(const char *root, const char *name, uint64_t bytes, int *ret_fd) {
    struct hr__blocks_head head;
    struct hr__blocks_plan plan;
    char path[HR__PATH_BYTES];
    int fd = -1;
    int r = hr__blocks_plan(bytes, &plan);
    if (r == 0) r = hr__blocks_path(root, name, path);
    if (r == 0) r = hr__file_open(path, &fd);
    if (r < 0) return r;
    r = read_head(fd, name, &plan, bytes, &head);
    if (r == 0 && !is_of_this_boot(&head)) r = -ENOENT;
    if (r == 0) hr__file_touch(path); /* what was used last is removed last */
    if (r < 0)
        hr__close(&fd);
    else
        *ret_fd = fd;
    return r;
}

static bool is_set(const unsigned char *bits, uint64_t number) {
    return bits[number / BITS_PER_BYTE] >> number % BITS_PER_BYTE & 1;
}

static uint64_t last_unit(uint64_t at, uint64_t bytes) {
    return (at + bytes - 1) / HR__UNIT_BYTES;
}

bool hr__blocks_have(int fd, uint64_t object_bytes, uint64_t at, uint64_t bytes) {
    struct hr__blocks_plan plan;
    if (!bytes) return true;
    if (hr__blocks_plan(object_bytes, &plan) < 0 || at > object_bytes || bytes > object_bytes - at) return false;
    uint64_t unit = at / HR__UNIT_BYTES, last = last_unit(at, bytes);
    while (unit <= last) {
        unsigned char bits[CHUNK_BYTES];
        uint64_t first_byte = unit / BITS_PER_BYTE, some = hr__min(last / BITS_PER_BYTE - first_byte + 1, CHUNK_BYTES);
        if (hr__read_at(fd, plan.bits_at + first_byte, bits, some) < 0) return false;
        for (; unit <= last && unit / BITS_PER_BYTE < first_byte + some; unit++)
            if (!is_set(bits, unit - first_byte * BITS_PER_BYTE)) return false;
    }
    /* The bits were written after the bytes. This keeps the read of the bytes behind that of the bits. */
    atomic_thread_fence(memory_order_acquire);
    return true;
}

/* ---- the fetcher ---- */

struct hr__blocks {
    int fd;
    char path[HR__PATH_BYTES];
    uint64_t bytes, device, inode;
    struct hr__blocks_plan plan;
    pthread_mutex_t lock; /* of the bits, here and in the file */
    unsigned char *bits;  /* what the file says */
    bool is_changed;      /* since the last hr__blocks_save */
};

static void set_head(struct hr__blocks_head *head, const char *name, const char *shown, uint64_t bytes) {
    *head = (struct hr__blocks_head){.version = HR__BLOCKS_VERSION, .unit_bytes = HR__UNIT_BYTES, .bytes = bytes};
    memcpy(head->magic, magic, sizeof magic);
    memcpy(head->name, name, HR__NAME_BYTES);
    snprintf(head->shown, sizeof head->shown, "%s", shown);
    head->sum = sum_of(head);
    hr__boot_id(head->boot);
}

/* Makes a new file, which replaces one that cannot be used. */
static int make_file(struct hr__blocks *blocks, const char *name, const char *shown) {
    struct hr__blocks_head head;
    char *temporary = NULL;
    set_head(&head, name, shown, blocks->bytes);
    int r = hr__file_create(blocks->path, &blocks->fd, &temporary);
    if (r == 0) r = hr__fail_at("blocks_make");
    if (r == 0) r = hr__file_cut(blocks->fd, blocks->plan.file_bytes);
    if (r == 0) r = hr__write_at(blocks->fd, blocks->plan.tail, &head, sizeof head);
    if (r == 0) r = hr__write_at(blocks->fd, blocks->plan.size_at, &blocks->bytes, sizeof blocks->bytes);
    if (r == 0) r = hr__file_publish(blocks->fd, temporary, blocks->path);
    if (r < 0) hr__file_remove(temporary);
    hr__free(temporary);
    return r;
}

/* Takes over a file of another boot: what was saved is kept. The name of the boot is written last. */
static int begin_boot(struct hr__blocks *blocks, struct hr__blocks_head *head) {
    int r = hr__read_at(blocks->fd, blocks->plan.saved_at, blocks->bits, blocks->plan.bit_bytes);
    if (r == 0) r = hr__write_at(blocks->fd, blocks->plan.bits_at, blocks->bits, blocks->plan.bit_bytes);
    hr__stop_at(HR__AT_BLOCKS_BOOT);
    memset(head->boot, 0, sizeof head->boot);
    hr__boot_id(head->boot);
    if (r == 0) r = hr__write_at(blocks->fd, blocks->plan.tail, head, sizeof *head);
    return r;
}

/* Opens an existing file to write. -ENOENT: no file of this name can be used. */
static int open_file(struct hr__blocks *blocks, const char *name) {
    struct hr__blocks_head head;
    struct hr__file_info info;
    int r = hr__file_look(blocks->path, &info);
    if (r < 0) return r;
    if (!info.is_regular) return -ENOENT;
    r = hr__file_open_or_make(blocks->path, &blocks->fd);
    if (r == 0) r = read_head(blocks->fd, name, &blocks->plan, blocks->bytes, &head);
    if (r < 0) {
        hr__close(&blocks->fd);
        return r;
    }
    blocks->is_changed = true; /* an earlier fetcher may not have saved all */
    if (!is_of_this_boot(&head)) return begin_boot(blocks, &head);
    return hr__read_at(blocks->fd, blocks->plan.bits_at, blocks->bits, blocks->plan.bit_bytes);
}

static int open_or_make(struct hr__blocks *blocks, const char *root, const char *name, const char *shown) {
    char folder[HR__PATH_BYTES];
    struct hr__file_info info = {0};
    int r = hr__path(folder, "%s/%.2s", root, name);
    if (r == 0) r = hr__folder_make_new(folder);
    if (r == 0 || r == -EEXIST) r = hr__blocks_path(root, name, blocks->path);
    if (r == 0) r = open_file(blocks, name);
    if (r == -ENOENT || r == -EIO) {
        memset(blocks->bits, 0, blocks->plan.bit_bytes);
        hr__close(&blocks->fd);
        r = make_file(blocks, name, shown);
    }
    if (r == 0) r = hr__file_look_fd(blocks->fd, &info);
    if (r < 0) return r;
    blocks->device = info.device;
    blocks->inode = info.inode;
    return 0;
}

int hr__blocks_make(const char *root, const char *name, const char *shown, uint64_t bytes,
                    struct hr__blocks **ret_blocks) {
    struct hr__blocks_plan plan;
    int r = hr__blocks_plan(bytes, &plan);
    if (r < 0) return r;
    struct hr__blocks *blocks = hr__realloc(NULL, sizeof *blocks);
    if (!blocks) return -ENOMEM;
    *blocks = (struct hr__blocks){.fd = -1, .bytes = bytes, .plan = plan};
    pthread_mutex_init(&blocks->lock, NULL);
    blocks->bits = hr__realloc(NULL, plan.bit_bytes + 1);
    r = blocks->bits ? open_or_make(blocks, root, name, shown) : -ENOMEM;
    if (r < 0)
        hr__blocks_close(blocks);
    else
        *ret_blocks = blocks;
    return r;
}

struct hr__blocks *hr__blocks_close(struct hr__blocks *blocks) {
    if (!blocks) return NULL;
    hr__close(&blocks->fd);
    pthread_mutex_destroy(&blocks->lock);
    hr__free(blocks->bits);
    hr__free(blocks);
    return NULL;
}

bool hr__blocks_are_linked(const struct hr__blocks *blocks) {
    struct hr__file_info info;
    return hr__file_look(blocks->path, &info) == 0 && info.device == blocks->device && info.inode == blocks->inode;
}

bool hr__blocks_has_unit(struct hr__blocks *blocks, uint64_t unit) {
    pthread_mutex_lock(&blocks->lock);
    bool has = unit < blocks->plan.unit_count && is_set(blocks->bits, unit);
    pthread_mutex_unlock(&blocks->lock);
    return has;
}

bool hr__blocks_have_range(struct hr__blocks *blocks, uint64_t at, uint64_t bytes) {
    for (uint64_t unit = at / HR__UNIT_BYTES; bytes && unit <= last_unit(at, bytes); unit++)
        if (!hr__blocks_has_unit(blocks, unit)) return false;
    return true;
}

/* Sets the bits of the units from the first to the last one, which are in one byte. */
static int set_bits(struct hr__blocks *blocks, uint64_t first, uint64_t last) {
    uint64_t byte = first / BITS_PER_BYTE;
    unsigned bits = 0;
    for (uint64_t unit = first; unit <= last; unit++) bits |= 1u << unit % BITS_PER_BYTE;
    pthread_mutex_lock(&blocks->lock);
    unsigned char changed = (unsigned char)(blocks->bits[byte] | bits);
    int r = hr__write_at(blocks->fd, blocks->plan.bits_at + byte, &changed, 1);
    if (r == 0) {
        blocks->bits[byte] = changed;
        blocks->is_changed = true;
    }
    pthread_mutex_unlock(&blocks->lock);
    return r;
}

static int write_sums(struct hr__blocks *blocks, uint64_t at, const unsigned char *data, uint64_t bytes) {
    uint64_t sums[SUMS_AT_ONCE];
    int r = 0;
    while (bytes && r == 0) {
        uint64_t first = at / HR__UNIT_BYTES, count = 0;
        for (; bytes && count < SUMS_AT_ONCE; count++) {
            uint64_t some = hr__min(bytes, HR__UNIT_BYTES);
            sums[count] = hr__unit_sum(first + count, data, some);
            data += some;
            at += some;
            bytes -= some;
        }
        r = hr__write_at(blocks->fd, blocks->plan.sums_at + first * SUM_BYTES, sums, count * SUM_BYTES);
    }
    return r;
}

int hr__blocks_write(struct hr__blocks *blocks, uint64_t at, const void *data, uint64_t bytes) {
    bool is_whole = at % HR__UNIT_BYTES == 0 && at <= blocks->bytes && bytes <= blocks->bytes - at &&
                    (bytes % HR__UNIT_BYTES == 0 || at + bytes == blocks->bytes);
    if (!is_whole) return -EINVAL;
    if (!bytes) return 0;
    hr__stop_at(HR__AT_BLOCKS_WRITE);
    int r = hr__fail_at("blocks_write");
    if (r == 0) r = hr__write_at(blocks->fd, at, data, bytes);
    if (r == 0) r = write_sums(blocks, at, data, bytes);
    hr__stop_at(HR__AT_BLOCKS_WRITTEN);
    atomic_thread_fence(memory_order_release); /* see hr__blocks_have */
    uint64_t last = last_unit(at, bytes);
    for (uint64_t unit = at / HR__UNIT_BYTES; r == 0 && unit <= last; unit = hr__round_up(unit + 1, BITS_PER_BYTE))
        r = set_bits(blocks, unit, hr__min(last, unit | (BITS_PER_BYTE - 1)));
    hr__stop_at(HR__AT_BLOCKS_MARKED);
    return r;
}

int hr__blocks_read(struct hr__blocks *blocks, uint64_t at, void *data, uint64_t bytes) {
    return hr__read_at(blocks->fd, at, data, bytes);
}

int hr__blocks_begin_save(struct hr__blocks *blocks, unsigned char **ret_bits) {
    unsigned char *bits = hr__realloc(NULL, blocks->plan.bit_bytes + 1);
    if (!bits) return -ENOMEM;
    pthread_mutex_lock(&blocks->lock);
    memcpy(bits, blocks->bits, blocks->plan.bit_bytes);
    bool is_changed = blocks->is_changed;
    blocks->is_changed = false;
    pthread_mutex_unlock(&blocks->lock);
    if (is_changed)
        *ret_bits = bits;
    else
        hr__free(bits);
    return is_changed;
}

int hr__blocks_finish_save(struct hr__blocks *blocks, unsigned char *bits, bool is_synced) {
    int r = is_synced ? hr__write_at(blocks->fd, blocks->plan.saved_at, bits, blocks->plan.bit_bytes) : -EIO;
    hr__free(bits);
    if (r < 0) {
        pthread_mutex_lock(&blocks->lock);
        blocks->is_changed = true;
        pthread_mutex_unlock(&blocks->lock);
    }
    return r;
}
