/* SPDX-License-Identifier: Apache-2.0 */
#include "run_scene.h"

/* The options of command lines: which job comes of them. */

static void ranks_are_counted(void **state) {
    struct scene scene;
    (void)state;
    assert_int_equal(job_of(&scene, "run a")->local_size, 1);
    run_done(&scene.run);
    assert_int_equal(job_of(&scene, "run --nproc=4096 a")->local_size, HR_LAUNCH_MAX_RANKS);
    run_done(&scene.run);
    assert_int_equal(job_of(&scene, "run --nproc=gpu a")->local_size, 8);
    run_done(&scene.run);
    for (const char *const *line =
             (const char *const[]){"run --nproc 0 a", "run --nproc -1 a", "run --nproc 10000 a", "run --nproc 4097 a",
                                   "run --nproc=abc a", "run --nproc= a", "run --nproc 99999999999999999999 a",
                                   "run --nproc 1.5 a", NULL};
         *line; line++)
        assert_refused(*line, "'; give a number from 1 to 4096, or auto, cpu, gpu or xpu");
    assert_refused("run --nproc xpu a", "this machine has no xpu");
}

/* ---- where ranks meet ---- */

static void assert_meeting(const char *line, uint32_t nodes, uint32_t node, const char *address, uint16_t port,
                           const char *id) {
    struct scene scene;
    const struct hr_launch_job *job = job_of(&scene, line);
    assert_int_equal(job->kind, HR_LAUNCH_RANKS);
    assert_int_equal(job->node_count, nodes);
    assert_int_equal(job->node_rank, node);
    assert_string_equal(job->master_addr ? job->master_addr : "", address);
    assert_int_equal(job->master_port, port);
    assert_string_equal(job->run_id ? job->run_id : "", id);
    run_done(&scene.run);
}

static void ranks_of_one_machine_use_a_free_port(void **state) {
    (void)state;
    assert_meeting("run a", 1, 0, "", 0, "random");
    assert_meeting("run --standalone --rdzv-id x --rdzv-endpoint h:1 --master-port 3 a", 1, 0, "", 0, "random");
    assert_meeting("run --rdzv-id x a", 1, 0, "", 0, "x");
    assert_meeting("run --rdzv-backend c10d --rdzv-endpoint localhost:29400 --rdzv-id x a", 1, 0, "", 0, "x");
    assert_meeting("run --rdzv-backend c10d --local-addr 10.0.0.1 a", 1, 0, "10.0.0.1", 0, "random");
    assert_meeting("run --master-addr h --node-rank 3 a", 1, 0, "", 0, "random");
}

static void static_rendezvous_has_the_address_of_the_command_line(void **state) {
    (void)state;
    assert_meeting("run --master-port 1234 a", 1, 0, "127.0.0.1", 1234, "");
    assert_meeting("run --master-port 1234 --master-addr [::1] a", 1, 0, "::1", 1234, "");
    assert_meeting("run --rdzv-endpoint h:1234 --master-port 1 a", 1, 0, "h", 1234, "");
    assert_meeting("run --rdzv-endpoint [fe80::1]:1234 a", 1, 0, "fe80::1", 1234, "");
    assert_meeting("run --nnodes 2 --node-rank 1 --master-addr h --rdzv-id x a", 2, 1, "h", 29500, "x");
    assert_meeting("run --nnodes=3:3 --master-port 1 a", 3, 0, "127.0.0.1", 1, "");
    assert_note_in("", "run --nnodes 2 a", "--master-addr is not given");
}

static void wrong_addresses_are_refused(void **state) {
    (void)state;
    assert_refused("run --nnodes 0 a", "--nnodes is '0'; give the number of machines, 1 or more, or a range: 2:4");
    assert_refused("run --nnodes 3:2 a", "--nnodes is '3:2'");
    assert_refused("run --nnodes 1:2:3 a", "--nnodes is '1:2:3'");
    assert_refused("run --nnodes= a", "--nnodes is ''");
    assert_refused("run --nnodes 2 --standalone a", "--standalone is for one machine, and --nnodes is '2'");
    assert_refused("run --nnodes 2 --node-rank 2 a", "--node-rank is '2'; give a number from 0 to 1");
    assert_refused("run --nnodes 2 --node-rank -1 a", "--node-rank is '-1'; give a number from 0 to 1");
    assert_refused("run --nnodes 2 --master-port 0 a", "--master-port has port 0");
    assert_refused("run --master-port 65536 a", "--master-port is '65536'; give a number from 0 to 65535");
    assert_refused("run --master-port x a", "--master-port is 'x'");
    assert_refused("run --standalone --master-port x a", "--master-port is 'x'");
    assert_refused("run --node-rank x a", "--node-rank is 'x'");
    assert_refused("run --master-port 1 --master-addr= a", "--master-addr is ''; give the name of a machine");
    assert_refused("run --master-port 1 --master-addr a/b a", "--master-addr is 'a/b'");
    assert_refused("run --rdzv-endpoint h a", "--rdzv-endpoint is 'h'; give HOST:PORT");
    assert_refused("run --rdzv-endpoint [::1] a", "--rdzv-endpoint is '[::1]'");
    assert_refused("run --rdzv-endpoint h:x a", "--rdzv-endpoint is 'h:x'");
    assert_refused("run --rdzv-endpoint h:70000 a", "--rdzv-endpoint is 'h:70000'");
    assert_refused("run --rdzv-endpoint :1 a", "--rdzv-endpoint is ':1'");
    assert_refused("run --rdzv-conf timeout a", "--rdzv-conf is 'timeout'; give KEY=VALUE,KEY=VALUE");
    assert_refused("run --rdzv-conf a=1, a", "--rdzv-conf is 'a=1,'");
    assert_refused("run --rdzv-conf =1 a", "--rdzv-conf is '=1'");
    assert_refused("run --rdzv-conf a=,b=1 a", "--rdzv-conf is 'a=,b=1'");
}

/* ---- torch.distributed.run ---- */

#define TORCHRUN "/bin/python3 -m torch.distributed.run "
#define EXEC " --no-python -- /bin/headrace exec "

static void rendezvous_of_several_machines_is_torchs(void **state) {
    (void)state;
    assert_command("run --nnodes 2 --nproc gpu --rdzv_backend c10d --rdzv-endpoint h:1 --grace 3 --report f -m mod a "
                   "${local_rank}",
                   TORCHRUN "--nnodes=2 --nproc-per-node=gpu --rdzv-backend=c10d --rdzv-endpoint=h:1" EXEC
                            "--grace=3 -- /bin/python3 -u -m mod a ${local_rank}");
    assert_command("run --nnodes 1:4 --no-python x -- y", TORCHRUN "--nnodes=1:4" EXEC "-- x y");
    assert_command("run --nnodes 2 --max-restarts 3 a",
                   TORCHRUN "--nnodes=2 --max-restarts=3" EXEC "-- /bin/python3 -u a");
    assert_command("run --rdzv-backend etcd-v2 a", TORCHRUN "--rdzv-backend=etcd-v2" EXEC "-- /bin/python3 -u a");
    assert_command("run --virtual-local-rank --standalone --exit-timeout 9 --stall-after 8 a", TORCHRUN
                   "--standalone --virtual-local-rank" EXEC "--exit-timeout=9 --stall-after=8 -- /bin/python3 -u a");
    assert_command("run --numa-binding=node a", TORCHRUN "--numa-binding=node" EXEC "-- /bin/python3 -u a");
    assert_command("run --logs-specs=x a", TORCHRUN "--logs-specs=x" EXEC "-- /bin/python3 -u a");
    assert_command("run --duplicate-stdout-filters=x a",
                   TORCHRUN "--duplicate-stdout-filters=x" EXEC "-- /bin/python3 -u a");
}

static void torchs_job_is_one_process_with_time_to_end_its_ranks(void **state) {
    struct scene scene;
    (void)state;
    const struct hr_launch_job *job =
        job_of(&scene, "run --nnodes 1:2 --shutdown-timeout 20 --grace 3 --exit-timeout 9 --report f a");
    assert_int_equal(job->kind, HR_LAUNCH_ONE);
    assert_int_equal(job->local_size, 1);
    assert_false(job->has_macros);
    assert_int_equal(job->grace_ns, 3 * SECOND);
    assert_int_equal(job->shutdown_ns, 23 * SECOND);
    assert_int_equal(job->exit_timeout_ns, -1);
    assert_string_equal(job->report, "f");
    assert_string_equal(scene.run.handed_on, "the number of machines is a range");
    run_done(&scene.run);
    assert_note_in("", "run --nnodes 1:2 --prefix never a", "--prefix has no effect: torch.distributed.run starts");
    assert_note_in("", "run --numa-binding x a", "because --numa-binding is given");
}

/* torch.distributed.run would end with a traceback. */
static void values_for_torch_are_checked(void **state) {
    struct scene scene;
    (void)state;
    assert_refused("run --nnodes 1:2 --nproc 0 a", "--nproc-per-node is '0'");
    assert_refused("run --nnodes 1:2 --node-rank x a", "--node-rank is 'x'; give a number from 0 to");
    assert_refused("run --nnodes 1:2 --master-port x a", "--master-port is 'x'");
    assert_refused("run --numa-binding node -r 7 a", "--redirects is '7'");
    assert_refused("run --numa-binding node --prefix x a", "--prefix is 'x'");
    assert_refused("run --numa-binding node --monitor-interval x a", "--monitor-interval is 'x'");
    const struct hr_launch_job *job = job_of(&scene, "run --nnodes 1:2 --nproc xpu -t 3 -r 5:3 --monitor-interval 1 a");
    assert_true(!job->tees && !job->redirects && !scene.run.needs_temporary);
    assert_null(scene.run.notes->next); /* which says why it is handed on */
    run_done(&scene.run);
}

/* torch reads the same variables. */
static void variables_are_not_repeated_for_torch(void **state) {
    struct scene scene;
    (void)state;
    job_in(&scene, "PET_NNODES=1:2 PET_MODULE=1", "run --role r a");
    assert_words(scene.run.job.words, TORCHRUN "--role=r" EXEC "-- /bin/python3 -u -m a");
    run_done(&scene.run);
    /* A rank may change its working directory, so the folder of logs is absolute, also if a variable names it. */
    job_in(&scene, "PET_LOG_DIR=logs", "run --nnodes 1:2 a");
    assert_words(scene.run.job.words, TORCHRUN "--nnodes=1:2 --log-dir=/here/logs" EXEC "-- /bin/python3 -u a");
    run_done(&scene.run);
    job_in(&scene, "PET_LOG_DIR=/logs", "run --nnodes 1:2 --log-dir d a");
    assert_words(scene.run.job.words, TORCHRUN "--nnodes=1:2 --log-dir=/here/d" EXEC "-- /bin/python3 -u a");
    run_done(&scene.run);
}

/* ---- streams ---- */

static void streams_are_chosen_per_rank(void **state) {
    struct scene scene;
    (void)state;
    const struct hr_launch_job *job =
        job_of(&scene, "run --nproc 12 -r 0:1,11:2 -t 3 --local-ranks-filter 0,3 --log-dir d a");
    assert_memory_equal(job->redirects, "\1\0\0\0\0\0\0\0\0\0\0\2", 12);
    assert_memory_equal(job->tees, "\3\3\3\3\3\3\3\3\3\3\3\3", 12);
    for (int i = 0; i < 12; i++) assert_int_equal(job->is_shown[i], i == 0 || i == 3);
    assert_string_equal(job->log_dir, "d");
    assert_false(scene.run.needs_temporary);
    run_done(&scene.run);
    job = job_of(&scene, "run -r 3 a");
    assert_true(scene.run.needs_temporary);
    assert_null(job->is_shown);
    run_done(&scene.run);
    job = job_of(&scene, "run -r 0 -t 0:0 a");
    assert_true(!job->redirects && !job->tees && !scene.run.needs_temporary);
    run_done(&scene.run);
    job = job_of(&scene, "run -r 3 --log-dir /dev/null a");
    assert_true(!job->redirects && !job->log_dir && !scene.run.needs_temporary);
    run_done(&scene.run);
    assert_note_in("", "run --nproc 2 -r 5:3 a", "--redirects names local rank 5, which does not exist: there are 2");
    for (const char *const *line =
             (const char *const[]){"run -r 4 a", "run -r x a", "run -r 0:4 a", "run -r 0:1, a", "run -r ,0:1 a",
                                   "run -r 0:1,3 a", "run -r 33 a", "run -r -1 a", "run -r 1:1:1 a", NULL};
         *line; line++)
        assert_refused(*line, "; give 0, 1 (stdout), 2 (stderr) or 3 (both)");
    assert_refused("run --local-ranks-filter 0,x a", "--local-ranks-filter is '0,x'; give local ranks");
    assert_refused("run --local-ranks-filter 0, a", "--local-ranks-filter is '0,'");
}

static void stdin_and_prefix_are_checked(void **state) {
    struct scene scene;
    (void)state;
    const struct hr_launch_job *job = job_of(&scene, "run --nproc 2 a");
    assert_true(job->has_prefix && job->stdin_rank == 0);
    run_done(&scene.run);
    job = job_of(&scene, "run --nproc 2 --prefix never --stdin 1 a");
    assert_true(!job->has_prefix && job->stdin_rank == 1);
    run_done(&scene.run);
    assert_refused("run --nproc 2 --stdin 2 a", "--stdin is '2'; give a local rank from 0 to 1, or none");
    assert_refused("run --stdin= a", "--stdin is ''");
    assert_refused("run --prefix always a", "--prefix is 'always'; give auto or never");
    assert_refused("run --report= a", "--report is ''; give the name of a file");
}

/* ---- ends ---- */

static void assert_ends(const char *environment, const char *line, int64_t grace_ns, int64_t shutdown_ns) {
    struct scene scene;
    const struct hr_launch_job *job = job_in(&scene, environment, line);
    assert_int_equal(job->grace_ns, grace_ns);
    assert_int_equal(job->shutdown_ns, shutdown_ns);
    run_done(&scene.run);
}

static void times_have_torchruns_defaults(void **state) {
    struct scene scene;
    (void)state;
    assert_ends("", "run a", 5 * SECOND, 30 * SECOND);
    assert_ends("", "exec a", 5 * SECOND, 30 * SECOND);
    assert_ends("", "run --grace 0.25 a", SECOND / 4, 30 * SECOND);
    assert_ends("", "run --shutdown-timeout 7 a", 7 * SECOND, 7 * SECOND);
    assert_ends("PET_SHUTDOWN_TIMEOUT=7", "run a", 7 * SECOND, 7 * SECOND);
    assert_ends("", "run --shutdown-timeout 7 --grace 0 a", 0, 7 * SECOND);
    assert_ends("TORCH_ELASTIC_SHUTDOWN_TIMEOUT=8", "run a", 5 * SECOND, 8 * SECOND);
    assert_ends("TORCH_ELASTIC_SHUTDOWN_TIMEOUT=8", "exec a", 5 * SECOND, 8 * SECOND);
    const struct hr_launch_job *job = job_of(&scene, "run --exit-timeout 1e1 --stall-after .5 --max-restarts 2 a");
    assert_int_equal(job->exit_timeout_ns, 10 * SECOND);
    assert_int_equal(job->stall_after_ns, SECOND / 2);
    assert_int_equal(job->max_restarts, 2);
    run_done(&scene.run);
    job = job_of(&scene, "run a");
    assert_true(job->exit_timeout_ns == -1 && job->stall_after_ns == -1);
    run_done(&scene.run);
}

static void wrong_times_are_refused(void **state) {
    (void)state;
    for (const char *const *line =
             (const char *const[]){"run --grace -1 a", "run --grace 5s a", "run --grace inf a", "run --grace nan a",
                                   "run --grace= a", "run --grace 1e300 a", "run --grace 0x5 a", "run --grace 1.2.3 a",
                                   "exec --grace x a", NULL};
         *line; line++)
        assert_refused(*line, "; give seconds from 0 to 1000000000, for example 5 or 0.5");
    assert_refused("run --shutdown-timeout x a", "--shutdown-timeout is 'x'");
    assert_refused("run --exit-timeout x a", "--exit-timeout is 'x'");
    assert_refused("run --stall-after x a", "--stall-after is 'x'");
    assert_refused_in("TORCH_ELASTIC_SHUTDOWN_TIMEOUT=x", "run a",
                      "TORCH_ELASTIC_SHUTDOWN_TIMEOUT is 'x'; give seconds");
    assert_refused("run --max-restarts -1 a", "--max-restarts is '-1'; give a number from 0 to 2147483647");
    assert_refused("run --max-restarts x a", "--max-restarts is 'x'");
}

static void assert_signals(const char *environment, const char *line, uint64_t end, uint64_t passed) {
    struct scene scene;
    const struct hr_launch_job *job = job_in(&scene, environment, line);
    assert_int_equal(job->end_signals, end);
    assert_int_equal(job->passed_signals, passed);
    run_done(&scene.run);
}

static void signals_end_the_job_or_are_passed_on(void **state) {
    const uint64_t ends = bit(SIGTERM) | bit(SIGINT) | bit(SIGHUP), users = bit(SIGUSR1) | bit(SIGUSR2);
    (void)state;
    assert_signals("", "run a", ends | bit(SIGQUIT), users);
    assert_signals("", "exec a", ends | bit(SIGQUIT), users);
    assert_signals("", "run --signals-to-handle SIGUSR1 a", ends | bit(SIGUSR1), bit(SIGUSR2));
    assert_signals("", "run --signals-to-handle SIGTERM,SIGXCPU,SIGUSR1,SIGUSR2 a", ends | bit(SIGXCPU) | users, 0);
    assert_signals("TORCHELASTIC_SIGNALS_TO_HANDLE=SIGUSR2", "exec a", ends | bit(SIGUSR2), bit(SIGUSR1));
    assert_signals("TORCHELASTIC_SIGNALS_TO_HANDLE=SIGUSR2", "run --signals-to-handle SIGTERM a", ends, users);
    assert_note_in("", "run --signals-to-handle SIGTERM,TERM a", "--signals-to-handle names 'TERM', which is ignored");
    assert_refused("run --signals-to-handle SIGKILL a",
                   "--signals-to-handle names SIGKILL, which no program can handle");
    assert_refused_in("TORCHELASTIC_SIGNALS_TO_HANDLE=SIGSTOP", "run a",
                      "TORCHELASTIC_SIGNALS_TO_HANDLE names SIGSTOP");
}

/* ---- notes ---- */

static void options_without_effect_are_noted_once(void **state) {
    (void)state;
    assert_silent_in("", "run --nproc 2 --standalone a --nproc-per-nodes 3");
    assert_note_in("", "run --monitor-interval 1 --start-method fork a",
                   "--monitor-interval, --start-method have no effect");
    assert_note_in("PET_EVENT_LOG_HANDLER=x", "run a", "PET_EVENT_LOG_HANDLER has no effect");
    assert_refused("run --start-method thread a", "--start-method is 'thread'; give spawn, fork or forkserver");
    assert_refused("run --monitor-interval x a", "--monitor-interval is 'x'");
    assert_note_in("", "run --master-addr h a", "--master-addr has no effect: it is for a static rendezvous");
    assert_note_in("", "run --rdzv-backend c10d --master-port 3 a", "--master-port has no effect");
    assert_note_in("", "run --node-rank 1 a", "--node-rank has no effect: the job has one machine");
    assert_note_in("", "run --rdzv-conf timeout=3,x=y a", "--rdzv-conf has no effect");
    assert_note_in("", "run --local-addr h --master-port 3 a", "--local-addr has no effect");
    assert_silent_in("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=x", "run -t 3 a");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_counted),
        cmocka_unit_test(ranks_of_one_machine_use_a_free_port),
        cmocka_unit_test(static_rendezvous_has_the_address_of_the_command_line),
        cmocka_unit_test(wrong_addresses_are_refused),
        cmocka_unit_test(rendezvous_of_several_machines_is_torchs),
        cmocka_unit_test(torchs_job_is_one_process_with_time_to_end_its_ranks),
        cmocka_unit_test(values_for_torch_are_checked),
        cmocka_unit_test(variables_are_not_repeated_for_torch),
        cmocka_unit_test(streams_are_chosen_per_rank),
        cmocka_unit_test(stdin_and_prefix_are_checked),
        cmocka_unit_test(times_have_torchruns_defaults),
        cmocka_unit_test(wrong_times_are_refused),
        cmocka_unit_test(signals_end_the_job_or_are_passed_on),
        cmocka_unit_test(options_without_effect_are_noted_once),
    };
    return cmocka_run_group_tests_name("run_plan", tests, NULL, NULL);
}
