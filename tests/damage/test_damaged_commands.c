/* Tests of the commands on damaged pools. They prove that each command ends within bounded work, with a defined exit
 * status and, if it fails, with a message; and that no command fails on a pool that check reports as sound or repaired.
 *
 * test_damaged_commands [--kind KIND] [--seeds FIRST..LAST] [--verbose]      `make fuzz` runs more seeds
 *
 * The commands run in this process, one after the other, and each opens the pool again. They are given the name of a
 * shm pool, and get the memory of the rig (the program is linked with --wrap=far_shm_open_existing and
 * --wrap=far_pool_open). */
#include "damage_seeds.h"
#include "test.h"
#include "tools/farindex/commands.h"

#include <stdlib.h>
#include <string.h>

#define SEED_FIRST 1
#define SEED_LAST  16 /* last seed for each kind of index */
#define VERBS_MAX  200000
#define WORDS_MAX  12
#define LINE_BYTES 160

static const char *const layouts[2] = {"", "checksum=on"};
static damage_seeds seeds = {SEED_FIRST, SEED_LAST, NULL};
static bool verbose;

/* State of a trial with one damaged pool. */
typedef struct trial {
    const scene *scene;
    uint64_t seed;
    damage damage;
    char key[SCENE_KEY_BYTES];
    bool sound; /* true if the last check exited with status 0 */
    unsigned failures;
    char said[1024]; /* beginning of the last command's output */
} trial;


/* ---- Connecting the commands to the rig ---- */

int __wrap_far_local_open(const char *rest, far_fabric **fabric);
int __wrap_far_shm_open_existing(const char *rest, far_fabric **fabric);
int __real_far_pool_open(const char *uri, const far_pool_options *options, far_pool **pool);
int __wrap_far_pool_open(const char *uri, const far_pool_options *options, far_pool **pool);


int __wrap_far_shm_open_existing(const char *rest, far_fabric **fabric) {
    (void)rest;
    return __wrap_far_local_open(strchr(RIG_URI, ':') + 1, fabric);
}


/* opens the pool without a housekeeping thread, because virtual time supports only one thread */
int __wrap_far_pool_open(const char *uri, const far_pool_options *options, far_pool **pool) {
    far_pool_options alone = options ? *options : (far_pool_options){0};
    alone.no_thread = 1;
    return __real_far_pool_open(uri, &alone, pool);
}


/* ---- Running a command ---- */

static void report_failure(trial *t, const char *line, const char *what, const char *words) {
    printf("%s%s seed %llu: %s: %s: %s [%s]\n", t->scene->kind, t->scene->crashed ? " crashed" : "",
           (unsigned long long)t->seed, line, what, words, t->damage.words);
    t->failures++;
}


/* Splits a line into words, and replaces KEY by the key of the trial. */
static int split_line(trial *t, char *line, char **argv) {
    int argc = 0;
    for (char *word = strtok(line, " "); word && argc < WORDS_MAX; word = strtok(NULL, " "))
        argv[argc++] = strcmp(word, "KEY") == 0 ? t->key : word;
    return argc;
}


/* Redirects the output of the command to `said`. */
static int run_with_output(int argc, char **argv, FILE *said) {
    FILE *out = stdout, *err = stderr;
    stdout = stderr = said;
    int status = cli_run(argc, argv);
    fflush(said);
    stdout = out;
    stderr = err;
    return status;
}


static int run_command(trial *t, const char *command) {
    char line[LINE_BYTES], *argv[WORDS_MAX + 1] = {NULL};
    char *text = NULL;
    size_t size = 0;
    FILE *said = open_memstream(&text, &size);
    assert_non_null(said);
    snprintf(line, sizeof(line), "%s --pool shm:/damaged", command);
    int argc = split_line(t, line, argv);
    rig_limit_verbs(VERBS_MAX);
    int status = run_with_output(argc, argv, said);
    fclose(said);
    if (verbose)
        printf("  %s: %d (%llu verbs) %s\n", command, status, (unsigned long long)rig_posted_verbs(), text);
    if (rig_limit_is_exceeded())
        report_failure(t, command, "hangs", text);
    else if (status != CLI_DONE && status != CLI_NOT_FOUND && status != CLI_FAILED)
        report_failure(t, command, "undefined exit status", text);
    else if (status != CLI_DONE && text[0] == 0)
        report_failure(t, command, "failed without a message", "");
    else if (status == CLI_FAILED && t->sound && !strstr(text, "has no order to scan in"))
        report_failure(t, command, "check reports no problem, but", text);
    snprintf(t->said, sizeof(t->said), "%s", text);
    free(text);
    return status;
}


static void run_commands(trial *t, const char *const *commands) {
    for (; *commands; commands++)
        run_command(t, *commands);
}


/* ---- All commands ---- */

static unsigned run_trial(const scene *s, uint64_t seed) {
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
    rig_restore_pool(s->image);
    t.key[scene_key(s, 4 * (unsigned)far_random_below(&random, 30), t.key)] = 0;
    scene_damage(s, &random, &t.damage);
    if (verbose)
        printf("%s seed %llu: %s\n", s->kind, (unsigned long long)seed, t.damage.words);
    t.sound = run_command(&t, "check") == CLI_DONE;
    run_commands(&t, readers);
    run_commands(&t, writers);
    t.sound = false;
    t.sound = run_command(&t, "check --repair") == CLI_DONE;
    run_commands(&t, readers);
    run_commands(&t, last);
    t.sound = false;
    t.sound = run_command(&t, "check --repair") == CLI_DONE;
    run_commands(&t, (const char *const[]){"create again dart", "put again KEY value", "drop again", NULL});
    return t.failures;
}


TEST(commands_end_and_report_damage) {
    assert_int_equal(damage_seeds_run(&seeds, layouts, run_trial), 0);
}


/* ---- The superblock of a closed pool ---- */

enum { TO_ZERO, TO_ONES, FLIP_A_BIT, HOWS };


/* Damages one word of the superblock and runs commands. If the word is a constant, check reports the damage and check
 * --repair restores it. Otherwise each command ends, and if check reports no problem the pool works. */
static unsigned damage_superblock(const scene *s, far_addr addr, unsigned how, bool constant) {
    trial t = {.scene = s, .seed = addr};
    uint64_t word;
    rig_seed(addr);
    rig_restore_pool(s->image);
    t.key[scene_key(s, 0, t.key)] = 0;
    memcpy(&word, rig_memory(far_addr_node(addr)) + far_addr_offset(addr), 8);
    uint64_t others[HOWS] = {0, UINT64_MAX, word ^ 1ull << (17 + addr) % 64};
    if (others[how] == word)
        return 0;
    damage_word(&t.damage, addr, others[how]);
    int before = run_command(&t, "check"), repair = run_command(&t, "check --repair");
    if (constant && before != CLI_FAILED)
        report_failure(&t, "check", "does not report the damage", "");
    if (constant && (repair != CLI_DONE || !strstr(t.said, ": restored")))
        report_failure(&t, "check --repair", "does not restore the word, or does not report it", t.said);
    t.sound = repair == CLI_DONE;
    run_commands(&t, (const char *const[]){"check", "list", "get index KEY", "put index KEY value", NULL});
    return t.failures;
}


/* Damages two words of the superblock. The other words do not determine the values of these two, and check --repair
 * reports that. */
static unsigned damage_two_words(const scene *s) {
    trial t = {.scene = s};
    uint64_t zeroes[2] = {0};
    rig_restore_pool(s->image);
    memcpy(rig_memory(0) + FAR_SUPER_POOL_ID, zeroes, sizeof(zeroes));
    if (run_command(&t, "check --repair") != CLI_FAILED || !strstr(t.said, "cannot be restored"))
        report_failure(&t, "check --repair", "does not report that it cannot restore the words", "");
    return t.failures;
}


TEST(a_damaged_superblock_is_restored_or_reported) {
    static scene s;
    unsigned failures = 0;
    scene_make(&s, "dart", "", false, 1);
    for (unsigned how = 0; how < HOWS; how++) {
        for (far_addr addr = 0; addr <= FAR_SUPER_CHECK; addr += 8)
            failures += damage_superblock(&s, addr, how, true);
        for (far_addr addr = FAR_SUPER_EPOCH; addr <= FAR_SUPER_FABRIC_RECORD; addr += 8)
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


/* ---- The output of a repair ---- */

typedef struct repair { /* the expected output after a damage of one word */
    far_addr addr;
    uint64_t word;
    int status;
    /* expected texts in the output of a check (`found`), of a repair (`repaired`), and of a repair with --json (`left`)
     */
    const char *found, *repaired, *left;
} repair;


static void assert_command_prints(trial *t, const char *command, int status, const char *words) {
    assert_int_equal(run_command(t, command), status);
    if (!strstr(t->said, words))
        fail_msg("%s: no '%s' in '%s'", command, words, t->said);
    assert_null(strstr(t->said, "index: index")); /* The message must not contain the name of the index twice. */
}


static void assert_repair_prints(const scene *s, const repair *r) {
    for (unsigned json = 0; json < 2; json++) {
        trial t = {.scene = s};
        rig_restore_pool(s->image);
        damage_word(&t.damage, r->addr, r->word);
        assert_command_prints(&t, "check", CLI_NOT_FOUND, r->found);
        if (json)
            assert_command_prints(&t, "check --repair --json", r->status, r->left);
        else
            assert_command_prints(&t, "check --repair", r->status, r->repaired);
        assert_command_prints(&t, "check", r->status,
                              r->status == CLI_DONE ? "check: 0 problems, 0 leaked bytes\n" : r->found);
    }
}


static const place *find_place(const scene *s, const char *name) {
    for (size_t i = 0; i < s->place_count; i++)
        if (strcmp(s->places[i].name, name) == 0)
            return &s->places[i];
    fail_msg("there is no place '%s'", name);
    return NULL;
}


/* Returns the address of a bitmap word that describes free objects in one of the first blocks. If the word is cleared,
 * these objects are leaked. */
static far_addr find_free_bits(const scene *s) {
    const place *bitmaps = find_place(s, "bitmaps");
    rig_restore_pool(s->image);
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


static void assert_leak_is_repaired(const scene *s, const repair *r) {
    unsigned long long leaked = 0, repaired = 0;
    trial t = {.scene = s};
    rig_restore_pool(s->image);
    damage_word(&t.damage, r->addr, r->word);
    run_command(&t, "check --repair");
    assert_int_equal(sscanf(t.said, "check: 0 problems, %llu leaked bytes, %llu repaired\n", &leaked, &repaired), 2);
    assert_true(leaked > 0);
    assert_int_equal(repaired, leaked);
}


/* Proves that the output distinguishes three damages: one that can be repaired, one that cannot, and leaked memory,
 * which is no structural problem. */
TEST(a_repair_reports_remaining_problems) {
    static scene s;
    scene_make(&s, "dart", "", false, 1);
    const repair number = {FAR_SUPER_NEXT_UID,
                           0,
                           CLI_DONE,
                           "check: 1 problems, 0 leaked bytes\n",
                           "the problems are repaired",
                           "\"leaked\":0,\"repaired\":0,\"left\":0}"};
    const repair root = {find_place(&s, "dart type 0")->objects[0].addr,
                         0,
                         CLI_NOT_FOUND,
                         "check: 1 problems",
                         "the problems cannot be repaired",
                         "\"left\":1}"};
    const repair leak = {find_free_bits(&s), 0, CLI_DONE, "check: 0 problems, ", " repaired\n", ",\"left\":0}"};
    assert_repair_prints(&s, &number);
    assert_repair_prints(&s, &root);
    assert_repair_prints(&s, &leak);
    assert_leak_is_repaired(&s, &leak);
    scene_free(&s);
}


/* Another client has the pool open, so the damage stays. The last line says that a repair is possible without that
 * client. Fails if print_check (manage.c) ignores `refused`. */
TEST(a_refused_repair_says_what_to_do) {
    static scene s;
    far_pool *other;
    scene_make(&s, "dart", "", false, 1);
    trial t = {.scene = &s};
    rig_restore_pool(s.image);
    assert_int_equal(far_pool_open(RIG_URI, &rig_options, &other), 0);
    damage_word(&t.damage, FAR_SUPER_NEXT_UID, 0);
    assert_command_prints(&t, "check --repair", CLI_NOT_FOUND, "only while no other client has the pool open");
    assert_command_prints(&t, "check --repair", CLI_NOT_FOUND, "Close them and repeat");
    assert_null(strstr(t.said, "cannot be repaired"));
    far_pool_close(other);
    assert_command_prints(&t, "check --repair", CLI_DONE, "the problems are repaired");
    scene_free(&s);
}


TEST_ARGUMENTS(argc, argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        int taken = damage_seeds_argument(&seeds, argc - i, argv + i);
        i += taken > 0 ? taken - 1 : 0;
        verbose |= taken == 0 && strcmp(argv[i], "--verbose") == 0;
    }
    return TEST_CONTINUE;
}


TEST_GROUP(rig_start, rig_end);
