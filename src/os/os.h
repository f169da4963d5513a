/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HR_OS_OS_H
#define HR_OS_OS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <termios.h>

#include "failpoints.h"

/*
 * The platform contract: every raw system call is behind one of these functions. They return a negative errno and set
 * no message, because the caller knows what it was doing. Descriptors are close-on-exec when they are made. -EINTR is
 * handled here, except in hr__poll, whose callers have to handle signals.
 */

/* ---- clock.c ---- */

int64_t hr__now_ns(void);         /* CLOCK_MONOTONIC */
int64_t hr__wall_ns(void);        /* CLOCK_REALTIME: since 1970 */
int64_t hr__thread_cpu_ns(void);  /* CPU time of this thread */
int64_t hr__wall_s(void);         /* seconds since 1970 */
uint64_t hr__clock_cost_ns(void); /* of hr__now_ns, measured once in a process */
int64_t hr__coarse_now_ns(void);  /* CLOCK_MONOTONIC of the last tick: up to 10 ms old, at a quarter of the cost */
void hr__sleep_until(int64_t deadline_ns); /* shorter if a signal handler runs */
void hr__pause(void);                      /* one turn of a spin loop, without a system call */
void hr__yield(void);                      /* gives the core to another runnable process */

/* ---- memory.c ---- */

/* The page size of the kernel: 4 KiB, and 16 or 64 KiB on some arm64. Only whole pages are released, unmapped and
 * moved: a range has to begin at a page, and ends with the last page that it touches. */
uint64_t hr__page_bytes(void);

/* Creates anonymous shared memory of `bytes` bytes. The first `head_bytes` are committed, the rest is sparse. It uses
 * memfd_create, which shows `name` in /proc/PID/fd, else an unlinked file in /dev/shm, else one in $TMPDIR. */
enum hr__memory_kind { HR__MEMORY_MEMFD, HR__MEMORY_SHM, HR__MEMORY_TMP };
int hr__memory_create(const char *name, uint64_t bytes, uint64_t head_bytes, int *ret_fd,
                      enum hr__memory_kind *ret_kind);
int hr__memory_bytes(int fd, uint64_t *ret_bytes);

int hr__map(int fd, uint64_t bytes, void **ret_address);    /* shared, read and write, 2 MiB-aligned */
void hr__unmap(void *address, uint64_t bytes);              /* whole pages of a mapping of hr__map; NULL is fine */
void hr__keep_from_children(void *address, uint64_t bytes); /* children that are forked later do not have the mapping */

/* Makes the pages of [offset, offset + bytes) exist, so that touching them cannot raise SIGBUS. */
int hr__commit(int fd, uint64_t offset, uint64_t bytes);
/* Enters existing pages into the page table of this process. Best effort: the other pages fault in later. */
void hr__populate(void *address, uint64_t bytes);
/* Releases the pages behind a shared mapping, for all processes. They read as zeros afterwards, up to the end of the
 * last page. -EINVAL: `address` is in the middle of a page. */
int hr__punch(void *address, uint64_t bytes);

/* Fixes the size of memory of hr__memory_create: a write beyond its end fails. Best effort. */
void hr__keep_size(int fd);
void hr__keep_at_least(int fd); /* it may still grow, so that a mapping of it stays valid */
/* Read and write all of `bytes` bytes at an offset. -EIO: the file is shorter. */
int hr__read_at(int fd, uint64_t offset, void *data, size_t bytes);
/* Reads a part of a file to several places in memory, which follow each other in the file, at most HR__READ_PARTS_MOST.
 * Changes `places`. -EIO: the file is shorter. */
enum { HR__READ_PARTS_MOST = 64 };
struct hr__read_part {
    void *data;
    size_t bytes;
};
int hr__read_parts(int fd, uint64_t offset, struct hr__read_part *places, size_t count);
/* Reads all of `bytes` bytes if they are in memory. -EAGAIN: they are not, or it cannot be known. */
int hr__read_now(int fd, uint64_t offset, void *data, size_t bytes);
int hr__write_at(int fd, uint64_t offset, const void *data, size_t bytes); /* -EFBIG as hr__file_cut */

/* Replaces shared pages by private ones with the same contents at the same address, which is the start of a page.
 * Async-signal-safe. */
int hr__make_private(void *address, uint64_t bytes);

/* Maps memory that is only read. A process that writes to it all the same gets private pages instead of SIGSEGV; torch
 * does this with read-only arrays. */
int hr__map_to_read(int fd, uint64_t bytes, const void **ret_address);
/* Does the same as hr__commit for memory that is mapped at `address`, with pages of 2 MiB if the kernel can make them,
 * because they need one page table lookup instead of four. Both `offset` and `bytes` are multiples of 2 MiB. */
int hr__commit_huge(int fd, void *address, uint64_t offset, uint64_t bytes);
/* Has existing memory made of pages of 2 MiB as far as it can be. Best effort. */
void hr__make_huge(void *address, uint64_t bytes);
/* Writes the changed pages of a shared mapping to their file, and waits until they are there. */
int hr__flush(void *address, uint64_t bytes);
/* Allows the kernel to drop the physical pages behind a shared mapping of a file; the contents stay in the file. */
void hr__forget_pages(void *address, uint64_t bytes);

/* ---- file.c ---- */

/* Opens regular file `path` to read. -EINVAL: it is not a regular file. */
int hr__file_open(const char *path, int *ret_fd);
/* Creates a file in the folder of `path`, to read and write. It has no name, or a temporary one (`temporary`, owned by
 * the caller, else NULL). */
int hr__file_create(const char *path, int *ret_fd, char **ret_temporary);
/* Gives that file its name, and replaces any file that has it. */
int hr__file_publish(int fd, const char *temporary, const char *path);
void hr__file_remove(const char *path);   /* NULL is fine */
int hr__file_cut(int fd, uint64_t bytes); /* -EFBIG over hr__file_limit, instead of SIGXFSZ */
int hr__file_sync(int fd);
/* Asks the kernel to read a file ahead into its page cache. Best effort. */
void hr__file_read_ahead(int fd);
void hr__file_ask(int fd, uint64_t at, uint64_t bytes); /* the same for a part of it */
/* Opens another descriptor of the same file that is read-only or, if the system does not allow this, one that can also
 * write. */
int hr__file_reopen(int fd, int *ret_fd);
int hr__file_reopen_to_write(int fd, int *ret_fd); /* for reading and writing, by its own open file description */
/* Makes memory of hr__memory_create read-only and fixes its size, for all processes. Best effort; no writable mapping
 * may exist. */
void hr__seal(int fd);
void hr__random(void *bytes, size_t count);
int hr__folder_make(const char *path);                    /* the parent exists; 0 if the folder exists, too */
int hr__folder_current(char *ret_path, size_t size);      /* the absolute path of the working directory */
int hr__folder_make_unique(char *path);                   /* replaces the XXXXXX at its end */
int hr__log_create(const char *path, int *ret_fd);        /* opens it to append to it; an existing file is emptied */
int hr__log_append(const char *path, int *ret_fd);        /* opens an existing file */
int hr__file_changed_ns(int fd, int64_t *ret_changed_ns); /* when it was changed last, on CLOCK_MONOTONIC */

/* ---- event.c ---- */

int hr__eventfd(int *ret_fd);
int hr__eventfd_ring(int fd);
void hr__eventfd_drain(int fd);
int hr__pipe(int *ret_read_fd, int *ret_write_fd); /* non-blocking */
int hr__dup(int fd, int *ret_fd);
/* Takes the result of open(2) or a similar call, -1 with errno included, and makes sure that its number is not 0, 1 or
 * 2. In a process that was started without stdin, stdout or stderr these numbers are free, and a library that writes to
 * stderr would write to our file. Takes ownership of `fd`; on failure it is closed. */
int hr__own(int fd, int *ret_fd);
void hr__close(int *fd); /* -1 is fine; leaves -1 */

/* Returns true if it is readable or at its end now. */
bool hr__is_readable(int fd);

/* Waits until one of `count` descriptors (-1: ignored) is readable or at its end, and marks those in `ret_ready`.
 * Returns their number, -ETIMEDOUT, -EINTR or another negative errno. */
int hr__poll(const int *fds, bool *ret_ready, size_t count, int64_t deadline_ns);

/* Opens another descriptor of the read end of the pipe through /proc, so that it has its own open file description. */
int hr__open_again(int read_fd, int *ret_fd);
/* Checks that the kernel sends a signal only at the end of a pipe. Before Linux 5.6 each close of a descriptor of the
 * pipe sent one. Returns 0; -EOPNOTSUPP: it does not; or another negative errno. */
int hr__ends_are_signalled(void);
/* Asks the kernel to kill process `pid` (SIGKILL) when the other end of the pipe is closed for good, so when the
 * process that has its write end dies in any way; at once if it has died. This holds as long as any process has this
 * open file description. -EOPNOTSUPP and others: see hr__ends_are_signalled. */
int hr__kill_with(int read_fd, int pid);
/* Asks the same for this process, with its own open file description. */
int hr__die_with(int read_fd, int *ret_own_fd);

/* ---- process.c ---- */

int hr__pidfd(int pid, int *ret_fd);
int hr__fork(int *ret_pid);        /* 0 in the child */
_Noreturn void hr__exit(int code); /* without atexit handlers */
/* The signals that headrace sends or takes. Other signals are given by number. */
enum {
    HR__HUP = 1,
    HR__INT = 2,
    HR__QUIT = 3,
    HR__ABRT = 6,
    HR__KILL = 9,
    HR__PIPE = 13,
    HR__TERM = 15,
    HR__CHLD = 17,
    HR__CONT = 18,
    HR__STOP = 19,
    HR__TSTP = 20,
    HR__WINCH = 28,
};
static inline uint64_t hr__signal_bit(int signal) {
    return UINT64_C(1) << (signal - 1);
}
int hr__send_signal(int pidfd, int pid, int signal); /* pidfd -1: uses the pid */

const char *hr__signal_name(int signal); /* "Killed", ...; NULL: it has no name */

/* How a child of this process ended. */
struct hr__end {
    bool is_known;
    int signal; /* 0: it exited */
    int exit_code;
};
/* -EAGAIN while it runs, -ECHILD if it is not a child of this process or was reaped by other code. */
int hr__process_end(int pid, bool reaps, struct hr__end *ret_end);

uint64_t hr__resident_bytes(int pid); /* 0: not known */
uint64_t hr__private_bytes(int pid);  /* RssAnon: memory that is no file's; 0: not known */
uint64_t hr__cpu_ns(int pid);         /* CPU time of all its threads, in ticks of 10 ms; 0: not known */
/* For how long the first thread of a process could have run, and waited for a core. */
uint64_t hr__delay_ns(int pid);
int hr__inner_pid(int pid); /* the pid that it sees itself; 0: not known */

/* A process as /proc shows it. */
struct hr__process {
    char state; /* as in ps: R, S, D, T (stopped), t (traced), Z */
    uint32_t thread_count;
    uint32_t tracer_pid; /* 0: not traced */
    uint64_t rss_bytes;
    uint64_t caught_signals;  /* bit n - 1: it has a handler for signal n */
    char kernel_function[64]; /* the function of the kernel in which it sleeps; "": not known */
    char system_call[128];    /* the line of /proc/PID/syscall: its number and arguments, "running", or "" */
    bool is_deadlocked;       /* the only thread of it waits, without a timeout, for another thread of this process */
};
int hr__process_look(int pid, struct hr__process *ret_process); /* -ESRCH */
/* The command line of a process, with spaces between its words, cut to `bytes`; "": not known. */
void hr__command_line(int pid, char *ret_text, size_t bytes);
/* Identifies the set of pids that this process sees: a pid means the same process in processes with the same number. */
uint64_t hr__pid_namespace(void);
enum { HR__BOOT_ID_BYTES = 40 };
void hr__boot_id(char ret_id[HR__BOOT_ID_BYTES]); /* a text, another one after each start of the machine */

/* ---- children.c: the processes that this one starts, and those that it adopts ---- */

int hr__adopt_orphans(void); /* from now on, this process is the parent of descendants whose parent has ended */
int hr__new_session(void);
int hr__parent(void);

/* A child that has ended and was not reaped. -EAGAIN: none has ended. -ECHILD: there are no children. */
int hr__ended_child(int *ret_pid);
int hr__reap(int pid, struct hr__end *ret_end, uint64_t *ret_peak_bytes); /* -EAGAIN: it has not ended */

/* Writes the pids of the children of a process, at most `room`, and returns how many there are. */
size_t hr__children_of(int parent, int *ret_pids, size_t room);
int hr__kill(int pid, int signal);    /* only for a child of this process, whose pid cannot be reused */
#define HR__FETCHER_NAME "hr-fetcher" /* of the fetcher of remote objects */
void hr__process_name(int pid, char *ret_name, size_t bytes); /* "": not known */

/* A program that a forked child becomes. The memory is prepared before the fork. */
struct hr__program {
    const char *path;
    const char *const *words;       /* ended by NULL */
    const char *const *environment; /* ended by NULL */
    int streams[3];                 /* above 2; -1: closed */
    const int *inherited;           /* descriptors that it keeps under their numbers */
    size_t inherited_count;
    uint64_t kept_ignored; /* bit n - 1: signal n stays ignored; all others get their default, and none is blocked */
    uint64_t open_files;   /* the earlier limit from hr__raise_open_files, to be restored; 0: it stays */
    bool has_own_group;
    bool has_terminal; /* streams[0] is a terminal, and becomes that of a session of its own */
    bool dies_with_parent;
    int parent;
};
int hr__become(const struct hr__program *program); /* returns only if it fails */
uint64_t hr__ignored_signals(void);                /* bit n - 1: signal n */
/* Finds a program as execvp does; `folders`: PATH, or NULL. -ENOENT, -EACCES, -EISDIR, -ENAMETOOLONG. */
int hr__find_program(const char *name, const char *folders, char *ret_path, size_t bytes);
/* Starts a program, found as by execvp, with the environment of this process, no signal blocked or ignored, /dev/null
 * as its stdin and stdout, and `error_fd` as its stderr. The process is not forked: other threads go on. */
int hr__spawn(const char *const *words, int error_fd, int *ret_pid);

/* ---- sender.c ---- */

int hr__ignore_others(int trainer, bool interrupts); /* see hr_worker_ignore_others */

/* ---- signals.c: signals that are blocked and read from a descriptor ---- */

int hr__signals_open(uint64_t signals, int *ret_fd); /* bit n - 1: signal n */
int hr__signals_take(int fd);                        /* returns the number of the signal; 0: none came */
/* The same; `ret_sender`: the process that sent it; 0: one that this process cannot see; -1: the kernel. */
int hr__signals_take_from(int fd, int *ret_sender);
void hr__block_signal(int number);
void hr__default_signal(int number);
void hr__stop_self(void);

/* ---- inet.c ---- */

/* Binds a TCP port, 0 for any, of all addresses without listening. Other programs do not get it, but a program that
 * sets SO_REUSEADDR, as torch's store does, can bind it and listen. -EADDRINUSE, -EACCES. */
int hr__hold_port(uint16_t *port, int *ret_fd);

/* ---- stream.c ---- */

int hr__read(int fd, void *data, size_t bytes);            /* reads so many bytes at most; 0: the end. -EAGAIN */
size_t hr__readable_bytes(int fd);                         /* bytes that wait in a pipe or terminal; fd -1 is fine */
int hr__write_all(int fd, const void *data, size_t bytes); /* waits for room if it does not block */
int hr__stream_pair(int ret_fds[2]);                       /* two connected sockets, which block */
int hr__output_pipe(int *ret_read_fd, int *ret_write_fd);  /* only the read end does not block */
bool hr__is_same_file(int first, int second);
bool hr__has_file(int pid, int fd); /* process `pid` has the file of `fd` open under the same number */
bool hr__is_terminal(int fd);
bool hr__is_foreground(int fd);          /* this process may read from its terminal */
void hr__replace_fd(int fd, int number); /* makes `number` the same file */
int hr__open_null(int *ret_fd);

struct hr__terminal_modes {
    struct termios modes;
};
/* Opens a terminal with the modes and the size of `like_fd`. */
int hr__terminal_open(int like_fd, int *ret_master_fd, int *ret_rank_fd);
void hr__terminal_copy_size(int from_fd, int to_fd);
int hr__terminal_modes(int fd, struct hr__terminal_modes *ret_modes);
int hr__terminal_pass_keys(int fd, const struct hr__terminal_modes *before);
void hr__terminal_restore(int fd, const struct hr__terminal_modes *modes);
enum hr__key { HR__KEY_OTHER, HR__KEY_INTERRUPT, HR__KEY_QUIT, HR__KEY_SUSPEND };
enum hr__key hr__terminal_key(int rank_terminal_fd, unsigned char key); /* what the terminal does with it */

/* ---- thread.c ---- */

/* A thread with all signals blocked, so that signal handlers run in the threads that the program knows. The struct must
 * not move until the thread is joined. */
struct hr__thread {
    pthread_t id;
    void (*run)(void *);
    void *context;
};
int hr__thread_start(struct hr__thread *thread, void (*run)(void *), void *context);
void hr__thread_join(struct hr__thread *thread);
/* The name of the calling thread, as ps and /proc show it. */
enum { HR__THREAD_NAME_BYTES = 16 };
void hr__thread_name(char ret_name[HR__THREAD_NAME_BYTES]);
void hr__thread_rename(const char *name);

/* ---- lock.c ---- */

/* Locks a range of a file for this process, until it ends or closes any descriptor of the file. Forked children do not
 * have the lock. -EAGAIN: another process has it. */
int hr__lock_range(int fd, uint64_t offset, uint64_t bytes);
/* Returns true if a process other than this one holds a lock in the range. */
bool hr__range_is_locked(int fd, uint64_t offset, uint64_t bytes);
/* Locks a whole file for an open file description: forked children have the lock too, and it lasts until the last of
 * them has closed its descriptor. It replaces a lock that the description has. -EAGAIN: another one has a lock that
 * excludes it. */
enum hr__share { HR__SHARED, HR__EXCLUSIVE };
int hr__lock_file(int fd, enum hr__share share);
void hr__unlock_file(int fd); /* also for the children that have it */
/* Takes a byte lock, for an open file description: as hr__lock_file, but of one byte of the file, and independently of
 * it. -EAGAIN; -EINVAL: the kernel has no such locks. */
int hr__byte_lock(int fd, uint64_t offset);
/* Returns true if another open file description has a byte lock there. */
bool hr__byte_is_locked(int fd, uint64_t offset);

/* Returns 1 if another open file description has a byte lock there, 0 if none has, or a negative errno. */
int hr__byte_look(int fd, uint64_t offset);

/* ---- futex.c: words in memory that processes share ---- */

/* Sleeps until a wake-up, as long as the word has this value. -EAGAIN: it has another one. -ETIMEDOUT. -EINTR. */
int hr__futex_wait(_Atomic uint32_t *word, uint32_t value, int64_t deadline_ns);
void hr__futex_wake(_Atomic uint32_t *word); /* one of those that sleep */

/* ---- folder.c: files by name, and file systems ---- */

enum { HR__PATH_BYTES = 4096 };
/* Formats a path into `ret_path`, which has HR__PATH_BYTES bytes. -ENAMETOOLONG. */
__attribute__((format(printf, 2, 3))) int hr__path(char *ret_path, const char *format, ...);

struct hr__file_info {
    uint64_t device, inode, bytes;
    uint64_t committed_bytes; /* bytes that the file system has given it; a sparse file has fewer than `bytes` */
    int64_t changed_ns;       /* time of the last change of the contents: st_mtim, since 1970 */
    uint32_t user, mode;      /* mode: the permission bits */
    bool is_folder, is_regular, is_link;
};
int hr__file_look(const char *path, struct hr__file_info *ret_info);         /* a symbolic link is not followed */
int hr__file_look_through(const char *path, struct hr__file_info *ret_info); /* it is followed */
int hr__file_look_fd(int fd, struct hr__file_info *ret_info);
int hr__file_make(const char *path, int *ret_fd);         /* a new file, to read and write, mode 0600. -EEXIST */
int hr__file_open_or_make(const char *path, int *ret_fd); /* to read and write, mode 0600. -ELOOP: a symbolic link */
int hr__file_touch(const char *path);                     /* sets its time to now */
/* Finds whether any process has the file of `fd` open by another open file description. -EAGAIN: one has. 0: none has,
 * or the file system cannot say it. A process that opens it in that moment without waiting gets EAGAIN. */
int hr__file_is_free(int fd);
int hr__folder_make_new(const char *path); /* mode 0700. -EEXIST: there is something of that name */
int hr__link_target(const char *path, char *ret_text, size_t bytes); /* of a symbolic link, cut to fit. Its length */
int hr__folder_sync(const char *path);                               /* 0 also if the file system has nothing to sync */
/* Removes a folder and the files in it; folders in it stay, and so does it. */
int hr__folder_remove(const char *path);
/* Calls `visit` for each name in a folder, without "." and "..", until it returns something else than 0. Returns that,
 * or a negative errno. */
int hr__folder_visit(const char *path, int (*visit)(void *context, const char *name), void *context);
int hr__rename(const char *from, const char *to);        /* replaces a file */
int hr__rename_new(const char *from, const char *to);    /* -EEXIST: something has the new name */
int hr__rename_swap(const char *one, const char *other); /* -EINVAL, -ENOSYS: the file system cannot do it */

struct hr__file_system {
    bool is_memory;       /* tmpfs: its files are memory, and end with the machine */
    bool copies_on_write; /* a write to space that was committed may need more space */
    const char *refused;  /* the name of a file system whose locks or maps are not reliable; else NULL */
    uint64_t free_bytes, free_files;
};
int hr__file_system_sync(int fd); /* brings all that was written to the file system of an open file to the disk */
int hr__file_system_look(const char *path, struct hr__file_system *ret_system);

/* ---- socket.c: local sockets with abstract names, non-blocking; at most 107 bytes of a name are used ---- */

int hr__socket_listen(const char *name, int *ret_fd); /* -EADDRINUSE: a socket has the name */
/* Takes a name that no process can connect to: it only shows that the socket exists. -EADDRINUSE. */
int hr__socket_name(const char *name, int *ret_fd);
int hr__socket_connect(const char *name, int *ret_fd); /* -ECONNREFUSED: no process listens */
int hr__socket_accept(int listen_fd, int *ret_fd);     /* -EAGAIN: no process is waiting */
bool hr__socket_is_of_user(int fd);                    /* the process at the other end is of the same user */
int hr__socket_send_fd(int socket_fd, int fd);

/* Local sockets with names in folders. A path of a socket has at most 107 bytes, so the name is given with an open
 * folder. They send and receive whole messages, and block; one that was accepted waits for room for `send_s` seconds
 * at most. */
int hr__folder_open(const char *path, int *ret_fd);
int hr__socket_listen_in(int folder_fd, const char *name, int *ret_fd); /* a socket that has the name is replaced */
int hr__socket_connect_in(int folder_fd, const char *name,
                          int *ret_fd); /* -ENOENT, -ECONNREFUSED: no process listens */
int hr__socket_accept_blocking(int listen_fd, int send_s, int *ret_fd);
/* Sends the parts as one message. -EPIPE and -ECONNRESET: the other end is closed. -EAGAIN: there is no room for it. */
int hr__socket_send(int fd, const struct hr__read_part *parts, size_t count, bool waits);
/* Receives a message of at most `room` bytes. Returns its size; 0: the other end is closed. -EAGAIN: none has come.
 * -EMSGSIZE: it is longer. */
int hr__socket_receive(int fd, void *data, size_t room);
/* -EAGAIN: it has not arrived. -ECONNRESET: the other end is closed. -EPROTO: another message arrived. */
int hr__socket_receive_fd(int socket_fd, int *ret_fd);
uint32_t hr__user(void); /* the effective user */

/* ---- cgroup.c ---- */

/* Returns the first number in a file; UINT64_MAX for "max" and if the file does not exist. */
uint64_t hr__read_number(const char *path);
/* Returns the number after `key` in the line that starts with it; UINT64_MAX if there is no such line. */
uint64_t hr__read_field(const char *path, const char *key);

/* The lowest value that the cgroups of this process and their parents allow; UINT64_MAX: no limit. */
uint64_t hr__cgroup_headroom(void);     /* bytes that may still be used */
uint64_t hr__cgroup_limit(void);        /* bytes in all */
uint64_t hr__cgroup_millicores(void);   /* CPU quota, in thousandths of a core */
uint64_t hr__cgroup_process_room(void); /* processes and threads that may still be started */

uint64_t hr__cgroup_millicores_of(int pid); /* the CPU quota of another process */
/* For how long the CPU quotas of a process, of its group or of a parent of that, have stopped it; UINT64_MAX: not
 * known. */
uint64_t hr__cgroup_throttled_ns(int pid);

/* The number of processes that the kernel killed because memory ran out, in the cgroup of this process, or on the
 * machine if there is no cgroup. UINT64_MAX: not known. */
uint64_t hr__oom_kill_count(void);

/* ---- cpu.c ---- */

enum { HR__CPU_AVX2 = 1, HR__CPU_FMA = 2 };
bool hr__cpu_has(uint32_t features); /* true if the CPU has all of them, and the kernel allows them */

/* ---- heap.c ---- */

/* See hr_port_keep_heap. Returns the maximum number of bytes that are kept; 0: malloc is unchanged. */
uint64_t hr__keep_heap(uint64_t bytes);

/* See hr_port_keep_blocks; `kept` is the value that hr__keep_heap returned. */
void hr__keep_blocks(uint64_t block_bytes, uint64_t kept);

void hr__trim_heap(void); /* gives free memory back to the system, after much of it was freed */

/* ---- limits.c ---- */

/* The maximum size of a file and of shared memory in bytes (ulimit -f). The functions here check it before they make a
 * file longer, because the kernel would send SIGXFSZ. Python ignores this signal, but it kills other programs. */
uint64_t hr__file_limit(void);
uint64_t hr__available_memory(void);   /* bytes: the lower of MemAvailable and the headroom of the cgroups */
uint64_t hr__address_space_left(void); /* bytes that can be mapped in one piece, of 16 TiB at most */
uint32_t hr__core_count(void);         /* cores that this process may run on; at least 1 */
uint32_t hr__core_count_of(int pid);   /* the same for another process */
uint32_t hr__machine_cores(void);      /* all that are on */
/* CPU time that all processes of the machine have used, in ns; 0: not known. */
uint64_t hr__machine_cpu_ns(void);
void hr__host_name(char *ret_name, size_t bytes);
uint32_t hr__usable_core_count(void); /* such cores, and no more than the CPU quota of the cgroups allows; at least 1 */
uint32_t hr__pid(void);
/* Raises the number of files that may be open as far as this process may. Returns the one before; 0: it failed. */
uint64_t hr__raise_open_files(void);
uint64_t hr__open_file_limit(void);           /* how many may be open now */
void hr__restore_open_files(uint64_t before); /* 0 is fine */

/* ---- fail.c: failpoints, compiled in with -DHR_FAILPOINTS only ---- */

#ifdef HR_FAILPOINTS
/* The negative errno that $HEADRACE_FAIL ("memfd_create:EPERM,pidfd_open:EPERM") asks for at `point`, or 0. */
int hr__fail_at(const char *point);
/* Raises the signal that $HEADRACE_STOP ("ring.tail:9:3": point, number, passage) asks for when this process passes the
 * point for the nth time. It is async-signal-safe if no thread changes the environment at the same time. */
void hr__stop_at(enum hr__point point);
extern const struct hr__failpoint hr__failpoints[HR__POINT_COUNT];
/* Counts it if bytes are punched or unmapped that hr_guard (headrace/face/machine.h) has noted. */
void hr__note_lost(const void *address, uint64_t bytes);
/* $HEADRACE_ROOT: a folder that is used instead of / to look up cgroups and limits. */
const char *hr__root(void);
/* $HEADRACE_PAGE: a page size in bytes that is larger than the kernel's, or 0. hr__punch and hr__unmap then work like
 * on a kernel that has pages of this size. */
uint64_t hr__assumed_page(void);
#else
static inline uint64_t hr__assumed_page(void) {
    return 0;
}
static inline const char *hr__root(void) {
    return "";
}
static inline int hr__fail_at(const char *point) {
    (void)point;
    return 0;
}
static inline void hr__stop_at(enum hr__point point) {
    (void)point;
}
static inline void hr__note_lost(const void *address, uint64_t bytes) {
    (void)address;
    (void)bytes;
}
#endif

#endif
