/* `farindex torture` explores seeds on the simulator, one after the other or in parallel processes (--jobs).
 * verify/torture.c runs one seed. */
#include "verify/torture.h"
#include "index/index.h"
#include "pool/catalog/private_options.h"
#include "tools/farindex/commands.h"
#include "verify/coverage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct torture_flags {
    far_torture torture;
    uint64_t seeds[2], clients, compute_nodes, memory_nodes, depth, atomic_bytes, jobs;
    int masked_cas, in_order, reads_in_order, questions, rdwc, scans, churn;
    const char *faults, *history, *trace;
    bool coverage;
    _Atomic uint64_t *point_counts; /* how often each named point of the code was reached, over all processes */
} torture_flags;

typedef struct job { /* a child process that runs every n-th seed and writes the result of each to a pipe */
    pid_t pid;
    int pipe;
    uint64_t next; /* the seed that the process is running */
} job;


static int set_faults(far_torture *t, const char *text) {
    t->tear = t->reorder = t->stall = t->crash = strcmp(text, "all") == 0;
    if (t->tear || strcmp(text, "none") == 0)
        return 0;
    while (*text) {
        size_t length = strcspn(text, ",+");
        if (length == 4 && memcmp(text, "tear", 4) == 0)
            t->tear = true;
        else if (length == 7 && memcmp(text, "reorder", 7) == 0)
            t->reorder = true;
        else if (length == 5 && memcmp(text, "stall", 5) == 0)
            t->stall = true;
        else if (length == 5 && memcmp(text, "crash", 5) == 0)
            t->crash = true;
        else
            return cli_wrong_usage("torture", "--faults: '%s' is not tear, reorder, stall, crash, none or all", text);
        text += length + (text[length] != 0);
    }
    return 0;
}


static int report_unknown_kind(const char *kind) {
    char kinds[CLI_KINDS], hint[CLI_HINT];
    return cli_wrong_usage("torture", "--index: there is no kind '%s' (there are: %s)%s", kind, cli_list_kinds(kinds),
                           cli_suggest_kind(kind, hint));
}


static int check_flags(torture_flags *f) {
    far_torture *t = &f->torture;
    if (!t->kind)
        return cli_wrong_usage("torture", "--index KIND is needed");
    if (!far_index_kind_named(t->kind))
        return report_unknown_kind(t->kind);
    if (f->clients < 1 || f->clients > 1000 || f->compute_nodes < 1 || f->compute_nodes > f->clients)
        return cli_wrong_usage("torture", "--clients takes 1..1000, and --compute-nodes 1 to the number of clients");
    if (f->memory_nodes < 1 || f->memory_nodes > 16)
        return cli_wrong_usage("torture", "--memory-nodes takes 1..16");
    if (f->depth > 200)
        return cli_wrong_usage("torture", "--depth takes at most 200");
    if (f->atomic_bytes != 8 && f->atomic_bytes != 16 && f->atomic_bytes != 64)
        return cli_wrong_usage("torture", "--atomic-bytes takes 8, 16 or 64");
    if (t->value_bytes[1] > FAR_VALUE_MAX)
        return cli_wrong_usage("torture", "--value-size: at most %d", FAR_VALUE_MAX);
    if (f->jobs < 1 || f->jobs > 64)
        return cli_wrong_usage("torture", "--jobs takes 1..64");
    if (f->jobs > 1 && (f->history || f->trace))
        return cli_wrong_usage("torture", "--history and --trace need --jobs 1");
    if (f->compute_nodes == 1)
        t->crash = false; /* a crash ends one compute node, and at least one must survive */
    t->clients = (unsigned)f->clients;
    t->compute_nodes = (unsigned)f->compute_nodes;
    t->memory_nodes = (unsigned)f->memory_nodes;
    t->depth = (unsigned)f->depth;
    t->atomic_bytes = (unsigned)f->atomic_bytes;
    t->masked_cas = f->masked_cas;
    t->atomics_in_order = f->in_order;
    t->reads_in_order = f->reads_in_order;
    t->questions = f->questions;
    t->rdwc = f->rdwc;
    t->churn = f->churn;
    t->scans = f->scans && far_index_kind_named(t->kind)->scan;
    return set_faults(t, f->faults);
}


static int open_file(const char *path, FILE **file) {
    if (!path)
        return 0;
    *file = strcmp(path, "-") == 0 ? stdout : fopen(path, "w");
    return *file ? 0 : cli_failed("%s: %s", path, strerror(errno));
}


static int close_file(FILE *file) {
    if (!file || file == stdout)
        return 0;
    bool failed = ferror(file);
    failed |= fclose(file) != 0;
    return failed ? cli_failed("the history or the trace could not be written: %s", strerror(errno)) : 0;
}


static void add_result(far_torture_result *sum, const far_torture_result *one) {
    sum->seeds += one->seeds;
    sum->ops += one->ops;
    sum->crashes += one->crashes;
    sum->silences += one->silences;
    sum->restarts += one->restarts;
    sum->violations += one->violations;
    sum->problems += one->problems;
    sum->gave_up += one->gave_up;
    sum->merged += one->merged;
}


static void show_progress(const torture_flags *f, const far_torture_result *sum) {
    uint64_t all = f->seeds[1] - f->seeds[0] + 1;
    cli_progress((double)sum->seeds / (double)all, "torture: %" PRIu64 " of %" PRIu64 " seeds, %" PRIu64 " violations",
                 sum->seeds, all, sum->violations);
}


static int run_inline(const torture_flags *f, far_torture_result *sum) {
    for (uint64_t seed = f->seeds[0]; seed <= f->seeds[1]; seed++) {
        far_torture_result one = {0};
        show_progress(f, sum);
        if (far_torture_run(&f->torture, seed, &one, stdout) < 0)
            return cli_failed("seed %" PRIu64 ": %s", seed, far_last_error());
        if (f->torture.verbose)
            printf("seed %" PRIu64 ": %" PRIu64 " ops, %" PRIu64 " crashes, %" PRIu64 " merged, trace %016" PRIx64 "\n",
                   seed, one.ops, one.crashes, one.merged, one.trace_hash);
        add_result(sum, &one);
        far_coverage_collect(f->point_counts);
        if (seed == UINT64_MAX)
            break;
    }
    return 0;
}


static void child_main(const torture_flags *f, uint64_t first, int out) {
    for (uint64_t seed = first; seed <= f->seeds[1] && seed >= first; seed += f->jobs) {
        far_torture_result one = {0};
        if (far_torture_run(&f->torture, seed, &one, stdout) < 0) {
            fprintf(stderr, "farindex: seed %" PRIu64 ": %s\n", seed, far_last_error());
            _exit(CLI_FAILED);
        }
        far_coverage_collect(f->point_counts);
        fflush(stdout);
        if (write(out, &one, sizeof(one)) != sizeof(one))
            _exit(CLI_FAILED);
    }
    _exit(CLI_DONE);
}


static int start_job(const torture_flags *f, job *j, uint64_t first) {
    int ends[2];
    if (pipe(ends) != 0)
        return cli_failed("pipe: %s", strerror(errno));
    fflush(NULL);
    j->pid = fork();
    if (j->pid < 0)
        return cli_failed("fork: %s", strerror(errno));
    if (j->pid == 0) {
        close(ends[0]);
        child_main(f, first, ends[1]);
    }
    close(ends[1]);
    j->pipe = ends[0];
    j->next = first;
    return 0;
}


/* Runs the seeds in parallel processes and adds their results. If a process ends abnormally, the message names the seed
 * that it was running. */
static int run_jobs(const torture_flags *f, far_torture_result *sum) {
    job jobs[64];
    int status = 0;
    for (uint64_t i = 0; i < f->jobs; i++)
        if (start_job(f, &jobs[i], f->seeds[0] + i) != 0)
            return CLI_FAILED;
    for (bool any = true; any;) {
        any = false;
        for (uint64_t i = 0; i < f->jobs; i++) {
            far_torture_result one;
            if (jobs[i].pipe < 0 || read(jobs[i].pipe, &one, sizeof(one)) != sizeof(one)) {
                if (jobs[i].pipe >= 0)
                    close(jobs[i].pipe);
                jobs[i].pipe = -1;
                continue;
            }
            any = true;
            add_result(sum, &one);
            jobs[i].next += f->jobs;
            show_progress(f, sum);
        }
    }
    for (uint64_t i = 0; i < f->jobs; i++) {
        int how;
        if (waitpid(jobs[i].pid, &how, 0) == jobs[i].pid && how != 0) {
            cli_failed("seed %" PRIu64 " ended its process (%s %d)", jobs[i].next,
                       WIFSIGNALED(how) ? "signal" : "status", WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
            status = CLI_FAILED;
        }
    }
    return status;
}


/* Allocates shared memory for the child processes. It contains one counter for each point (far_point). */
static int open_coverage(torture_flags *f) {
    f->point_counts = mmap(NULL, (far_coverage_points() + 1) * sizeof(*f->point_counts), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return f->point_counts == MAP_FAILED ? cli_failed("mmap: %s", strerror(errno)) : 0;
}


static void show_result(const torture_flags *f, const far_torture_result *sum) {
    const char *kind = f->torture.kind;
    if (sum->gave_up)
        printf("torture: %" PRIu64 " keys could not be decided within the budget\n", sum->gave_up);
    if (f->questions)
        printf("torture: memory nodes were silent %" PRIu64 " times and restarted %" PRIu64 " times\n", sum->silences,
               sum->restarts);
    if (f->coverage)
        far_coverage_print_points(f->point_counts, kind, stdout);
    printf("torture: %s: %" PRIu64 " seeds, %" PRIu64 " ops, %" PRIu64 " crashes, %" PRIu64 " violations, %" PRIu64
           " check problems\n",
           kind, sum->seeds, sum->ops, sum->crashes, sum->violations, sum->problems);
    far_coverage_print_missed(f->point_counts, kind, stdout);
}


int cli_torture(int argc, char **argv) {
    far_private_options_allow(true);
    torture_flags f = {.seeds = {1, 100},
                       .jobs = 1,
                       .faults = "all",
                       .atomic_bytes = 64,
                       .masked_cas = 1,
                       .reads_in_order = 1,
                       .rdwc = 1,
                       .scans = 1,
                       .churn = 1};
    far_torture *t = &f.torture;
    far_torture_init(t);
    f.clients = t->clients;
    f.compute_nodes = t->compute_nodes;
    f.memory_nodes = t->memory_nodes;
    f.depth = t->depth;
    const cli_option options[] = {
        {"index", CLI_TEXT, &t->kind, "KIND", "kind of index to test"},
        {"seeds", CLI_RANGE, f.seeds, "FIRST..LAST", "seeds to explore; one number replays that seed (1..100)"},
        {"clients", CLI_NUMBER, &f.clients, "N", "number of clients (4)"},
        {"compute-nodes", CLI_NUMBER, &f.compute_nodes, "N",
         "number of compute nodes; a crash ends one, and one always survives (2)"},
        {"memory-nodes", CLI_NUMBER, &f.memory_nodes, "N", "number of memory nodes (2)"},
        {"ops", CLI_NUMBER, &t->ops, "N", "operations per seed, over all clients (0: 200, with some seeds up to 1600)"},
        {"depth", CLI_NUMBER, &f.depth, "N", "operations in flight per client (0: 1, with every third seed 4)"},
        {"key-space", CLI_NUMBER, &t->key_space, "N",
         "number of keys (0: 8, every fourth seed 100, some seeds 3 to 1000)"},
        {"keys", CLI_TEXT, &t->keys, "u64|email|prefix", "type of the keys (u64)"},
        {"value-size", CLI_RANGE_BYTES, t->value_bytes, "N|A..B", "size of a value in bytes (8..200)"},
        {"faults", CLI_TEXT, &f.faults, "LIST", "faults to inject: tear, reorder, stall, crash; or none, or all (all)"},
        {"atomic-bytes", CLI_NUMBER, &f.atomic_bytes, "8|16|64", "the unit at which READs and WRITEs tear (64)"},
        {"masked-cas", CLI_SWITCH, &f.masked_cas, "on|off", "the fabric has masked CAS (on)"},
        {"reads-in-order", CLI_SWITCH, &f.reads_in_order, "on|off", "the fabric executes READs in order (on)"},
        {"questions", CLI_SWITCH, &f.questions, "on|off",
         "registration and fencing of clients take messages, as over a network; memory nodes fall silent and restart "
         "(off)"},
        {"atomics-in-order", CLI_SWITCH, &f.in_order, "on|off", "the fabric executes atomics in order (off)"},
        {"options", CLI_TEXT, &t->options, "LIST",
         "options of the index: name=value,.. (tiny tables or the defaults, depending on the seed)"},
        {"rdwc", CLI_SWITCH, &f.rdwc, "on|off", "merge concurrent operations on one key (on, except for some seeds)"},
        {"churn", CLI_SWITCH, &f.churn, "on|off",
         "open and close sessions, indexes and compute nodes, and collect leaked memory (on)"},
        {"scans", CLI_SWITCH, &f.scans, "on|off", "scans among the operations (on, if the kind has scans)"},
        {"cache", CLI_BYTES, &t->cache_bytes, "SIZE", "cache of a compute node (1M)"},
        {"pool-size", CLI_BYTES, &t->pool_bytes, "SIZE", "far memory, over all memory nodes (16M)"},
        {"history", CLI_TEXT, &f.history, "FILE", "writes one JSON object per operation"},
        {"trace", CLI_TEXT, &f.trace, "FILE", "writes the trace of verbs"},
        {"jobs", CLI_NUMBER, &f.jobs, "N", "number of parallel processes (1)"},
        {"verbose", CLI_FLAG, &t->verbose, NULL, "one line per seed, with the hash of its trace"},
        {"coverage", CLI_FLAG, &f.coverage, NULL, "prints how often each named point of the code was reached"},
        {NULL, CLI_FLAG, NULL, NULL, NULL},
    };
    static const char notes[] =
        "Every history is checked for linearizability of each key and for the scan rule, the index for a correct "
        "structure,\nand the pool for leaked memory. The same options and one seed repeat a run byte for byte. Exit "
        "status 0 only\nif no error was found.\n";
    bool help;
    int err = cli_parse(argc, argv, "torture --index KIND [OPTIONS]", options, notes, NULL, &help);
    if (err || help)
        return err;
    if ((err = check_flags(&f)) || (err = open_file(f.history, &t->history)) || (err = open_file(f.trace, &t->trace)) ||
        (err = open_coverage(&f)))
        return err;
    far_torture_result sum = {0};
    err = f.jobs > 1 ? run_jobs(&f, &sum) : run_inline(&f, &sum);
    cli_progress_end();
    int unwritten = close_file(t->history) | close_file(t->trace);
    err = err ? err : unwritten;
    show_result(&f, &sum);
    munmap(f.point_counts, (far_coverage_points() + 1) * sizeof(*f.point_counts));
    return err ? err : sum.violations || sum.problems || sum.gave_up ? CLI_NOT_FOUND : CLI_DONE;
}
