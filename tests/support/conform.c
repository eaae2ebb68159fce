/* Every behaviour, for every kind, on every fabric, as one cmocka test each. */
#include "conform.h"
#include "base/sanitizer.h"

typedef struct test_case {
    conform c;
    const behaviour *behaviour;
    char name[256];
} test_case;

typedef struct request {
    const char *kind, *fabric, *options;
    bool list, all;
} request;

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
        list->kinds[list->count++] = kind; /* names of kinds are constants of the library */
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


static bool applies(const behaviour *b, const conform *c) {
    return !((b->only & FOR_ORDERED) && !c->ordered) && !((b->only & FOR_UNORDERED) && c->ordered) &&
           !((b->only & FOR_THREADS) && !c->fabric->threads);
}


/* Of the fabrics that a behaviour applies to, those whose turn it is. The simulator has one thread: nothing to see for
 * the thread sanitizer. */
static bool has_turn(const request *request, const behaviour *b, size_t kind, size_t kinds, size_t number,
                     size_t fabric) {
    size_t of_all = 0, before = 0;
    bool threads = (b->only & FOR_THREADS) || FAR_TSAN;
    if (request->fabric || request->all)
        return true;
    if (conform_fabrics[fabric].when != EVERY_TIME) /* slow ones: a few, and all of it on demand */
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


static size_t make_cases(const request *request, const behaviour *behaviours, size_t count, test_case **cases) {
    const char *kinds[CONFORM_KINDS];
    size_t kind_count = conform_kinds(kinds), made = 0;
    *cases = calloc(kind_count * conform_fabric_count * count, sizeof(**cases));
    if (!*cases)
        abort();
    for (size_t k = 0; k < kind_count; k++)
        for (size_t f = 0; f < conform_fabric_count; f++)
            for (size_t b = 0; b < count; b++) {
                test_case *test = &(*cases)[made];
                test->c = (conform){&conform_fabrics[f], kinds[k], request->options, conform_kind_is_ordered(kinds[k])};
                test->behaviour = &behaviours[b];
                if ((request->kind && strcmp(request->kind, kinds[k]) != 0) ||
                    (request->fabric && strcmp(request->fabric, conform_fabrics[f].name) != 0) ||
                    !applies(test->behaviour, &test->c) || !has_turn(request, test->behaviour, k, kind_count, b, f))
                    continue;
                snprintf(test->name, sizeof(test->name), "%s/%s/%s", kinds[k], conform_fabrics[f].name,
                         behaviours[b].name);
                made++;
            }
    return made;
}


static bool parse_arguments(int argc, char **argv, request *request) {
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--list") == 0) {
            request->list = true;
            continue;
        }
        if (strcmp(argv[i], "--all") == 0) {
            request->all = true;
            continue;
        }
        if (!value)
            return false;
        if (strcmp(argv[i], "--kind") == 0)
            request->kind = value;
        else if (strcmp(argv[i], "--fabric") == 0)
            request->fabric = value;
        else if (strcmp(argv[i], "--options") == 0)
            request->options = value;
        else if (strcmp(argv[i], "--filter") == 0)
            cmocka_set_test_filter(value);
        else
            return false;
        i++;
    }
    return true;
}


static int run_cases(const char *group, test_case *cases, size_t count) {
    struct CMUnitTest *tests = calloc(count, sizeof(*tests));
    if (!tests)
        abort();
    for (size_t i = 0; i < count; i++)
        tests[i] = (struct CMUnitTest){cases[i].name, run_case, NULL, NULL, &cases[i]};
    int failed = _cmocka_run_group_tests(group, tests, count, NULL, NULL);
    free(tests);
    return failed;
}


int conform_main(int argc, char **argv, const char *group, const behaviour *behaviours, size_t count) {
    request request = {0};
    if (!parse_arguments(argc, argv, &request)) {
        fprintf(stderr, "usage: %s [--kind K] [--fabric F] [--options O] [--filter PATTERN] [--all] [--list]\n",
                argv[0]);
        return 2;
    }
    test_case *cases;
    size_t made = make_cases(&request, behaviours, count, &cases);
    int status = 0;
    if (made == 0 && (request.kind || request.fabric)) {
        fprintf(stderr, "%s: no such kind or fabric, or nothing applies to it\n", argv[0]);
        status = 2;
    } else if (request.list) {
        for (size_t i = 0; i < made; i++)
            puts(cases[i].name);
    } else if (made > 0) {
        status = run_cases(group, cases, made) != 0;
    }
    free(cases);
    return status;
}
