/* `farindex selftest` tests whether the fabric of a pool keeps the guarantees that it claims (verify/selftest.c has the
 * tests). */
#include "verify/selftest.h"
#include "pool/handle.h"
#include "tools/farindex/data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define TRIES 20000u


static const char *describe_verdict(const far_selftest_result *r) {
    if (r->left_out)
        return "left out";
    if (r->broken == 0)
        return r->claimed ? "held" : "not claimed, held";
    return r->claimed ? "REFUTED" : "not claimed, broken";
}


static unsigned count_failed_guarantees(const far_selftest_result results[FAR_SELFTESTS]) {
    unsigned count = 0;
    for (unsigned i = 0; i < FAR_SELFTESTS; i++)
        count += results[i].claimed && results[i].broken > 0;
    return count;
}


static void print_result(const far_selftest_result *r) {
    printf("%-44s %-20s ", r->what, describe_verdict(r));
    if (r->left_out)
        printf("%s", r->left_out);
    else
        printf("%" PRIu64 " tries", r->tries);
    if (r->broken)
        printf(", %" PRIu64 " broken", r->broken);
    printf(r->capability ? " (%s)\n" : "\n", r->capability);
}


/* Prints the guarantees that the pool's clients no longer rely on. */
static void print_failed_guarantees(const far_selftest_result results[FAR_SELFTESTS]) {
    const char *last = NULL; /* name printed last; avoids printing one capability twice */
    for (unsigned i = 0; i < FAR_SELFTESTS; i++) {
        const char *name = results[i].capability ? results[i].capability : "a rule of every fabric";
        if (!results[i].recorded || (last && strcmp(last, name) == 0))
            continue;
        printf("refuted, now or earlier: %s: %s ('farindex selftest --forget' tries again)\n", name,
               results[i].capability && strcmp(name, "atomic_bytes=64") != 0
                   ? "clients of this pool do without it"
                   : "clients that rely on it cannot use this pool");
        last = name;
    }
}


static void print_results(const far_selftest_result results[FAR_SELFTESTS]) {
    for (unsigned i = 0; i < FAR_SELFTESTS; i++)
        print_result(&results[i]);
    print_failed_guarantees(results);
}


static void print_results_as_json(const far_selftest_result results[FAR_SELFTESTS]) {
    cli_json_list list = {.file = stdout};
    for (unsigned i = 0; i < FAR_SELFTESTS; i++) {
        const far_selftest_result *r = &results[i];
        json_t *object = cli_json_object();
        cli_json_set_text(object, "rule", r->what);
        cli_json_set_text(object, "capability", r->capability ? r->capability : "");
        cli_json_set_bool(object, "claimed", r->claimed);
        cli_json_set_count(object, "tries", r->tries);
        cli_json_set_count(object, "broken", r->broken);
        cli_json_set_bool(object, "recorded", r->recorded);
        cli_json_set_text(object, "left_out", r->left_out ? r->left_out : "");
        cli_json_list_add(&list, object);
    }
    cli_json_list_end(&list);
}


static int show_progress(double done, const char *rule) {
    cli_progress(done, "selftest: %s", rule);
    return cli_interrupted();
}


static int test_pool(const char *uri, uint64_t tries, bool forget, bool json) {
    far_pool_options options = {.ignore_refuted = 1}; /* guarantees that failed earlier are tested again */
    far_pool *pool;
    far_selftest_result results[FAR_SELFTESTS];
    int err = cli_pool_open_or_create(uri, &options, false, false, &pool);
    if (err == FAR_ERR_NOT_FOUND)
        return cli_not_found("%s; 'farindex create' creates it", far_last_error());
    if (err < 0)
        return cli_pool_failed();
    err = forget ? far_selftest_forget(pool) : 0;
    if (err == 0)
        err = far_selftest(pool, tries, show_progress, results);
    cli_progress_end();
    if (err < 0)
        cli_pool_failed();
    else if (cli_interrupted())
        err = FAR_ERR_BUSY; /* an interrupted test has no result */
    else if (json)
        print_results_as_json(results);
    else
        print_results(results);
    far_pool_close(pool);
    return err < 0 ? CLI_FAILED : count_failed_guarantees(results) ? CLI_NOT_FOUND : CLI_DONE;
}


int cli_selftest(int argc, char **argv) {
    const char *uri = getenv("FARINDEX_POOL");
    uint64_t tries = TRIES;
    bool help = false, json = false, forget = false;
    const cli_option options[] = {
        {"pool", CLI_TEXT, &uri, "URI", "the pool (default: FARINDEX_POOL)"},
        {"tries", CLI_NUMBER, &tries, "N", "number of times that each rule is tried, over all memory nodes (20000)"},
        {"forget", CLI_FLAG, &forget, NULL, "first removes the record of guarantees that failed earlier"},
        {"json", CLI_FLAG, &json, NULL, "prints JSON"},
        {0},
    };
    int err = cli_parse(
        argc, argv, "selftest --pool URI [OPTIONS]", options,
        "Sessions access the same memory concurrently and look for effects that the guarantees of the fabric exclude. "
        "The "
        "test takes\n2M or more of each memory node, which must have 4M at least. Exit status 1 if a guarantee "
        "that the fabric claims failed; the pool\nrecords that, and its clients no longer rely on the "
        "guarantee, or are refused. A test without failures proves nothing.\n",
        NULL, &help);
    if (err || help)
        return err;
    if (!uri || !*uri)
        return cli_wrong_usage("selftest", "no pool is given; use --pool URI, or set FARINDEX_POOL");
    cli_catch_briefly();
    return test_pool(uri, tries, forget, json);
}
