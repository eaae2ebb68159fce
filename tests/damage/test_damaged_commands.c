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
    char said[1024]; /* by the last command, how it began */
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
    snprintf(t->said, sizeof(t->said), "%s", text);
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


/* ---- The superblock of a closed pool ---- */

enum { TO_ZERO, TO_ONES, FLIP_A_BIT, HOWS };


/* What never changes: refused by all, restored by check --repair. What changes: each command ends, and where check is content
 * the pool works. */
static unsigned damage_superblock(const scene *s, far_addr addr, unsigned how, bool constant) {
    trial t = {.scene = s, .seed = addr};
    uint64_t word;
    rig_seed(addr);
    rig_restore(s->image);
    t.key[scene_key(s, 0, t.key)] = 0;
    memcpy(&word, rig_memory(far_addr_node(addr)) + far_addr_offset(addr), 8);
    uint64_t others[HOWS] = {0, UINT64_MAX, word ^ 1ull << (17 + addr) % 64};
    if (others[how] == word)
        return 0;
    damage_word(&t.damage, addr, others[how]);
    int before = run(&t, "check"), repair = run(&t, "check --repair");
    if (constant && before != CLI_FAILED)
        complain(&t, "check", "does not name it", "");
    if (constant && (repair != CLI_DONE || !strstr(t.said, ": restored")))
        complain(&t, "check --repair", "does not restore it, or does not say so", t.said);
    t.sound = repair == CLI_DONE;
    run_each(&t, (const char *const[]){"check", "list", "get index KEY", "put index KEY value", NULL});
    return t.failures;
}


/* Two words: nobody can tell what they were, and check --repair says so. */
static unsigned damage_two_words(const scene *s) {
    trial t = {.scene = s};
    uint64_t zeroes[2] = {0};
    rig_restore(s->image);
    memcpy(rig_memory(0) + FAR_SUPER_POOL_ID, zeroes, sizeof(zeroes));
    if (run(&t, "check --repair") != CLI_FAILED || !strstr(t.said, "cannot be restored"))
        complain(&t, "check --repair", "does not say that it cannot", "");
    return t.failures;
}


static void a_damaged_superblock_is_restored_or_named(void **state) {
    static scene s;
    unsigned failures = 0;
    (void)state;
    scene_make(&s, "dart", "", false, 1);
    for (unsigned how = 0; how < HOWS; how++) {
        for (far_addr addr = 0; addr <= FAR_SUPER_CHECK; addr += 8)
            failures += damage_superblock(&s, addr, how, true);
        for (far_addr addr = FAR_SUPER_EPOCH; addr <= FAR_SUPER_REFUTED; addr += 8)
            failures += damage_superblock(&s, addr, how, false);
        for (unsigned n = 0; n < RIG_NODES; n++)
            failures += damage_superblock(&s, FAR_SUPER_NODE_TABLE + 8 * n, how, true);
        for (unsigned i = 0; i < 3; i++)
            failures += damage_superblock(&s, far_addr_make(1, 8 * i), how, true);
    }
    failures += damage_two_words(&s);
    scene_free(&s);
    assert_int_equal(failures, 0);
}


/* ---- What a repair says ---- */

typedef struct repair { /* what is to be said after one word was damaged */
    far_addr addr;
    uint64_t word;
    int status;
    const char *found, *repaired, *left; /* by a check, a repair, and a repair in JSON */
} repair;


static void says(trial *t, const char *command, int status, const char *words) {
    assert_int_equal(run(t, command), status);
    if (!strstr(t->said, words))
        fail_msg("%s: no '%s' in '%s'", command, words, t->said);
    assert_null(strstr(t->said, "index: index")); /* its name, twice */
}


static void repair_says(const scene *s, const repair *r) {
    for (unsigned json = 0; json < 2; json++) {
        trial t = {.scene = s};
        rig_restore(s->image);
        damage_word(&t.damage, r->addr, r->word);
        says(&t, "check", CLI_NOT_FOUND, r->found);
        if (json)
            says(&t, "check --repair --json", r->status, r->left);
        else
            says(&t, "check --repair", r->status, r->repaired);
        says(&t, "check", r->status, r->status == CLI_DONE ? "check: 0 problems, 0 leaked bytes\n" : r->found);
    }
}


static const place *place_named(const scene *s, const char *name) {
    for (size_t i = 0; i < s->place_count; i++)
        if (strcmp(s->places[i].name, name) == 0)
            return &s->places[i];
    fail_msg("there is no place '%s'", name);
    return NULL;
}


/* Of free objects, in one of the first blocks: without their bits nobody has them. */
static far_addr some_free_bits(const scene *s) {
    const place *bitmaps = place_named(s, "bitmaps");
    rig_restore(s->image);
    for (size_t i = 0; i < bitmaps->count; i++)
        for (far_addr at = bitmaps->objects[i].addr; at < bitmaps->objects[i].addr + 32768; at += 8) {
            uint64_t word;
            memcpy(&word, rig_memory(far_addr_node(at)) + far_addr_offset(at), 8);
            if (word)
                return at;
        }
    fail_msg("nothing is free");
    return 0;
}


static void all_is_given_back(const scene *s, const repair *r) {
    unsigned long long leaked = 0, repaired = 0;
    trial t = {.scene = s};
    rig_restore(s->image);
    damage_word(&t.damage, r->addr, r->word);
    run(&t, "check --repair");
    assert_int_equal(sscanf(t.said, "check: 0 problems, %llu leaked bytes, %llu repaired\n", &leaked, &repaired), 2);
    assert_true(leaked > 0);
    assert_int_equal(repaired, leaked);
}


/* What can be repaired, what cannot, and memory that nobody has, which is no problem of the structure. */
static void a_repair_says_whether_all_is_well(void **state) {
    static scene s;
    (void)state;
    scene_make(&s, "dart", "", false, 1);
    const repair number = {FAR_SUPER_NEXT_UID,
                           0,
                           CLI_DONE,
                           "check: 1 problems, 0 leaked bytes\n",
                           "the problems are repaired",
                           "\"leaked\":0,\"repaired\":0,\"left\":0}"};
    const repair root = {place_named(&s, "dart type 0")->objects[0].addr,
                         0,
                         CLI_NOT_FOUND,
                         "check: 1 problems",
                         "the problems cannot be repaired",
                         "\"left\":1}"};
    const repair leak = {some_free_bits(&s), 0, CLI_DONE, "check: 0 problems, ", " repaired\n", ",\"left\":0}"};
    repair_says(&s, &number);
    repair_says(&s, &root);
    repair_says(&s, &leak);
    all_is_given_back(&s, &leak);
    scene_free(&s);
}


int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(commands_end_and_say_what_is_wrong),
                                              cmocka_unit_test(a_repair_says_whether_all_is_well),
                                              cmocka_unit_test(a_damaged_superblock_is_restored_or_named)};
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
