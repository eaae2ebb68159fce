/* farindex selftest: does the fabric of a pool do what it says? */
#include "verify/selftest.h"
#include "cli/data.h"
#include "pool/handle.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define TRIES 20000u


static const char *verdict(const far_selftest_result *r) {
    if (r->left_out)
        return "left out";
    if (r->broken == 0)
        return r->claimed ? "held" : "not claimed, held";
    return r->claimed ? "REFUTED" : "not claimed, broken";
}


static unsigned refuted(const far_selftest_result results[FAR_SELFTESTS]) {
    unsigned count = 0;
    for (unsigned i = 0; i < FAR_SELFTESTS; i++)
        count += results[i].claimed && results[i].broken > 0;
    return count;
}


static void print_result(const far_selftest_result *r) {
    printf("%-44s %-20s ", r->what, verdict(r));
    if (r->left_out)
        printf("%s", r->left_out);
    else
        printf("%" PRIu64 " tries", r->tries);
    if (r->broken)
        printf(", %" PRIu64 " broken", r->broken);
    printf(r->capability ? " (%s)\n" : "\n", r->capability);
}


/* What the pool's clients go without from now on. */
static void print_record(const far_selftest_result results[FAR_SELFTESTS]) {
    const char *last = NULL; /* rules of one capability stand together, or are few */
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
    print_record(results);
}


static void print_results_as_json(const far_selftest_result results[FAR_SELFTESTS]) {
    for (unsigned i = 0; i < FAR_SELFTESTS; i++) {
        const far_selftest_result *r = &results[i];
        printf("%s{\"rule\": ", i ? ",\n " : "[");
        cli_json_string(stdout, r->what);
        printf(", \"capability\": ");
        cli_json_string(stdout, r->capability ? r->capability : "");
        printf(", \"claimed\": %s, \"tries\": %" PRIu64 ", \"broken\": %" PRIu64 ", \"recorded\": %s, \"left_out\": ",
               r->claimed ? "true" : "false", r->tries, r->broken, r->recorded ? "true" : "false");
        cli_json_string(stdout, r->left_out ? r->left_out : "");
        putchar('}');
    }
    printf("]\n");
}


static int tell_progress(double done, const char *rule) {
    cli_progress(done, "selftest: %s", rule);
    return cli_interrupted();
}


static int test_pool(const char *uri, uint64_t tries, bool forget, bool json) {
    far_pool_options options = {.ignore_refuted = 1}; /* what was refuted is tried again */
    far_pool *pool;
    far_selftest_result results[FAR_SELFTESTS];
    int err = cli_pool_open_or_make(uri, &options, false, false, &pool);
    if (err == FAR_ERR_NOT_FOUND)
        return cli_not_found("%s; 'farindex create' makes one", far_last_error());
    if (err < 0)
        return cli_pool_failed();
    err = forget ? far_selftest_forget(pool) : 0;
    if (err == 0)
        err = far_selftest(pool, tries, tell_progress, results);
    cli_progress_end();
    if (err < 0)
        cli_pool_failed();
    else if (cli_interrupted())
        err = FAR_ERR_BUSY; /* not all was tried: there is nothing to tell */
    else if (json)
        print_results_as_json(results);
    else
        print_results(results);
    far_pool_close(pool);
    return err < 0 ? CLI_FAILED : refuted(results) ? CLI_NOT_FOUND : CLI_DONE;
}


int cli_selftest(int argc, char **argv) {
    const char *uri = getenv("FARINDEX_POOL");
    uint64_t tries = TRIES;
    bool help = false, json = false, forget = false;
    const cli_option options[] = {
        {"pool", CLI_TEXT, &uri, "URI", "the pool (default: FARINDEX_POOL)"},
        {"tries", CLI_NUMBER, &tries, "N", "how often each rule is tried, over all memory nodes (20000)"},
        {"forget", CLI_FLAG, &forget, NULL, "first forgets what earlier self-tests have refuted"},
        {"json", CLI_FLAG, &json, NULL, "prints JSON"},
        {0},
    };
    int err = cli_parse(argc, argv, "selftest --pool URI [OPTIONS]", options,
                        "Sessions work against each other on some memory of the pool (2M and more of each memory node, "
                        "which have 4M at "
                        "least)\nand look for what its fabric must not do. Exit 1 if a rule that it claims to keep was "
                        "broken. That goes on record at the pool: its clients do "
                        "without the\ncapability from then on, or are refused. What was not seen is not proved.\n",
                        NULL, &help);
    if (err || help)
        return err;
    if (!uri || !*uri)
        return cli_wrong_usage("selftest", "which pool? give --pool URI, or set FARINDEX_POOL");
    cli_catch_briefly();
    return test_pool(uri, tries, forget, json);
}
