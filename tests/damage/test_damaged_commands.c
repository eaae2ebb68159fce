/* The commands on damaged pools: each ends within bounded work, with a status and, where it fails, with words; and what
 * check calls sound, or has repaired, none of them stumbles over.
 *
 * test_damaged_commands [--kind KIND] [--seeds FIRST..LAST] [--verbose]      `make fuzz` runs more of them
 *
 * They run in this process, one after the other, each opening the pool anew: they are told of a shm pool, and get the
 * rig's memory (linked with --wrap=far_shm_open_existing and --wrap=far_pool_open). */
#include "cli/cli.h"
#include "damage_seeds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEED_FIRST 1
#define SEED_LAST  16 /* of each kind */
#define VERBS_MAX  200000
#define WORDS_MAX  12
#define LINE_BYTES 160

static const char *const layouts[2] = {"", "checksum=on"};
static damage_seeds seeds = {SEED_FIRST, SEED_LAST, NULL};
static bool verbose;

/* One damaged pool. */
typedef struct trial {
    const scene *scene;
    uint64_t seed;
    damage damage;
    char key[SCENE_KEY_BYTES];
    bool sound; /* the last check ended with 0 */
    unsigned failures;
} trial;


/* ---- Between the commands and the rig ---- */

int __wrap_far_local_open(const char *rest, far_fabric **fabric);
int __wrap_far_shm_open_existing(const char *rest, far_fabric **fabric);
int __real_far_pool_open(const char *uri, const far_pool_options *options, far_pool **pool);
int __wrap_far_pool_open(const char *uri, const far_pool_options *options, far_pool **pool);


int __wrap_far_shm_open_existing(const char *rest, far_fabric **fabric) {
    (void)rest;
    return __wrap_far_local_open(strchr(RIG_URI, ':') + 1, fabric);
}


/* Without a thread: in virtual time there is only this one. */
int __wrap_far_pool_open(const char *uri, const far_pool_options *options, far_pool **pool) {
    far_pool_options alone = options ? *options : (far_pool_options){0};
    alone.no_thread = 1;
    return __real_far_pool_open(uri, &alone, pool);
}


/* ---- Running one ---- */

static void complain(trial *t, const char *line, const char *what, const char *words) {
    printf("%s%s seed %llu: %s: %s: %s [%s]\n", t->scene->kind, t->scene->crashed ? " crashed" : "",
           (unsigned long long)t->seed, line, what, words, t->damage.words);
    t->failures++;
}


/* The words of a line, with KEY for the key. */
static int split(trial *t, char *line, char **argv) {
    int argc = 0;
    for (char *word = strtok(line, " "); word && argc < WORDS_MAX; word = strtok(NULL, " "))
        argv[argc++] = strcmp(word, "KEY") == 0 ? t->key : word;
    return argc;
}


/* What it prints goes to `said`. */
static int run_quietly(int argc, char **argv, FILE *said) {
    FILE *out = stdout, *err = stderr;
    stdout = stderr = said;
    int status = cli_run(argc, argv);
    fflush(said);
    stdout = out;
    stderr = err;
    return status;
}


static int run(trial *t, const char *command) {
    char line[LINE_BYTES], *argv[WORDS_MAX + 1] = {NULL};
    char *text = NULL;
    size_t size = 0;
    FILE *said = open_memstream(&text, &size);
    assert_non_null(said);
    snprintf(line, sizeof(line), "%s --pool shm:/damaged", command);
    int argc = split(t, line, argv);
    rig_allow(VERBS_MAX);
    int status = run_quietly(argc, argv, said);
    fclose(said);
    if (verbose)
        printf("  %s: %d (%llu verbs) %s\n", command, status, (unsigned long long)rig_posted(), text);
    if (rig_is_cut())
        complain(t, command, "hangs", text);
    else if (status != CLI_DONE && status != CLI_NOT_FOUND && status != CLI_FAILED)
        complain(t, command, "a status that is none", text);
    else if (status != CLI_DONE && text[0] == 0)
        complain(t, command, "failed without a word", "");
    else if (status == CLI_FAILED && t->sound && !strstr(text, "has no order to scan in"))
        complain(t, command, "check is content, but", text);
    free(text);
    return status;
}


static void run_each(trial *t, const char *const *commands) {
    for (; *commands; commands++)
        run(t, *commands);
}


/* ---- All of them ---- */

static unsigned try_seed(const scene *s, uint64_t seed) {
    static const char *const readers[] = {
        "list",       "list --json",  "get index KEY", "scan index --limit 20", "dump index",  "stat",
        "stat index", "stat --exact", "evict --list",  "top --prometheus",      "check index", NULL};
    static const char *const writers[] = {"put index KEY value",
                                          "get index KEY",
                                          "copy index copied",
                                          "dump copied",
                                          "del index KEY",
                                          "create more toy",
                                          NULL};
    static const char *const last[] = {"drop copied", "drop more", "drop index", "stat", "list", NULL};
    trial t = {.scene = s, .seed = seed};
    far_random random;
    far_random_seed(&random, seed);
    rig_seed(seed);
    rig_restore(s->image);
    t.key[scene_key(s, 4 * (unsigned)far_random_below(&random, 30), t.key)] = 0;
    scene_damage(s, &random, &t.damage);
    if (verbose)
        printf("%s seed %llu: %s\n", s->kind, (unsigned long long)seed, t.damage.words);
    t.sound = run(&t, "check") == CLI_DONE;
    run_each(&t, readers);
    run_each(&t, writers);
    t.sound = false;
    t.sound = run(&t, "check --repair") == CLI_DONE;
    run_each(&t, readers);
    run_each(&t, last);
    t.sound = false;
    t.sound = run(&t, "check --repair") == CLI_DONE;
    run_each(&t, (const char *const[]){"create again dart", "put again KEY value", "drop again", NULL});
    return t.failures;
}


static void commands_end_and_say_what_is_wrong(void **state) {
    (void)state;
    assert_int_equal(damage_seeds_run(&seeds, layouts, try_seed), 0);
}


int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(commands_end_and_say_what_is_wrong)};
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        int taken = damage_seeds_argument(&seeds, argc - i, argv + i);
        i += taken > 0 ? taken - 1 : 0;
        verbose |= taken == 0 && strcmp(argv[i], "--verbose") == 0;
    }
    rig_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rig_end();
    return failed;
}
