/* Options and messages of all subcommands. cli_parse() reads the arguments of a subcommand; the other functions report
 * errors on stderr as text, or as JSON objects if the arguments contain --json. */
#include "base/parse.h"
#include "tools/common/cli.h"
#include "tools/common/json_output.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static bool errors_as_json;


/* Prints one line for each failure or note. With --json the line is a JSON object. */
static void print_message(const char *command, int status, const char *format, va_list args) {
    cli_progress_end();
    if (!errors_as_json) {
        fprintf(stderr, "farindex%s%s: ", command ? " " : "", command ? command : "");
        vfprintf(stderr, format, args);
        fputc('\n', stderr);
        return;
    }
    char words[1024];
    vsnprintf(words, sizeof(words), format, args);
    json_t *object = cli_json_object();
    cli_json_set_text(object, status ? "error" : "note", words);
    if (status)
        cli_json_set_count(object, "status", (uint64_t)status);
    cli_json_print(stderr, object);
}


#define PRINT_MESSAGE(command, status, format)                                                                         \
    do {                                                                                                               \
        va_list args;                                                                                                  \
        va_start(args, format);                                                                                        \
        print_message(command, status, format, args);                                                                  \
        va_end(args);                                                                                                  \
    } while (0)


int cli_wrong_usage(const char *command, const char *format, ...) {
    PRINT_MESSAGE(command, CLI_USAGE, format);
    return CLI_USAGE;
}


int cli_failed(const char *format, ...) {
    PRINT_MESSAGE(NULL, CLI_FAILED, format);
    return CLI_FAILED;
}


int cli_not_found(const char *format, ...) {
    PRINT_MESSAGE(NULL, CLI_NOT_FOUND, format);
    return CLI_NOT_FOUND;
}


int cli_exists(const char *format, ...) {
    PRINT_MESSAGE(NULL, CLI_EXISTS, format);
    return CLI_EXISTS;
}


int cli_conflict(const char *format, ...) {
    PRINT_MESSAGE(NULL, CLI_CONFLICT, format);
    return CLI_CONFLICT;
}


void cli_note(const char *format, ...) {
    PRINT_MESSAGE(NULL, CLI_DONE, format);
}


/* Parses a range "A..B" of sizes, or one size, which becomes a range with equal ends. */
static int parse_sizes(const char *text, uint64_t range[2], char *error, size_t error_size) {
    char first[64];
    const char *dots = strstr(text, "..");
    if (!dots) {
        int err = far_parse_size(text, &range[0], error, error_size);
        if (!err)
            range[1] = range[0];
        return err;
    }
    if (dots - text >= (ptrdiff_t)sizeof(first))
        return far_refuse(error, error_size, "'%s' is not a range of sizes", text);
    memcpy(first, text, (size_t)(dots - text));
    first[dots - text] = 0;
    int err = far_parse_size(first, &range[0], error, error_size);
    if (!err)
        err = far_parse_size(dots + 2, &range[1], error, error_size);
    if (!err && range[0] > range[1])
        err = far_refuse(error, error_size, "'%s' ends before it begins", text);
    return err;
}


static int add_text(cli_texts *texts, const char *text, char *error, size_t error_size) {
    if (texts->count == CLI_TEXTS_MAX)
        return far_refuse(error, error_size, "given more than %d times", CLI_TEXTS_MAX);
    texts->text[texts->count++] = text;
    return 0;
}


static int set_value(const cli_option *option, const char *text, char *error, size_t error_size) {
    uint64_t *numbers = option->value;
    switch (option->type) {
    case CLI_FLAG:
        *(bool *)option->value = true;
        return 0;
    case CLI_TEXT:
        *(const char **)option->value = text;
        return 0;
    case CLI_NUMBER:
        return far_parse_number(text, numbers, error, error_size);
    case CLI_BYTES:
        return far_parse_size(text, numbers, error, error_size);
    case CLI_SWITCH:
        return far_parse_switch(text, option->value, error, error_size);
    case CLI_RANGE:
        return far_parse_range(text, &numbers[0], &numbers[1], error, error_size);
    case CLI_RANGE_BYTES:
        return parse_sizes(text, numbers, error, error_size);
    case CLI_COUNT:
        return far_parse_count(text, numbers, error, error_size);
    case CLI_DURATION:
        return far_parse_duration(text, numbers, error, error_size);
    case CLI_TEXTS:
        return add_text(option->value, text, error, error_size);
    case CLI_DECIMAL:
        return far_parse_decimal(text, option->value, error, error_size);
    }
    return FAR_ERR_INVALID;
}


static void print_help(const char *usage, const cli_option *options, const char *notes) {
    printf("usage: farindex %s\n\n", usage);
    for (const cli_option *option = options; option->name; option++) {
        char left[64];
        snprintf(left, sizeof(left), "--%s%s%s", option->name, option->argument ? " " : "",
                 option->argument ? option->argument : "");
        printf("  %-28s %s\n", left, option->help);
    }
    printf("  %-28s %s\n", "--help", "prints this text");
    if (notes)
        printf("\n%s", notes);
}


static const cli_option *find_option(const cli_option *options, const char *name, size_t length) {
    for (const cli_option *option = options; option->name; option++)
        if (strlen(option->name) == length && memcmp(option->name, name, length) == 0)
            return option;
    return NULL;
}


static const char *option_name_at(const void *ctx, size_t i) {
    return ((const cli_option *)ctx)[i].name;
}


bool cli_has_option(const cli_option *options, const char *name) {
    return find_option(options, name, strlen(name)) != NULL;
}


/* Reports an option that does not exist, with a similar name, or with the way to give an operand that begins with '-'.
 */
static int refuse_unknown_option(const char *command, const char *word, const cli_option *options, bool has_operands) {
    char name[64];
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(word, "="), word);
    const char *similar = strncmp(name, "--", 2) == 0 ? cli_closest(name + 2, option_name_at, options) : NULL;
    if (similar)
        return cli_wrong_usage(command, "unknown option '%s'; did you mean '--%s'?", word, similar);
    return cli_wrong_usage(command, "unknown option '%s'; see --help%s", word,
                           has_operands ? ", or write '--' before arguments that begin with '-'" : "");
}


int cli_set_option(const char *command, const char *from, const cli_option *options, const char *name,
                   const char *value) {
    char error[256];
    const cli_option *option = find_option(options, name, strlen(name));
    if (!option)
        return cli_wrong_usage(command, "%s: there is no option --%s", from, name);
    if (set_value(option, value, error, sizeof(error)) < 0)
        return cli_wrong_usage(command, "%s: %s: %s", from, name, error);
    return 0;
}


/* True if the arguments contain the flag --json. This is decided before the arguments are parsed, so that an error in
 * an argument before --json is reported as a JSON object too. */
static bool wants_json(int argc, char **argv, const cli_option *options) {
    const cli_option *json = find_option(options, "json", strlen("json"));
    if (!json || json->type != CLI_FLAG)
        return false;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0)
            return true;
    return false;
}


int cli_parse(int argc, char **argv, const char *usage, const cli_option *options, const char *notes, int *operands,
              bool *help) {
    const char *command = argv[0];
    int operand_count = 0;
    bool only_operands = false;
    *help = false;
    errors_as_json = wants_json(argc, argv, options);
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (!only_operands && strcmp(word, "-h") == 0)
            word = "--help";
        if (only_operands || strncmp(word, "--", 2) != 0) {
            if (!only_operands && word[0] == '-' && word[1] != 0)
                return refuse_unknown_option(command, word, options, operands != NULL);
            if (!operands)
                return cli_wrong_usage(command, "unexpected '%s'; see --help", word);
            argv[operand_count++] = argv[i];
            continue;
        }
        if (word[2] == 0) {
            only_operands = true;
            continue;
        }
        if (strcmp(word, "--help") == 0) {
            print_help(usage, options, notes);
            *help = true;
            return 0;
        }
        const char *equals = strchr(word, '=');
        const cli_option *option =
            find_option(options, word + 2, equals ? (size_t)(equals - word - 2) : strlen(word + 2));
        if (!option)
            return refuse_unknown_option(command, word, options, operands != NULL);
        const char *text = equals ? equals + 1 : NULL;
        if (option->type == CLI_FLAG && text)
            return cli_wrong_usage(command, "--%s takes no value", option->name);
        if (option->type != CLI_FLAG && !text) {
            if (i + 1 == argc)
                return cli_wrong_usage(command, "--%s needs a value (%s)", option->name, option->argument);
            text = argv[++i];
        }
        char error[256];
        if (set_value(option, text, error, sizeof(error)) < 0)
            return cli_wrong_usage(command, "--%s: %s", option->name, error);
    }
    if (operands)
        *operands = operand_count;
    return 0;
}
