/* `farindex shell` runs many commands on one pool, which stays open between them. With libedit the user can edit,
 * recall and complete lines. Without libedit, or if the input is no terminal, lines are read unchanged. */
#include "tools/farindex/data.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef FARINDEX_EDIT
#include <editline/readline.h>
#endif

#define WORDS_MAX 1024

typedef struct words {
    char *list[WORDS_MAX];
    int count;
} words;


/* ---- Words of a line ---- */

/* Handles a backslash: writes the character that it protects to *to and returns the position of that character. Inside
 * single quotes, or at the end of the line, a backslash is an ordinary character. */
static char *take_escaped(char *at, char quote, char *to) {
    if (quote == '\'' || at[1] == 0) {
        *to = *at;
        return at;
    }
    *to = at[1];
    return at + 1;
}


/* Reads one word and removes its quotes and backslashes in place. *next is set to the position after the word. Returns
 * NULL, or a description of the error. */
static const char *take_word(char *at, char **next) {
    char quote = 0, *to = at;
    for (; *at && (quote || !strchr(" \t\n", *at)); at++) {
        if (*at == '\\' && quote != '\'')
            at = take_escaped(at, quote, to++);
        else if (quote ? *at == quote : *at == '"' || *at == '\'')
            quote = quote ? 0 : *at;
        else
            *to++ = *at;
    }
    *next = *at ? at + 1 : at;
    *to = 0;
    return quote ? "a quote is not closed" : NULL;
}


/* Splits a line into words as the system's shell does: blanks separate words unless quotes or backslashes protect them.
 * Returns NULL, or a description of the error. */
static const char *split_words(char *line, words *w) {
    w->count = 0;
    for (char *at = line + strspn(line, " \t\n"); *at && *at != '#'; at += strspn(at, " \t\n")) {
        if (w->count == WORDS_MAX - 1)
            return "there are too many words";
        w->list[w->count++] = at;
        const char *wrong = take_word(at, &at);
        if (wrong)
            return wrong;
    }
    w->list[w->count] = NULL;
    return NULL;
}


/* ---- Lines ---- */

#ifdef FARINDEX_EDIT

static cli_names candidates; /* candidates for the word that is being completed */


/* Adds candidates from the output of a command: `pick` returns the candidate of a line, or NULL. The command runs in a
 * child process, because commands print to stdout. */
static void add_candidates(char **argv, int argc, const char *(*pick)(char *line)) {
    int ends[2];
    if (pipe(ends) < 0)
        return;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        cli_run(argc, argv);
        fflush(stdout);
        _exit(0);
    }
    close(ends[1]);
    FILE *file = fdopen(ends[0], "r");
    char line[512];
    while (file && fgets(line, sizeof(line), file)) {
        const char *word = pick(line);
        void *more = word ? realloc(candidates.names, (candidates.count + 1) * sizeof(*candidates.names)) : NULL;
        if (more) {
            candidates.names = more;
            snprintf(candidates.names[candidates.count++], sizeof(*candidates.names), "%s", word);
        }
    }
    if (file)
        fclose(file);
    if (child > 0)
        waitpid(child, NULL, 0);
}


static const char *pick_option(char *line) {
    if (strncmp(line, "  --", 4) != 0)
        return NULL;
    line[2 + strcspn(line + 2, " \n")] = 0;
    return line + 2;
}


static const char *pick_kind(char *line) {
    size_t length = strcspn(line, ":= ");
    bool begins = line[length] == ':';
    line[length] = 0;
    return begins ? line : NULL;
}


static char *next_command(const char *text, int again) {
    static size_t at;
    at = again ? at : 0;
    for (const char *name; (name = cli_command_name(at));) {
        at++;
        if (strncmp(name, text, strlen(text)) == 0)
            return strdup(name);
    }
    return NULL;
}


static char *next_candidate(const char *text, int again) {
    static size_t at;
    for (at = again ? at : 0; at < candidates.count;) {
        const char *name = candidates.names[at++];
        if (strncmp(name, text, strlen(text)) == 0)
            return strdup(name);
    }
    return NULL;
}


/* Finds the candidates for a word from the words before it. After 'create NAME' and after --kind they are kinds, after
 * '-' options of the command, and otherwise the names of indexes. */
static void find_candidates(const char *text, words *before) {
    cli_pool p = *cli_shell_pool();
    const char *last = before->list[before->count - 1];
    if (*text == '-')
        add_candidates((char *[]){before->list[0], "--help", NULL}, 2, pick_option);
    else if (strcmp(last, "--kind") == 0 || (strcmp(before->list[0], "create") == 0 && before->count == 2))
        add_candidates((char *[]){"kinds", NULL}, 1, pick_kind);
    else
        cli_list_names(&p, &candidates);
}


static char **complete_word(const char *text, int start, int end) {
    words before = {.count = 0};
    (void)end;
    rl_attempted_completion_over = 1;
    char *line = strndup(rl_line_buffer, (size_t)start);
    const char *wrong = line ? split_words(line, &before) : "no memory";
    bool first = before.count == 0 || strcmp(before.list[0], "help") == 0;
    free(candidates.names);
    candidates = (cli_names){0};
    if (!wrong && !first)
        find_candidates(text, &before);
    free(line);
    return wrong ? NULL : rl_completion_matches(text, first ? next_command : next_candidate);
}


static const char *history_file(char *path, size_t size) {
    const char *given = getenv("FARINDEX_HISTORY"), *home = getenv("HOME");
    if (given || !home)
        return given;
    snprintf(path, size, "%s/.farindex_history", home);
    return path;
}


static void begin_lines(void) {
    char path[4096];
    rl_readline_name = "farindex";
    rl_attempted_completion_function = complete_word;
    using_history();
    const char *file = history_file(path, sizeof(path));
    if (file)
        read_history(file);
}


static void end_lines(void) {
    char path[4096];
    const char *file = history_file(path, sizeof(path));
    if (file && isatty(STDIN_FILENO))
        write_history(file);
    free(candidates.names);
}


/* Reads a line with libedit. An interrupt discards the line that the user is typing. */
static char *edit_line(void) {
    errno = 0;
    char *line = readline("farindex> ");
    if (!line && errno == EINTR && !cli_interrupted()) {
        putchar('\n');
        return strdup("");
    }
    if (line && *line)
        add_history(line);
    return line;
}

#else

static void begin_lines(void) {}


static void end_lines(void) {}


static char *read_plain_line(void);

static char *edit_line(void) {
    fputs("farindex> ", stdout);
    fflush(stdout);
    return read_plain_line();
}

#endif


static char *read_plain_line(void) {
    char *line = NULL;
    size_t room = 0;
    if (getline(&line, &room, stdin) >= 0)
        return line;
    free(line);
    return NULL;
}


/* Returns the next line, or NULL at the end of the input. Interrupts are ignored at the prompt, because they are meant
 * for a running command. */
static char *read_line(bool interactive) {
    cli_catch_briefly();
    if (!interactive)
        return read_plain_line();
    signal(SIGINT, SIG_IGN);
    char *line = edit_line();
    signal(SIGINT, SIG_DFL);
    return line;
}


/* ---- Commands ---- */

static int run_words(words *w) {
    if (strcmp(w->list[0], "shell") == 0)
        return cli_wrong_usage("shell", "a shell cannot start another shell");
    return cli_run(w->count, w->list);
}


/* Returns whether the shell continues after a command. An interrupt (SIGINT) ends only the command; a hangup or a
 * termination ends the shell too. */
static bool shell_continues(void) {
    int signal_number = cli_interrupted();
    if (signal_number != 0 && signal_number != SIGINT)
        return false;
    cli_forget_interrupt();
    return true;
}


/* Runs the lines of the input. On a terminal a failed command only prints its message. A script ends with the first
 * failed command and with its status. */
static int run_lines(bool interactive) {
    words w;
    int status = 0;
    char *line;
    while ((interactive || !status) && shell_continues() && (line = read_line(interactive))) {
        const char *wrong = split_words(line, &w);
        bool leaves = w.count == 1 && (strcmp(w.list[0], "exit") == 0 || strcmp(w.list[0], "quit") == 0);
        if (wrong)
            status = cli_wrong_usage("shell", "%s", wrong);
        else if (w.count && !leaves)
            status = run_words(&w);
        free(line);
        if (leaves)
            break;
        cli_shell_pool();
    }
    return interactive ? 0 : status;
}


int cli_shell(int argc, char **argv) {
    cli_pool p = {0};
    const cli_option options[] = {CLI_POOL_OPTIONS(&p), CLI_OPTIONS_END};
    int count, status;
    if (cli_operands(argc, argv, "shell", options,
                     "Reads commands from the input, one on each line, as they would follow 'farindex': 'get fruit "
                     "apple'. Blanks separate "
                     "words unless\nquotes or backslashes protect them; '#' begins a comment; 'help' lists the "
                     "commands, 'exit' ends "
                     "the shell. On a terminal\nlines can be edited, recalled (~/.farindex_history) and completed. A "
                     "script ends "
                     "with the first command that fails.\n",
                     0, 0, &count, &status))
        return status;
    if ((status = cli_shell_pool_open(&p)) != 0)
        return status;
    bool interactive = isatty(STDIN_FILENO);
    if (interactive)
        begin_lines();
    status = run_lines(interactive);
    if (interactive)
        end_lines();
    cli_shell_pool_close();
    return status;
}
