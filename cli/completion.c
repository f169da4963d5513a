/* SPDX-License-Identifier: Apache-2.0 */
/* headrace completion SHELL: prints what makes a shell complete commands and options. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

/* The scripts know no command and no option. They ask the help of the command that is on the line, so that they fit any
 * version of the program. A command is a word of a line that begins with two spaces. */

#define LIST_COMMANDS "sed -n 's/^  \\([a-z][a-z]*\\)  .*/\\1/p'"
#define LIST_OPTIONS "grep -oE -- '(^|[[:space:],[])--?[A-Za-z][A-Za-z-]*' | tr -d '[], \\t' | sort -u"

/* zsh runs it, too, by its bashcompinit, which has no mapfile. */
static const char function_text[] = "_headrace() {\n"
                                    "    local word=${COMP_WORDS[COMP_CWORD]} words='' i=1 most=1 found\n"
                                    "    while ((i < COMP_CWORD && i <= most)); do\n"
                                    "        case ${COMP_WORDS[i]} in -*) break ;; cache) most=2 ;; esac\n"
                                    "        words=\"$words ${COMP_WORDS[i]}\"\n"
                                    "        i=$((i + 1))\n"
                                    "    done\n"
                                    "    case $word in\n"
                                    "    -*) found=$(headrace $words --help 2>/dev/null | " LIST_OPTIONS ") ;;\n"
                                    "    *) found=$([ $i -eq \"$COMP_CWORD\" ] && [ $i -le $most ] &&\n"
                                    "        headrace $words --help 2>/dev/null | " LIST_COMMANDS ") ;;\n"
                                    "    esac\n"
                                    "    COMPREPLY=($(compgen -W \"$found\" -- \"$word\"))\n"
                                    "}\n";

static const char fish_text[] =
    "function __headrace_words\n"
    "    set -l words (commandline -opc)\n"
    "    set -l path\n"
    "    set -l most 1\n"
    "    for word in $words[2..]\n"
    "        string match -q -- '-*' $word; and break\n"
    "        test (count $path) -lt $most; or break\n"
    "        test $word = cache; and set most 2\n"
    "        set -a path $word\n"
    "    end\n"
    "    if string match -q -- '-*' (commandline -ct)\n"
    "        headrace $path --help 2>/dev/null | " LIST_OPTIONS "\n"
    "    else if test (count $words) -eq (math (count $path) + 1) -a (count $path) -lt $most\n"
    "        headrace $path --help 2>/dev/null | " LIST_COMMANDS "\n"
    "    end\n"
    "end\n"
    "complete -c headrace -a '(__headrace_words)'\n";

static const char help_text[] = "Usage: headrace completion bash|zsh|fish\n"
                                "\n"
                                "Prints what makes a shell complete the commands and options of headrace:\n"
                                "\n"
                                "  eval \"$(headrace completion bash)\"    in ~/.bashrc\n"
                                "  eval \"$(headrace completion zsh)\"     in ~/.zshrc, after compinit\n"
                                "  headrace completion fish | source     in ~/.config/fish/config.fish\n";

int completion_command(int argc, char **argv) {
    const char *shell = argc > 2 ? argv[2] : "";
    if (argc == 3 && (!strcmp(shell, "--help") || !strcmp(shell, "-h"))) {
        fputs(help_text, stdout);
    } else if (argc == 3 && !strcmp(shell, "bash")) {
        printf("%scomplete -o default -F _headrace headrace\n", function_text);
    } else if (argc == 3 && !strcmp(shell, "zsh")) {
        printf("autoload -U +X bashcompinit && bashcompinit\n%scomplete -o default -F _headrace headrace\n",
               function_text);
    } else if (argc == 3 && !strcmp(shell, "fish")) {
        fputs(fish_text, stdout);
    } else {
        fputs("headrace completion: name a shell: bash, zsh or fish\n", stderr);
        return EXIT_USAGE;
    }
    return 0;
}
