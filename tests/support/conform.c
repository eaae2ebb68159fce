/* Runs the behaviours of the conformance suite as cmocka tests, for all kinds and fabrics or for those that the
 * arguments select (conform.h). */
#include "conform.h"
#include "base/sanitizer.h"

typedef struct test_case {
    conform c;
    const behaviour *behaviour;
    char name[256];
} test_case;

typedef struct request {
    const char *kind, *fabric, *options;
    bool all;
} request;

static request selected;
static behaviour *first_behaviour; /* list of all behaviours, in the order of their source lines */

static const char *const unordered_kinds[] = {"shard"};


bool conform_kind_is_ordered(const char *kind) {
    for (size_t i = 0; i < COUNT_OF(unordered_kinds); i++)
        if (strcmp(kind, unordered_kinds[i]) == 0)
            return false;
    return true;
}


typedef struct kind_list {
    const char **kinds;
    size_t count;
} kind_list;


static int add_kind(void *ctx, const char *kind, const char *what_for, const char *options) {
    kind_list *list = ctx;
    (void)what_for, (void)options;
    if (list->count < CONFORM_KINDS)
        list->kinds[list->count++] = kind; /* The entry is not copied, because far_kinds passes constant strings. */
    return 0;
}


size_t conform_kinds(const char *kinds[CONFORM_KINDS]) {
    kind_list list = {kinds, 0};
    far_kinds(add_kind, &list);
    for (size_t i = 0; i < list.count; i++)
        if (strcmp(kinds[i], "toy") == 0)
            return list.count;
    add_kind(&list, "toy", "", "");
    return list.count;
}


static void run_case(void **state) {
    const test_case *test = *state;
    test->behaviour->run(&test->c);
}


static bool behaviour_applies(const behaviour *b, const conform *c) {
    return !((b->only & FOR_ORDERED) && !c->ordered) && !((b->only & FOR_UNORDERED) && c->ordered) &&
           !((b->only & FOR_THREADS) && !c->fabric->threads);
}


/* Returns whether the behaviour runs on this fabric for this kind. Under the thread sanitizer, only fabrics that allow
 * threads are useful, so the simulator is left out. */
static bool behaviour_runs_on_fabric(const request *request, const behaviour *b, size_t kind, size_t kinds,
                                     size_t number, size_t fabric) {
    size_t of_all = 0, before = 0;
    bool threads = (b->only & FOR_THREADS) || FAR_TSAN;
    if (request->fabric || request->all || test_runs_all_sizes())
        return true;
    /* The slow fabrics run a few behaviours only, unless an argument selects them. */
    if (conform_fabrics[fabric].when != EVERY_TIME)
        return conform_fabrics[fabric].when == IN_ROTATION && !(b->only & IN_TURN) && !FAR_TSAN &&
               (kind + number) % kinds == 0;
    if (!((b->only & IN_TURN) || FAR_TSAN))
        return true;
    if (threads && !conform_fabrics[fabric].threads)
        return false;
    for (size_t f = 0; f < conform_fabric_count; f++)
        if (conform_fabrics[f].when == EVERY_TIME && (!threads || conform_fabrics[f].threads)) {
            before += f < fabric;
            of_all++;
        }
    return (kind + number + before) % of_all == 0;
}


static void add_case(conform c, const behaviour *b) {
    test_case *test = malloc(sizeof(*test));
    if (!test)
        abort();
    *test = (test_case){.c = c, .behaviour = b};
    snprintf(test->name, sizeof(test->name), "%s/%s/%s", c.kind, c.fabric->name, b->name);
    test_add(test->name, run_case, NULL, NULL, test);
}


static void add_cases(void) {
    const char *kinds[CONFORM_KINDS];
    size_t kind_count = conform_kinds(kinds);
    for (size_t k = 0; k < kind_count; k++)
        for (size_t f = 0; f < conform_fabric_count; f++) {
            size_t number = 0;
            for (const behaviour *b = first_behaviour; b; b = b->next, number++) {
                conform c = {&conform_fabrics[f], kinds[k], selected.options, conform_kind_is_ordered(kinds[k])};
                if ((!selected.kind || strcmp(selected.kind, kinds[k]) == 0) &&
                    (!selected.fabric || strcmp(selected.fabric, conform_fabrics[f].name) == 0) &&
                    behaviour_applies(b, &c) && behaviour_runs_on_fabric(&selected, b, k, kind_count, number, f))
                    add_case(c, b);
            }
        }
}


static int read_arguments(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--list") == 0) {
            test_list_names();
            continue;
        }
        if (strcmp(argv[i], "--all") == 0) {
            selected.all = true;
            continue;
        }
        if (value && strcmp(argv[i], "--kind") == 0) {
            selected.kind = value;
        } else if (value && strcmp(argv[i], "--fabric") == 0) {
            selected.fabric = value;
        } else if (value && strcmp(argv[i], "--options") == 0) {
            selected.options = value;
        } else if (value && strcmp(argv[i], "--filter") == 0) {
            test_set_pattern(value);
        } else {
            fprintf(stderr, "usage: %s [--kind K] [--fabric F] [--options O] [--filter PATTERN] [--all] [--list]\n",
                    argv[0]);
            return 2;
        }
        i++;
    }
    return TEST_CONTINUE;
}


void conform_register(behaviour *entry) {
    behaviour **at = &first_behaviour;
    while (*at && (*at)->line <= entry->line)
        at = &(*at)->next;
    entry->next = *at;
    *at = entry;
    test_set_arguments(read_arguments);
    test_set_generator(add_cases);
}
