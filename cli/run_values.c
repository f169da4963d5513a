/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Checks the values of options. */

static const char *text_of(const struct run *run, enum run_option option) {
    return run->given[option].text;
}

static bool refuse(struct run *run, enum run_option option, const char *what_to_do) {
    return run_fail(run, "%s is '%s'; %s", run_called(run, option), text_of(run, option), what_to_do);
}

/* ---- numbers ---- */

bool run_read_integer(const char *text, int64_t *ret_value) {
    text += strspn(text, " \t\n\r\f\v");
    bool is_negative = *text == '-';
    text += *text == '-' || *text == '+';
    int64_t value = 0;
    if (!isdigit((unsigned char)*text)) return false;
    for (; isdigit((unsigned char)*text); text += 1 + (text[1] == '_' && isdigit((unsigned char)text[2])))
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *text - '0', &value))
            value = INT64_MAX;
    text += strspn(text, " \t\n\r\f\v");
    if (*text) return false;
    *ret_value = !is_negative ? value : value == INT64_MAX ? INT64_MIN : -value;
    return true;
}

bool run_integer(struct run *run, enum run_option option, int64_t least, int64_t most, int64_t *ret_value) {
    int64_t value;
    if (run_read_integer(text_of(run, option), &value) && value >= least && value <= most) {
        *ret_value = value;
        return true;
    }
    return refuse(run, option, run_print(run, "give a number from %" PRId64 " to %" PRId64, least, most));
}

enum { SECONDS_MOST = 1000000000 };

/* Returns false if it is not a number of seconds. */
static bool read_seconds(const char *text, int64_t *ret_ns) {
    if (!*text || strspn(text, " \t0123456789.eE+-") != strlen(text)) return false;
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || end[strspn(end, " \t")] || !(seconds >= 0 && seconds <= SECONDS_MOST)) return false;
    *ret_ns = (int64_t)(seconds * 1e9);
    return true;
}

static const char seconds_wanted[] = "give seconds from 0 to 1000000000, for example 5 or 0.5";

bool run_seconds(struct run *run, enum run_option option, int64_t *ret_ns) {
    return read_seconds(text_of(run, option), ret_ns) || refuse(run, option, seconds_wanted);
}

bool run_shutdown_ns(struct run *run, int64_t *ret_ns) {
    static const char variable[] = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
    if (run_has(run, SHUTDOWN_TIMEOUT)) return run_seconds(run, SHUTDOWN_TIMEOUT, ret_ns);
    const char *text = run_variable(run, variable);
    if (read_seconds(text ? text : "30", ret_ns)) return true;
    return run_fail(run, "%s is '%s'; %s", variable, text, seconds_wanted);
}

bool run_choice(struct run *run, enum run_option option, const char *const *choices) {
    const char *names = "";
    for (const char *const *choice = choices; *choice; choice++) {
        if (!strcmp(text_of(run, option), *choice)) return true;
        names = run_print(run, "%s%s%s", names, !*names ? "" : choice[1] ? ", " : " or ", *choice);
    }
    return refuse(run, option, run_print(run, "give %s", names));
}

bool run_node_counts(struct run *run, int64_t *ret_least, int64_t *ret_most) {
    const char *text = text_of(run, NNODES) ? text_of(run, NNODES) : "1";
    const char *colon = strchr(text, ':');
    const char *least = colon ? run_print(run, "%.*s", (int)(colon - text), text) : text;
    bool is_read = run_read_integer(least, ret_least) && run_read_integer(colon ? colon + 1 : text, ret_most);
    if (is_read && *ret_least >= 1 && *ret_least <= *ret_most && *ret_most <= INT32_MAX) return true;
    return refuse(run, NNODES, "give the number of machines, 1 or more, or a range: 2:4");
}

/* ---- local ranks ---- */

/* Reads a number without a sign, and moves `*text` behind it. Returns false if there is no digit. */
static bool read_rank(const char **text, int64_t *ret_rank) {
    size_t length = strspn(*text, "0123456789");
    if (!length || length > 9) return false;
    *ret_rank = strtoll(*text, NULL, 10);
    *text += length;
    return true;
}

static void say_if_missing(struct run *run, enum run_option option, int64_t rank, uint32_t local_size) {
    if (rank < 0 || rank >= local_size)
        run_say(run, "%s names local rank %" PRId64 ", which does not exist: there are %" PRIu32,
                run_called(run, option), rank, local_size);
}

static bool is_streams(char character) {
    return character >= '0' && character <= '3';
}

static bool read_streams_of_rank(const char **text, int64_t *ret_rank, uint8_t *ret_streams) {
    if (!read_rank(text, ret_rank) || (*text)[0] != ':' || !is_streams((*text)[1])) return false;
    *ret_streams = (uint8_t)((*text)[1] - '0');
    *text += 2;
    return true;
}

bool run_streams(struct run *run, enum run_option option, uint32_t local_size, uint8_t *ret_streams) {
    const char *text = text_of(run, option);
    if (is_streams(text[0]) && !text[1]) {
        memset(ret_streams, text[0] - '0', local_size);
        return true;
    }
    for (bool is_more = true; is_more; text += is_more) {
        int64_t rank;
        uint8_t streams;
        if (!read_streams_of_rank(&text, &rank, &streams) || (*text && *text != ','))
            return refuse(run, option,
                          "give 0, 1 (stdout), 2 (stderr) or 3 (both), or a list of local ranks with their streams: "
                          "0:3,1:2");
        if (rank < local_size) ret_streams[rank] = streams;
        say_if_missing(run, option, rank, local_size);
        is_more = *text == ',';
    }
    return true;
}

bool run_ranks(struct run *run, enum run_option option, uint32_t local_size, bool *ret_has) {
    const char *item = text_of(run, option);
    for (bool is_more = true; is_more;) {
        size_t length = strcspn(item, ",");
        int64_t rank;
        if (!run_read_integer(run_print(run, "%.*s", (int)length, item), &rank))
            return refuse(run, option, "give local ranks, separated by commas: 0,1");
        if (rank >= 0 && rank < local_size)
            ret_has[rank] = true;
        else
            say_if_missing(run, option, rank, local_size);
        is_more = item[length] == ',';
        item += length + is_more;
    }
    return true;
}

/* ---- addresses ---- */

bool run_address(struct run *run, enum run_option option, const char *text, const char **ret_host) {
    size_t length = strlen(text);
    if (length > 2 && text[0] == '[' && text[length - 1] == ']')
        text = run_print(run, "%.*s", (int)length - 2, text + 1);
    bool is_valid = *text;
    for (const char *at = text; *at; at++)
        is_valid = is_valid && (isalnum((unsigned char)*at) || strchr("_.:-", *at) || (unsigned char)*at >= 0x80);
    if (!is_valid) return refuse(run, option, "give the name of a machine, an IPv4 address, or an IPv6 address: [::1]");
    *ret_host = text;
    return true;
}

/* An endpoint is HOST:PORT; an IPv6 address is in brackets. */
bool run_endpoint(struct run *run, const char **ret_host, int64_t *ret_port) {
    const char *text = text_of(run, RDZV_ENDPOINT), *colon = strrchr(text, ':');
    bool has_port = colon && text[strlen(text) - 1] != ']';
    if (!has_port || !isdigit((unsigned char)colon[1]) || !run_read_integer(colon + 1, ret_port) ||
        *ret_port > UINT16_MAX)
        return refuse(run, RDZV_ENDPOINT, "give HOST:PORT, or --master-addr and --master-port");
    return run_address(run, RDZV_ENDPOINT, run_print(run, "%.*s", (int)(colon - text), text), ret_host);
}

bool run_rendezvous_configuration(struct run *run) {
    for (const char *item = text_of(run, RDZV_CONF); *item;) {
        size_t length = strcspn(item, ","), key = strcspn(item, "=,");
        if (!key || key + 1 >= length) return refuse(run, RDZV_CONF, "give KEY=VALUE,KEY=VALUE");
        if (item[length] && !item[length + 1]) return refuse(run, RDZV_CONF, "remove the last comma");
        item += length + (item[length] == ',');
    }
    return true;
}

/* ---- signals ---- */

static const struct {
    const char *name;
    int signal;
} signal_names[] = {
    {"SIGHUP", SIGHUP},       {"SIGINT", SIGINT},   {"SIGQUIT", SIGQUIT}, {"SIGABRT", SIGABRT}, {"SIGUSR1", SIGUSR1},
    {"SIGUSR2", SIGUSR2},     {"SIGALRM", SIGALRM}, {"SIGTERM", SIGTERM}, {"SIGXCPU", SIGXCPU}, {"SIGXFSZ", SIGXFSZ},
    {"SIGVTALRM", SIGVTALRM}, {"SIGPROF", SIGPROF}, {"SIGIO", SIGIO},     {"SIGPOLL", SIGPOLL}, {"SIGPWR", SIGPWR},
};
enum { SIGNAL_NAME_COUNT = sizeof signal_names / sizeof *signal_names };

static uint64_t bit(int signal) {
    return UINT64_C(1) << (signal - 1);
}

static uint64_t find_signal(const char *name) {
    for (size_t i = 0; i < SIGNAL_NAME_COUNT; i++)
        if (!strcmp(name, signal_names[i].name)) return bit(signal_names[i].signal);
    return 0;
}

static bool add_signal(struct run *run, const char *called, const char *name, uint64_t *signals) {
    uint64_t found = find_signal(name);
    if (!strcmp(name, "SIGKILL") || !strcmp(name, "SIGSTOP"))
        return run_fail(run, "%s names %s, which no program can handle; remove it", called, name);
    if (!found)
        run_say(run,
                "%s names '%s', which is ignored; headrace handles SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, "
                "SIGUSR2, SIGALRM, SIGXCPU and others",
                called, name);
    *signals |= found;
    return true;
}

bool run_end_signals(struct run *run, uint64_t *ret_signals) {
    static const char variable[] = "TORCHELASTIC_SIGNALS_TO_HANDLE";
    const char *called = run_called(run, SIGNALS_TO_HANDLE), *text = text_of(run, SIGNALS_TO_HANDLE);
    if (!text) {
        called = variable;
        text = run_variable(run, variable);
    }
    if (!text) text = "SIGQUIT";
    uint64_t signals = bit(SIGTERM) | bit(SIGINT) | bit(SIGHUP); /* the job ends with these, named or not */
    for (bool is_more = true; is_more;) {
        size_t length = strcspn(text, ","), blanks = strspn(text, " ");
        const char *name = run_print(run, "%.*s", (int)(length - (blanks < length ? blanks : length)), text + blanks);
        name = run_print(run, "%.*s", (int)strcspn(name, " "), name);
        if (!add_signal(run, called, name, &signals)) return false;
        is_more = text[length] == ',';
        text += length + is_more;
    }
    *ret_signals = signals;
    return true;
}
