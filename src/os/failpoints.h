/* SPDX-License-Identifier: Apache-2.0 */
/* The table of points at which tests kill or stop a process. */
#ifndef HR_OS_FAILPOINTS_H
#define HR_OS_FAILPOINTS_H

/*
 * Every place at which a test can have this process killed or stopped: around each store to shared memory, and at each
 * step of starting, granting, taking, writing, publishing, delivering, releasing, replacing, stopping and closing.
 *
 * POINT(constant, name, side): `name` is its name in $HEADRACE_STOP (hr__stop_at in os.h), `side` is the process that
 * passes it. RANK is a trainer with a board that it shares with other trainers; LAUNCH is the front of `headrace run`,
 * GUARDIAN its guardian, and FORKED a rank before it becomes the user's command; CACHE is a process that uses the
 * cache, SAMPLES one that fills a table of samples, SHARED one that uses a shared array,
 * THREADS a worker whose threads make samples, FETCHER the fetcher of remote objects, and READER a process that reads
 * them. The numbers are those of enum hr__point. tests/c/process/test_sweep.c, test_board_ranks.c, test_cache_kills.c,
 * test_cache_samples.c and test_cache_shared.c go over the table, so a point that no run passes is a failing test.
 */
#define HR__FAILPOINTS(POINT)                                                                                          \
    /* start */                                                                                                        \
    POINT(ARENA_CREATED, "arena.created", TRAINER)                                                                     \
    POINT(ARENA_WRITTEN, "arena.written", TRAINER)                                                                     \
    POINT(ARENA_READY, "arena.ready", TRAINER)                                                                         \
    POINT(SHOW_SEEDED, "show.seeded", TRAINER)                                                                         \
    POINT(SHOW_WHO, "show.who", TRAINER)                                                                               \
    POINT(SHOW_NAMED, "show.named", TRAINER)                                                                           \
    POINT(SHOW_STEP, "show.step", TRAINER)                                                                             \
    POINT(ARENA_WAITS, "arena.waits", TRAINER)                                                                         \
    POINT(CREW_WORKER_FDS, "crew.worker_fds", TRAINER)                                                                 \
    POINT(CREW_FORK, "crew.fork", TRAINER)                                                                             \
    POINT(FORK_BEFORE, "fork.before", TRAINER)                                                                         \
    POINT(FORK_PARENT, "fork.parent", TRAINER)                                                                         \
    POINT(FORK_CHILD, "fork.child", WORKER)                                                                            \
    POINT(CREW_FORKED, "crew.forked", TRAINER)                                                                         \
    POINT(CREW_ADOPTED, "crew.adopted", TRAINER)                                                                       \
    POINT(PORT_MAPPED, "port.mapped", WORKER)                                                                          \
    POINT(PORT_ARMED, "port.armed", WORKER)                                                                            \
    POINT(PORT_PID, "port.pid", WORKER)                                                                                \
    POINT(PORT_STARTS, "port.starts", WORKER)                                                                          \
    POINT(PORT_OPENED, "port.opened", WORKER)                                                                          \
    /* grant */                                                                                                        \
    POINT(LOADER_KEPT, "loader.kept", TRAINER)                                                                         \
    POINT(GRANT_TAKEN, "grant.taken", TRAINER)                                                                         \
    POINT(GRANT_COMMITTED, "grant.committed", TRAINER)                                                                 \
    POINT(GRANT_PAYLOAD, "grant.payload", TRAINER)                                                                     \
    POINT(GRANT_SLOT, "grant.slot", TRAINER)                                                                           \
    POINT(GRANT_GRANTED, "grant.granted", TRAINER)                                                                     \
    POINT(LOADER_SUBMITTED, "loader.submitted", TRAINER)                                                               \
    POINT(LOADER_ANNOUNCED, "loader.announced", TRAINER)                                                               \
    POINT(LOADER_DRAINED, "loader.drained", TRAINER)                                                                   \
    POINT(LOADER_DISMISSED, "loader.dismissed", TRAINER)                                                               \
    /* the rings and the bells */                                                                                      \
    POINT(RING_PUSH, "ring.push", BOTH)                                                                                \
    POINT(RING_RECORD, "ring.record", BOTH)                                                                            \
    POINT(RING_TAIL, "ring.tail", BOTH)                                                                                \
    POINT(RING_POP, "ring.pop", BOTH)                                                                                  \
    POINT(RING_HEAD, "ring.head", BOTH)                                                                                \
    POINT(RING_SLEEPING, "ring.sleeping", BOTH)                                                                        \
    POINT(BELL_RING, "bell.ring", BOTH)                                                                                \
    POINT(BELL_RUNG, "bell.rung", BOTH)                                                                                \
    POINT(BELL_DRAINED, "bell.drained", BOTH)                                                                          \
    /* take and write */                                                                                               \
    POINT(PORT_TAKEN, "port.taken", WORKER)                                                                            \
    POINT(PORT_TASK, "port.task", WORKER)                                                                              \
    POINT(PORT_LOOKED, "port.looked", THREADS)                                                                         \
    POINT(PORT_RUNG, "port.rung", THREADS)                                                                             \
    POINT(PORT_MAKING, "port.making", IMAGES)                                                                          \
    POINT(PORT_NOTED, "port.noted", WORKER)                                                                            \
    POINT(TIMING_INDEX, "timing.index", WORKER)                                                                        \
    POINT(TIMING_TIME, "timing.time", WORKER)                                                                          \
    POINT(TIMING_BATCH, "timing.batch", WORKER)                                                                        \
    POINT(PORT_PHASE_NS, "port.phase_ns", WORKER)                                                                      \
    POINT(PORT_PHASE, "port.phase", WORKER)                                                                            \
    POINT(PORT_ASK_BYTES, "port.ask_bytes", WORKER)                                                                    \
    POINT(PORT_ASK, "port.ask", WORKER)                                                                                \
    POINT(PORT_ASKS, "port.asks", WORKER)                                                                              \
    POINT(PORT_REPLIED, "port.replied", WORKER)                                                                        \
    POINT(PORT_ANNOUNCED, "port.announced", WORKER)                                                                    \
    POINT(PORT_COMMITTED, "port.committed", WORKER)                                                                    \
    POINT(PORT_WITHDRAWN, "port.withdrawn", WORKER)                                                                    \
    POINT(PORT_POPULATED, "port.populated", WORKER)                                                                    \
    POINT(BATCH_HEAD, "batch.head", WORKER)                                                                            \
    POINT(BATCH_TREE, "batch.tree", WORKER)                                                                            \
    POINT(BATCH_LEAF, "batch.leaf", WORKER)                                                                            \
    POINT(STDERR_WRITTEN, "stderr.written", WORKER)                                                                    \
    POINT(STDERR_LOGGED, "stderr.logged", WORKER)                                                                      \
    POINT(STATUS_WRITTEN, "status.written", WORKER)                                                                    \
    POINT(STATUS_POSTED, "status.posted", WORKER)                                                                      \
    /* publish */                                                                                                      \
    POINT(PORT_PUSHED, "port.pushed", WORKER)                                                                          \
    POINT(PORT_PUBLISHED, "port.published", WORKER)                                                                    \
    POINT(PORT_RSS, "port.rss", WORKER)                                                                                \
    POINT(PORT_LEFT, "port.left", WORKER)                                                                              \
    /* asks, in the trainer */                                                                                         \
    POINT(ASK_NOTED, "ask.noted", TRAINER)                                                                             \
    POINT(GRANT_MOVED, "grant.moved", TRAINER)                                                                         \
    POINT(GRANT_CUT, "grant.cut", TRAINER)                                                                             \
    POINT(ASK_REFUSED, "ask.refused", TRAINER)                                                                         \
    POINT(REPLY_FIELDS, "reply.fields", TRAINER)                                                                       \
    POINT(REPLY_STORED, "reply.stored", TRAINER)                                                                       \
    /* deliver */                                                                                                      \
    POINT(RECEIVE_POPPED, "receive.popped", TRAINER)                                                                   \
    POINT(HOLD_SLOT, "hold.slot", TRAINER)                                                                             \
    POINT(HOLD_COPIED, "hold.copied", TRAINER)                                                                         \
    POINT(RECEIVE_EARLY, "receive.early", TRAINER)                                                                     \
    POINT(RECEIVE_WOKEN, "receive.woken", TRAINER)                                                                     \
    POINT(RECEIVE_DIED, "receive.died", TRAINER)                                                                       \
    POINT(ARENA_SHOWN, "arena.shown", TRAINER)                                                                         \
    POINT(RECEIVE_DELIVERED, "receive.delivered", TRAINER)                                                             \
    POINT(LOADER_DELIVERED, "loader.delivered", TRAINER)                                                               \
    /* release */                                                                                                      \
    POINT(LEASE_TAKEN, "lease.taken", TRAINER)                                                                         \
    POINT(LEASE_RELEASED, "lease.released", TRAINER)                                                                   \
    POINT(HOLD_DONE, "hold.done", TRAINER)                                                                             \
    POINT(HOLD_RETURNED, "hold.returned", TRAINER)                                                                     \
    POINT(LEDGER_COLLECTED, "ledger.collected", TRAINER)                                                               \
    POINT(LEDGER_FREED, "ledger.freed", TRAINER)                                                                       \
    POINT(LEDGER_PUNCHED, "ledger.punched", TRAINER)                                                                   \
    POINT(LEDGER_TRIMMED, "ledger.trimmed", TRAINER)                                                                   \
    POINT(LEDGER_SWEPT, "ledger.swept", TRAINER)                                                                       \
    /* replace */                                                                                                      \
    POINT(TAKE_BACK_PUBLISHED, "take_back.published", TRAINER)                                                         \
    POINT(TAKE_BACK_SLOT, "take_back.slot", TRAINER)                                                                   \
    POINT(TAKE_BACK_HEAD, "take_back.head", TRAINER)                                                                   \
    POINT(LOADER_TAKEN_BACK, "loader.taken_back", TRAINER)                                                             \
    POINT(LOADER_GRANTED_AGAIN, "loader.granted_again", TRAINER)                                                       \
    POINT(CREW_REAPED, "crew.reaped", TRAINER)                                                                         \
    /* stop and close */                                                                                               \
    POINT(ARENA_STOPPED, "arena.stopped", TRAINER)                                                                     \
    POINT(CREW_STOPPED, "crew.stopped", TRAINER)                                                                       \
    POINT(CREW_TERM, "crew.term", TRAINER)                                                                             \
    POINT(CREW_KILL, "crew.kill", TRAINER)                                                                             \
    POINT(CREW_ENDED, "crew.ended", TRAINER)                                                                           \
    POINT(PORT_UNMAPPED, "port.unmapped", WORKER)                                                                      \
    POINT(PORT_CLOSED, "port.closed", WORKER)                                                                          \
    POINT(CREW_CLOSED, "crew.closed", TRAINER)                                                                         \
    POINT(ARENA_UNMAPPED, "arena.unmapped", TRAINER)                                                                   \
    POINT(ARENA_CLOSED, "arena.closed", TRAINER)                                                                       \
    POINT(HOLD_RETIRED, "hold.retired", TRAINER)                                                                       \
    /* the board between ranks */                                                                                      \
    POINT(BOARD_BOUND, "board.bound", RANK)                                                                            \
    POINT(BOARD_CREATED, "board.created", RANK)                                                                        \
    POINT(BOARD_SERVES, "board.serves", RANK)                                                                          \
    POINT(BOARD_CONNECTED, "board.connected", RANK)                                                                    \
    POINT(BOARD_RECEIVED, "board.received", RANK)                                                                      \
    POINT(BOARD_TAKEN, "board.taken", RANK)                                                                            \
    POINT(BOARD_ENTERED, "board.entered", RANK)                                                                        \
    POINT(BOARD_FACTS, "board.facts", RANK)                                                                            \
    POINT(BOARD_PUBLISHED, "board.published", RANK)                                                                    \
    POINT(BOARD_LATE, "board.late", RANK)                                                                              \
    POINT(BOARD_STEP, "board.step", RANK)                                                                              \
    POINT(BOARD_END, "board.end", RANK)                                                                                \
    POINT(BOARD_OVER, "board.over", RANK)                                                                              \
    POINT(BOARD_WAIT, "board.wait", RANK)                                                                              \
    POINT(BOARD_FIRST, "board.first", RANK)                                                                            \
    POINT(BOARD_CLOSED, "board.closed", RANK)                                                                          \
    /* the cache */                                                                                                    \
    POINT(CACHE_LOCKED, "cache.locked", CACHE)                                                                         \
    POINT(CACHE_BEGUN, "cache.begun", CACHE)                                                                           \
    POINT(CACHE_FOLDER, "cache.folder", CACHE)                                                                         \
    POINT(CACHE_RESERVED, "cache.reserved", CACHE)                                                                     \
    POINT(CACHE_PLANNED, "cache.planned", CACHE)                                                                       \
    POINT(CACHE_WRITTEN, "cache.written", CACHE)                                                                       \
    POINT(CACHE_MARKED, "cache.marked", CACHE)                                                                         \
    POINT(CACHE_SUMMED, "cache.summed", CACHE)                                                                         \
    POINT(CACHE_COMPLETE, "cache.complete", CACHE)                                                                     \
    POINT(CACHE_SWAPPED, "cache.swapped", CACHE)                                                                       \
    POINT(CACHE_RENAMED, "cache.renamed", CACHE)                                                                       \
    POINT(CACHE_RETIRED, "cache.retired", CACHE)                                                                       \
    POINT(CACHE_PUBLISHED, "cache.published", CACHE)                                                                   \
    POINT(CACHE_FAILED, "cache.failed", CACHE)                                                                         \
    POINT(CACHE_TAKEN_OVER, "cache.taken_over", CACHE)                                                                 \
    POINT(CACHE_OPENED, "cache.opened", CACHE)                                                                         \
    POINT(CACHE_DELETE, "cache.delete", CACHE)                                                                         \
    POINT(CACHE_TRASHED, "cache.trashed", CACHE)                                                                       \
    POINT(CACHE_RECLAIMING, "cache.reclaiming", RECLAIM)                                                               \
    POINT(SAMPLES_TAKEN, "samples.taken", SAMPLES)                                                                     \
    POINT(SAMPLES_EXTENT, "samples.extent", SAMPLES)                                                                   \
    POINT(SAMPLES_RESERVED, "samples.reserved", SAMPLES)                                                               \
    POINT(SAMPLES_WRITTEN, "samples.written", SAMPLES)                                                                 \
    POINT(SAMPLES_PUBLISHED, "samples.published", SAMPLES)                                                             \
    /* arrays that several processes write */                                                                          \
    POINT(SHARED_MADE, "shared.made", SHARED)                                                                          \
    POINT(SHARED_COMMITTED, "shared.committed", SHARED)                                                                \
    POINT(SHARED_FILLED, "shared.filled", SHARED)                                                                      \
    POINT(SHARED_JOINING, "shared.joining", SHARED)                                                                    \
    POINT(SHARED_JOINED, "shared.joined", SHARED)                                                                      \
    POINT(SHARED_LOCKING, "shared.locking", SHARED)                                                                    \
    POINT(SHARED_LOCKED, "shared.locked", SHARED)                                                                      \
    POINT(SHARED_WAITING, "shared.waiting", SHARED)                                                                    \
    POINT(SHARED_WOKEN, "shared.woken", SHARED)                                                                        \
    POINT(SHARED_JUDGED, "shared.judged", SHARED)                                                                      \
    POINT(SHARED_RECOVERED, "shared.recovered", SHARED)                                                                \
    POINT(SHARED_STRIPING, "shared.striping", SHARED)                                                                  \
    POINT(SHARED_STRIPED, "shared.striped", SHARED)                                                                    \
    POINT(SHARED_UNLOCKING, "shared.unlocking", SHARED)                                                                \
    POINT(SHARED_UNLOCKED, "shared.unlocked", SHARED)                                                                  \
    /* remote objects */                                                                                               \
    POINT(BLOCKS_BOOT, "blocks.boot", FETCHER)                                                                         \
    POINT(BLOCKS_WRITE, "blocks.write", FETCHER)                                                                       \
    POINT(BLOCKS_WRITTEN, "blocks.written", FETCHER)                                                                   \
    POINT(BLOCKS_MARKED, "blocks.marked", FETCHER)                                                                     \
    POINT(BLOCKS_SYNCED, "blocks.synced", FETCHER)                                                                     \
    POINT(FETCHER_LOCKED, "fetcher.locked", FETCHER)                                                                   \
    POINT(FETCHER_BOUND, "fetcher.bound", FETCHER)                                                                     \
    POINT(FETCHER_ACCEPTED, "fetcher.accepted", FETCHER)                                                               \
    POINT(FETCHER_RECEIVED, "fetcher.received", FETCHER)                                                               \
    POINT(FETCHER_TAKEN, "fetcher.taken", FETCHER)                                                                     \
    POINT(FETCHER_GIVEN, "fetcher.given", FETCHER)                                                                     \
    POINT(FETCHER_ANSWERED, "fetcher.answered", FETCHER)                                                               \
    POINT(READER_SENT, "reader.sent", READER)                                                                          \
    POINT(READER_ANSWERED, "reader.answered", READER)                                                                  \
    /* the processes of headrace run */                                                                                \
    POINT(LAUNCH_OPENED, "launch.opened", LAUNCH)                                                                      \
    POINT(LAUNCH_FORKED, "launch.forked", LAUNCH)                                                                      \
    POINT(LAUNCH_STARTED, "launch.started", LAUNCH)                                                                    \
    POINT(LAUNCH_ENDED, "launch.ended", LAUNCH)                                                                        \
    POINT(LAUNCH_ENDING, "launch.ending", LAUNCH)                                                                      \
    POINT(LAUNCH_KILLS, "launch.kills", LAUNCH)                                                                        \
    POINT(LAUNCH_OVER, "launch.over", LAUNCH)                                                                          \
    POINT(GUARDIAN_BEGINS, "guardian.begins", GUARDIAN)                                                                \
    POINT(GUARDIAN_STARTED, "guardian.started", GUARDIAN)                                                              \
    POINT(GUARDIAN_OBEYS, "guardian.obeys", GUARDIAN)                                                                  \
    POINT(GUARDIAN_SWEEPS, "guardian.sweeps", GUARDIAN)                                                                \
    POINT(GUARDIAN_SWEPT, "guardian.swept", GUARDIAN)                                                                  \
    POINT(RANK_FORKED, "rank.forked", FORKED)

#define HR__POINT_CONSTANT(constant, name, side) HR__AT_##constant,
enum hr__point { HR__FAILPOINTS(HR__POINT_CONSTANT) HR__POINT_COUNT };
#undef HR__POINT_CONSTANT

enum hr__side {
    HR__BY_TRAINER = 1,
    HR__BY_WORKER = 2,
    HR__BY_BOTH = HR__BY_TRAINER | HR__BY_WORKER,
    HR__BY_RANK = 4,
    HR__BY_LAUNCH = 8,
    HR__BY_GUARDIAN = 16,
    HR__BY_FORKED = 32,
    HR__BY_CACHE = 64,
    HR__BY_SAMPLES = 128,
    HR__BY_IMAGES = 256,
    HR__BY_SHARED = 512,
    HR__BY_RECLAIM = 1024,
    HR__BY_FETCHER = 2048,
    HR__BY_READER = 4096,
    HR__BY_THREADS = 8192
};

struct hr__failpoint {
    const char *name;
    enum hr__side side;
};

#endif
