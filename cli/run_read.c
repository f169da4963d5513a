/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <ctype.h>
#include <string.h>

/*
 * Reads the words of a command line as Python's argparse reads torchrun's:
 *  - `-` and `_` are the same in names, and a name may be shortened as long as it is unique. torchrun's options come
 *    first, so a shortened name means here what it means there;
 *  - the first word that is neither an option nor the value of one is the script, and all words after it are its own;
 *  - `--` ends the options. argparse removes it also directly after the script, if it is the first one.
 */

/* ---- names ---- */

static char plain(char character) {
    return (char)(character == '_' ? '-' : character);
}

/* Returns true if the first `length` characters of `word` are the beginning of `name`. */
static bool begins(const char *name, const char *word, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!name[i] || plain(word[i]) != name[i]) return false;
    return true;
}

/* An option as it is in a word. */
struct found {
    int count;              /* number of the options that the word can mean; 1: it is found */
    enum run_option option; /* the last of them */
    const char *value;      /* after `=`, or after the letter; NULL: the word has none */
};

static bool is_option(const struct run *run, enum run_option option) {
    return !run->is_exec || run_rows[option].is_of_exec;
}

static struct found find_begun(const struct run *run, const char *word, size_t length, bool is_own) {
    struct found found = {0};
    for (enum run_option option = 0; option < OPTION_COUNT; option++) {
        const struct run_row *row = &run_rows[option];
        if (!is_option(run, option) || (row->origin == OWN) != is_own || !begins(row->name, word, length)) continue;
        found.option = option;
        found.count++;
    }
    return found;
}

static struct found find_long(const struct run *run, const char *word) {
    size_t length = strcspn(word, "=");
    struct found found = {0};
    for (enum run_option option = 0; option < OPTION_COUNT && !found.count; option++)
        if (is_option(run, option) && begins(run_rows[option].name, word, length) && !run_rows[option].name[length])
            found = (struct found){.count = 1, .option = option};
    if (!found.count) found = find_begun(run, word, length, false);
    if (!found.count) found = find_begun(run, word, length, true);
    if (word[length]) found.value = word + length + 1;
    return found;
}

static struct found find_letter(const struct run *run, const char *word) {
    for (enum run_option option = 0; option < OPTION_COUNT; option++)
        if (run_rows[option].letter && run_rows[option].letter == word[1] && is_option(run, option))
            return (struct found){.count = 1, .option = option, .value = word[2] ? word + 2 : NULL};
    return (struct found){0};
}

/* `word` begins with `-` and has another character. */
static struct found find(const struct run *run, const char *word) {
    return word[1] == '-' ? find_long(run, word) : find_letter(run, word);
}

/* ---- words ---- */

/* Returns true for -1, -1.5 and -.5. */
static bool is_negative_number(const char *word) {
    const char *end = word + 1 + strspn(word + 1, "0123456789");
    if (!*end) return end > word + 1;
    return *end == '.' && isdigit((unsigned char)end[1]) && !end[1 + strspn(end + 1, "0123456789")];
}

static bool looks_like_option(const char *word) {
    return word[0] == '-' && word[1] && !is_negative_number(word);
}

static bool can_be_value(const struct run *run, const char *word) {
    if (!word || !strcmp(word, "--")) return false;
    return !looks_like_option(word) || (!find(run, word).count && strchr(word, ' '));
}

static const char *command(const struct run *run) {
    return run->is_exec ? "exec" : "run";
}

static bool refuse_unknown(struct run *run, const char *word) {
    const char *name = run_print(run, "%.*s", (int)strcspn(word, "="), word), *like = run_most_like(name, run->is_exec);
    if (like)
        return run_fail(run, "there is no option %s; did you mean %s? See headrace %s --help", name, like,
                        command(run));
    return run_fail(run, "there is no option %s; options of %s go after it; see headrace %s --help", name,
                    run->is_exec ? "the command" : "the script", command(run));
}

static bool refuse_ambiguous(struct run *run, const char *word) {
    const char *names = "";
    size_t length = strcspn(word, "=");
    bool is_own = !find_begun(run, word, length, false).count;
    for (enum run_option option = 0; option < OPTION_COUNT; option++)
        if (is_option(run, option) && (run_rows[option].origin == OWN) == is_own &&
            begins(run_rows[option].name, word, length))
            names = run_print(run, "%s%s%s", names, *names ? ", " : "", run_rows[option].name);
    return run_fail(run, "%.*s can be one of %s; write more of the name", (int)length, word, names);
}

static void give(struct run *run, enum run_option option, const char *text) {
    run->given[option] = (struct run_given){.text = text};
    if (option == HELP) run->wants_help = true;
}

/* Reads flags and a last option that are written as one word: -mr3. */
static bool read_letters(struct run *run, const char *const **words, struct found found) {
    const char *word = **words;
    while (run_rows[found.option].is_flag && found.value) {
        give(run, found.option, "");
        struct found next = find_letter(run, found.value - 1);
        if (!next.count)
            return run_fail(run, "-%c in %s takes no value; write it as a word of its own",
                            run_rows[found.option].letter, word);
        found = next;
    }
    if (run_rows[found.option].is_flag) {
        give(run, found.option, "");
        return true;
    }
    if (found.value) {
        give(run, found.option, found.value + (*found.value == '='));
        return true;
    }
    if (!can_be_value(run, (*words)[1]))
        return run_fail(run, "-%c needs a value: -%c %s", run_rows[found.option].letter, run_rows[found.option].letter,
                        run_rows[found.option].value);
    give(run, found.option, *++*words);
    return true;
}

static bool read_long(struct run *run, const char *const **words, struct found found) {
    const struct run_row *row = &run_rows[found.option];
    if (row->is_flag && found.value) return run_fail(run, "%s takes no value, and has '%s'", row->name, found.value);
    if (!row->is_flag && !found.value) {
        if (!can_be_value(run, (*words)[1]))
            return run_fail(run, "%s needs a value: %s %s", row->name, row->name, row->value);
        found.value = *++*words;
    }
    give(run, found.option, row->is_flag ? "" : found.value);
    return true;
}

/* Reads the option at `*words`, and moves `*words` to its last word. */
static bool read_option(struct run *run, const char *const **words) {
    struct found found = find(run, **words);
    if (!found.count) return refuse_unknown(run, **words);
    if (found.count > 1) return refuse_ambiguous(run, **words);
    return (**words)[1] == '-' ? read_long(run, words, found) : read_letters(run, words, found);
}

/* ---- defaults ---- */

static bool read_variable(struct run *run, enum run_option option) {
    const struct run_row *row = &run_rows[option];
    const char *text = row->variable && !run->is_exec ? run_variable(run, row->variable) : NULL;
    if (!text) return true;
    int64_t number = 0;
    if (row->is_flag && !run_read_integer(text, &number))
        return run_fail(run, "%s is '%s'; set it to 1 for %s, or to 0", row->variable, text, row->name);
    if (!row->is_flag || number) run->given[option] = (struct run_given){row->is_flag ? "" : text, row->variable};
    return true;
}

/* Copies the script and its arguments, without a `--` after the script if argparse removes it. */
static void keep_script(struct run *run, const char *const *words, bool removes_dashes) {
    size_t count = 0, kept = 0;
    while (words[count]) count++;
    const char **script = run_keep(run, (count + 1) * sizeof *script);
    for (size_t i = 0; i < count; i++)
        if (i != 1 || !removes_dashes || strcmp(words[1], "--") != 0) script[kept++] = words[i];
    run->script = count ? script : NULL;
}

bool run_read(struct run *run, bool is_exec, const char *const *words, const char *const *environment) {
    *run = (struct run){.is_exec = is_exec, .environment = environment};
    for (enum run_option option = 0; option < OPTION_COUNT; option++)
        if (!read_variable(run, option)) return false;
    bool is_ended = false;
    for (; *words && !is_ended; words++) {
        is_ended = !strcmp(*words, "--");
        if (is_ended) continue;
        if (!looks_like_option(*words)) break;
        if (!read_option(run, &words)) return false;
        if (run->wants_help) return true;
    }
    keep_script(run, words, !is_ended && !is_exec);
    return true;
}
