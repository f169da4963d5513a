/* SPDX-License-Identifier: Apache-2.0 */
/* The messages between readers and the fetcher, and the folder that they share. */
#ifndef HR_REMOTE_PROTOCOL_H
#define HR_REMOTE_PROTOCOL_H

#include <stdint.h>

/*
 * A reader is a process, or a thread of one, that needs bytes of an object in a bucket or behind https. The fetcher is
 * the one process per folder that asks servers for them. They talk through a local socket that keeps messages apart.
 *
 *     ROOT/v1/remote/lock          locked (flock) by the fetcher as long as it lives
 *     ROOT/v1/remote/start         locked by the process that is starting a fetcher
 *     ROOT/v1/remote/sock          the socket
 *     ROOT/v1/remote/waits         what the fetcher waits for (python/headrace/_remote/waits.py)
 *     ROOT/v1/remote/figures       what the fetcher has done, for observers (figures.c)
 *     ROOT/v1/remote/XX/NAME       the kept part of an object (blocks.h); XX: the first two characters of NAME
 *
 * Each request names all that the fetcher needs to answer it: the object, its address, and the settings with the
 * credentials of the process that asks. So the fetcher keeps nothing about its readers, and a fetcher that takes the
 * place of one that was killed can answer at once.
 *
 *     reader                                  fetcher
 *     HR__READ id, object, range    ------>
 *                                   <------   HR__DATA id, bytes     (several; only if they are not kept)
 *                                   <------   HR__DONE id            or HR__FAILED id, errno, text
 *     HR__ASK object, range         ------>                          (no answer: it may be read soon)
 *     HR__ANNOUNCE position, ranges ------>                          (no answer: they will be read, in this order)
 *     HR__WITHDRAW positions        ------>                          (no answer: what is before was read, or is now)
 *     HR__CALL id, text             ------>                          (sizes and versions; what is in a bucket)
 *                                   <------   HR__DATA..., HR__DONE  or HR__FAILED
 *
 * A connection has one READ or CALL at a time. HR__DONE without data says that the range is in the file NAME. The end
 * of the connection is the end of the fetcher: the reader connects again, and starts the next fetcher.
 *
 * A trainer announces what its workers will read, on a connection of its own for each loader. What was announced
 * belongs to that connection: its end withdraws all of it. Positions count the samples of a pass, and only grow until
 * all is withdrawn.
 *
 * All numbers are those of this machine. The magic number changes with each change of a message.
 */

#define HR__REMOTE_MAGIC UINT32_C(0x32465248)

enum {
    HR__MESSAGE_BYTES = 64 << 10, /* of a whole message, at most */
    HR__NAME_BYTES = 32,          /* characters of the name of an object: hexadecimal digits */
    HR__CALL_BYTES = 60 << 10,    /* of the text of a call, at most */
};

enum hr__message_type { HR__READ = 1, HR__ASK, HR__CALL, HR__DATA, HR__DONE, HR__FAILED, HR__ANNOUNCE, HR__WITHDRAW };

struct hr__message {
    uint32_t magic, type;
    uint64_t id; /* of the request, chosen by the reader; the answers repeat it. ANNOUNCE: their position */
};

/* READ, ASK and ANNOUNCE. Behind it are three texts that end with a zero byte: the version, the URL, the settings.
 * Behind those of ANNOUNCE are any number of further ranges (struct hr__range) of the same object. */
struct hr__range_request {
    struct hr__message head;
    char name[HR__NAME_BYTES];
    uint64_t object_bytes;
    uint64_t at, bytes;                               /* within the object; at least one byte */
    uint32_t is_direct;                               /* READ: the answer is the bytes, also if they are kept */
    uint32_t version_bytes, url_bytes, storage_bytes; /* with the zero bytes */
};

struct hr__range {
    uint64_t at, bytes;
};

/* WITHDRAW. What was announced at positions below `read` is forgotten. What is below `given` is asked for by those who
 * read it now: if it is not kept, it is not fetched for the announcement, too. UINT64_MAX as `read`: all is forgotten;
 * as `given`: nothing is read now. */
struct hr__withdrawal {
    struct hr__message head;
    uint64_t read, given;
};

/* The text of CALL, the bytes of DATA, and the text of the error of FAILED are behind this. */
struct hr__answer {
    struct hr__message head;
    int32_t code; /* FAILED: negative errno */
    uint32_t unused;
};

#endif
