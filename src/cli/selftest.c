/* farindex selftest: does the fabric of a pool do what it says? */
#include "verify/selftest.h"
#include "cli/data.h"
#include "pool/handle.h"

#include <inttypes.h>
#include <stdlib.h>

#define TRIES 20000u


static const char *verdict(const far_selftest_result *r) {
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


static void print_results(const far_selftest_result results[FAR_SELFTESTS]) {
    for (unsigned i = 0; i < FAR_SELFTESTS; i++) {
        const far_selftest_result *r = &results[i];
        printf("%-44s %-20s %" PRIu64 " tries", r->what, verdict(r), r->tries);
        if (r->broken)
            printf(", %" PRIu64 " broken", r->broken);
        printf(r->capability ? " (%s)\n" : "\n", r->capability);
    }
}


static void print_results_as_json(const far_selftest_result results[FAR_SELFTESTS]) {
    for (unsigned i = 0; i < FAR_SELFTESTS; i++) {
        const far_selftest_result *r = &results[i];
        printf("%s{\"rule\": ", i ? ",\n " : "[");
        cli_json_string(stdout, r->what);
        printf(", \"capability\": ");
        cli_json_string(stdout, r->capability ? r->capability : "");
        printf(", \"claimed\": %s, \"tries\": %" PRIu64 ", \"broken\": %" PRIu64 "}", r->claimed ? "true" : "false",
               r->tries, r->broken);
    }
    printf("]\n");
}


static int tell_progress(double done, const char *rule) {
    cli_progress(done, "selftest: %s", rule);
    return cli_interrupted();
}


static int test_pool(const char *uri, uint64_t tries, bool json) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    far_pool *pool;
    far_selftest_result results[FAR_SELFTESTS];
    int err = cli_pool_open_or_make(uri, &options, false, false, &pool);
    if (err == FAR_ERR_NOT_FOUND)
        return cli_not_found("%s; 'farindex create' makes one", far_last_error());
    if (err < 0)
        return cli_pool_failed();
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
    bool help = false, json = false;
    const cli_option options[] = {
        {"pool", CLI_TEXT, &uri, "URI", "the pool (default: FARINDEX_POOL)"},
        {"tries", CLI_NUMBER, &tries, "N", "how often each rule is tried, over all memory nodes (20000)"},
        {"json", CLI_FLAG, &json, NULL, "prints JSON"},
        {0},
    };
    int err =
        cli_parse(argc, argv, "selftest --pool URI [OPTIONS]", options,
                  "Sessions work against each other on some memory of the pool and look for what its fabric must "
                  "not do.\nExit 1 if a rule that it claims to keep was broken. What was not seen is not proved.\n",
                  NULL, &help);
    if (err || help)
        return err;
    if (!uri || !*uri)
        return cli_wrong_usage("selftest", "which pool? give --pool URI, or set FARINDEX_POOL");
    cli_catch_briefly();
    return test_pool(uri, tries, json);
}
