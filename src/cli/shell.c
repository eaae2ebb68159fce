/* farindex shell: many commands on one pool, which stays open between them. With libedit lines can be edited, recalled
 * and completed; without it, or where the input is no terminal, lines are read as they are. */
#include "cli/data.h"

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

/* The character that a backslash makes of the next one, inside quotes or not. */
static char *unescape(char *at, char quote, char *to) {
    if (quote == '\'' || at[1] == 0) {
        *to = *at;
        return at;
    }
    *to = at[1];
    return at + 1;
}


/* One word, in place; *next: behind it. NULL, or what is wrong. */
static const char *take_word(char *at, char **next) {
    char quote = 0, *to = at;
    for (; *at && (quote || !strchr(" \t\n", *at)); at++) {
        if (*at == '\\' && quote != '\'')
            at = unescape(at, quote, to++);
        else if (quote ? *at == quote : *at == '"' || *at == '\'')
            quote = quote ? 0 : *at;
        else
            *to++ = *at;
    }
    *next = *at ? at + 1 : at;
    *to = 0;
    return quote ? "a quote is not closed" : NULL;
}


/* As the system's shell would split it: blanks part words, quotes and backslashes keep them together. */
static const char *split(char *line, words *w) {
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

static cli_names known; /* what a word can become, while a line is completed */


/* Adds what the lines of a command's output begin with. It runs in a child: commands print to stdout. */
static void learn(char **argv, int argc, const char *(*pick)(char *line)) {
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
        void *more = word ? realloc(known.names, (known.count + 1) * sizeof(*known.names)) : NULL;
        if (more) {
            known.names = more;
            snprintf(known.names[known.count++], sizeof(*known.names), "%s", word);
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


static char *next_match(const char *text, int again) {
    static size_t at;
    at = again ? at : 0;
    for (const char *name; (name = cli_command_name(at));) {
        at++;
        if (strncmp(name, text, strlen(text)) == 0)
            return strdup(name);
    }
    return NULL;
}


static char *next_known(const char *text, int again) {
    static size_t at;
    for (at = again ? at : 0; at < known.count;) {
        const char *name = known.names[at++];
        if (strncmp(name, text, strlen(text)) == 0)
            return strdup(name);
    }
    return NULL;
}


/* The words before the one that is completed: after 'create NAME' and --kind comes a kind, '-' begins an option, all
 * others are indexes. */
static void find_known(const char *text, words *before) {
    cli_pool p = *cli_pool_kept();
    const char *last = before->list[before->count - 1];
    if (*text == '-')
        learn((char *[]){before->list[0], "--help", NULL}, 2, pick_option);
    else if (strcmp(last, "--kind") == 0 || (strcmp(before->list[0], "create") == 0 && before->count == 2))
        learn((char *[]){"kinds", NULL}, 1, pick_kind);
    else
        cli_list_names(&p, &known);
}


static char **complete(const char *text, int start, int end) {
    words before = {.count = 0};
    (void)end;
    rl_attempted_completion_over = 1;
    char *line = strndup(rl_line_buffer, (size_t)start);
    const char *wrong = line ? split(line, &before) : "no memory";
    bool first = before.count == 0 || strcmp(before.list[0], "help") == 0;
    free(known.names);
    known = (cli_names){0};
    if (!wrong && !first)
        find_known(text, &before);
    free(line);
    return wrong ? NULL : rl_completion_matches(text, first ? next_match : next_known);
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
    rl_attempted_completion_function = complete;
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
    free(known.names);
}


/* An interrupt takes away what was typed so far. */
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


static char *read_plain(void);

static char *edit_line(void) {
    fputs("farindex> ", stdout);
    fflush(stdout);
    return read_plain();
}

#endif


static char *read_plain(void) {
    char *line = NULL;
    size_t room = 0;
    if (getline(&line, &room, stdin) >= 0)
        return line;
    free(line);
    return NULL;
}


/* NULL: the end. An interrupt is for commands: at the prompt there is none. */
static char *read_line(bool by_hand) {
    cli_catch_briefly();
    if (!by_hand)
        return read_plain();
    signal(SIGINT, SIG_IGN);
    char *line = edit_line();
    signal(SIGINT, SIG_DFL);
    return line;
}


/* ---- Commands ---- */

static int run_words(words *w) {
    if (strcmp(w->list[0], "shell") == 0)
        return cli_wrong_usage("shell", "this is one already");
    return cli_run(w->count, w->list);
}


/* An interrupt ends the command that it meets; a hangup or a termination ends the shell too. */
static bool goes_on(void) {
    int signal_number = cli_interrupted();
    if (signal_number != 0 && signal_number != SIGINT)
        return false;
    cli_forget_interrupt();
    return true;
}


/* By hand a failure is told and that is that; a script ends with the first, and with its status. */
static int run_lines(bool by_hand) {
    words w;
    int status = 0;
    char *line;
    while ((by_hand || !status) && goes_on() && (line = read_line(by_hand))) {
        const char *wrong = split(line, &w);
        bool leaves = w.count == 1 && (strcmp(w.list[0], "exit") == 0 || strcmp(w.list[0], "quit") == 0);
        if (wrong)
            status = cli_wrong_usage("shell", "%s", wrong);
        else if (w.count && !leaves)
            status = run_words(&w);
        free(line);
        if (leaves)
            break;
        cli_pool_kept();
    }
    return by_hand ? 0 : status;
}


int cli_shell(int argc, char **argv) {
    cli_pool p = {0};
    const cli_option options[] = {CLI_POOL_OPTIONS(&p), CLI_OPTIONS_END};
    int count, status;
    if (cli_operands(
            argc, argv, "shell", options,
            "Reads commands from the input, a line for each, as after 'farindex': 'get fruit apple'. Words are "
            "parted by blanks;\nquotes and backslashes keep them together; '#' begins a comment; 'help' lists "
            "commands, 'exit' ends. "
            "On a terminal lines can be edited,\nrecalled (~/.farindex_history) and completed. A script ends "
            "with the first command that fails.\n",
            0, 0, &count, &status))
        return status;
    if ((status = cli_pool_keep(&p)) != 0)
        return status;
    bool by_hand = isatty(STDIN_FILENO);
    if (by_hand)
        begin_lines();
    status = run_lines(by_hand);
    if (by_hand)
        end_lines();
    cli_pool_let_go();
    return status;
}
