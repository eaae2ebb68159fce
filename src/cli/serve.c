/* farindex serve: a memory node's daemon, and a look at one. */
#include "base/parse.h"
#include "cli/cli.h"
#include "fabric/net/link.h"
#include "fabric/net/memory.h"
#include "fabric/net/server.h"
#include "pool/refuted.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define LEASE_DEFAULT "10s"
#define STATUS_MS     10000
#define CLI_SERVE     3 /* exit status: it could not serve, or be looked at */

typedef struct serve_options {
    const char *listen, *memory, *secret, *cert, *key, *ca, *lease, *status, *fabric;
    uint64_t size, threads;
    bool insecure, chaos, json;
} serve_options;

static net_server *running;


static void end_serving(int signal) {
    (void)signal;
    net_server_stop(running);
}


static int failed(void) {
    cli_failed("serve: %s", far_last_error());
    return CLI_SERVE;
}


static net_tls_config tls_of(const serve_options *o) {
    bool told = o->cert || o->key || o->ca || o->insecure; /* as in a URI: then the environment is not asked */
    const char *secret = o->secret ? o->secret : told ? NULL : getenv("FARINDEX_SECRET");
    return (net_tls_config){secret && *secret ? secret : NULL, o->cert, o->key, o->ca};
}


/* ---- A look at one ---- */

static void print_state(const net_state *s, const char *where) {
    char bytes[FAR_SIZE_TEXT], refuted[FAR_REFUTED_TEXT];
    printf("%s: farindex %.16s, %s of memory, %u threads, %" PRIu64 " restarts\n", where, s->library,
           far_format_size(s->bytes, bytes), s->threads, s->restarts);
    if (s->pool)
        printf("pool %016" PRIx64 ", node %u of %u%s\n", s->pool, s->node, s->nodes,
               s->complete ? "" : " (not complete)");
    else
        printf("of no pool yet\n");
    if (s->refuted)
        printf("a self-test has refuted %s\n", far_refuted_text((unsigned)s->refuted, refuted));
    printf("%" PRIu64 " sessions, %" PRIu64 " clients came, %" PRIu64 " sessions ended or cut, %" PRIu64
           " connections refused\n",
           s->sessions, s->comes, s->cuts, s->refused);
    printf("%" PRIu64 " batches, %" PRIu64 " verbs, %" PRIu64 " bytes in, %" PRIu64 " bytes out\n", s->batches,
           s->verbs, s->bytes_in, s->bytes_out);
}


static void print_state_as_json(const net_state *s, const char *where) {
    char refuted[FAR_REFUTED_TEXT];
    printf("{\"address\": ");
    cli_json_string(stdout, where);
    printf(", \"version\": ");
    cli_json_string(stdout, s->library);
    printf(", \"bytes\": %" PRIu64 ", \"pool\": \"%016" PRIx64 "\", \"node\": %u, \"nodes\": %u, \"complete\": %s",
           s->bytes, s->pool, s->node, s->nodes, s->complete ? "true" : "false");
    printf(", \"instance\": \"%016" PRIx64 "\", \"restarts\": %" PRIu64 ", \"started\": %" PRIu64 ", \"threads\": %u",
           s->instance, s->restarts, s->started, s->threads);
    printf(", \"sessions\": %" PRIu64 ", \"connections\": %" PRIu64 ", \"came\": %" PRIu64 ", \"cuts\": %" PRIu64
           ", \"refused\": %" PRIu64,
           s->sessions, s->connections, s->comes, s->cuts, s->refused);
    printf(", \"batches\": %" PRIu64 ", \"verbs\": %" PRIu64 ", \"bytes_in\": %" PRIu64 ", \"bytes_out\": %" PRIu64
           ", \"refuted\": \"%s\"}\n",
           s->batches, s->verbs, s->bytes_in, s->bytes_out, far_refuted_text((unsigned)s->refuted, refuted));
}


static int show_status(const serve_options *o) {
    net_address address;
    net_link link;
    net_state state;
    char error[256];
    if (net_address_parse(o->status, strlen(o->status), &address, error, sizeof(error)) < 0)
        return cli_wrong_usage("serve", "--status: %s", error);
    net_tls_config config = tls_of(o);
    net_dial dial = {.insecure = o->insecure, .purpose = NET_FOR_LOOK, .timeout_ms = STATUS_MS};
    int err = net_tls_open(&config, false, &dial.tls);
    if (err == 0 && (err = net_links_open(&link, &address, 1, &dial)) == 0) {
        err = net_link_call(&link, &address, NET_STATUS, NULL, 0, NET_STATE, &state, sizeof(state), STATUS_MS);
        net_channel_close(&link.channel);
    }
    bool plain = !dial.tls && !config.secret && !config.cert && !config.key && !config.ca;
    net_tls_close(dial.tls);
    if (err == FAR_ERR_INVALID && plain) /* what far_last_error tells is for a URI */
        return cli_wrong_usage(
            "serve", "--status: %s is another host: give --secret FILE or certificates, or say --insecure", o->status);
    if (err < 0)
        return failed();
    state.library[sizeof(state.library) - 1] = 0;
    if (o->json)
        print_state_as_json(&state, o->status);
    else
        print_state(&state, o->status);
    return CLI_DONE;
}


/* ---- Serving ---- */

static int make_config(const serve_options *o, net_server_config *config) {
    char error[256];
    uint64_t lease;
    if (!o->listen)
        return cli_wrong_usage("serve", "--listen HOST:PORT is missing");
    if (net_address_parse(o->listen, strlen(o->listen), &config->listen, error, sizeof(error)) < 0)
        return cli_wrong_usage("serve", "--listen: %s", error);
    if (far_parse_duration(o->lease, &lease, error, sizeof(error)) < 0)
        return cli_wrong_usage("serve", "--lease: %s", error);
    if (lease < 1000000000u || lease > 3600000000000u)
        return cli_wrong_usage("serve", "--lease: 1s to 3600s, not %s", o->lease);
    if (o->threads < 1 || o->threads > 64)
        return cli_wrong_usage("serve", "--threads: 1 to 64, not %" PRIu64, o->threads);
    bool anonymous = !o->memory || strcmp(o->memory, "anonymous") == 0;
    if (anonymous && o->size == 0)
        return cli_wrong_usage("serve", "--size is missing");
    if (o->size != 0 && !net_memory_may_have(o->size))
        return cli_wrong_usage("serve", "--size: " NET_MEMORY_SIZES);
    config->rdma = strcmp(o->fabric, "rdma") == 0;
    if (!config->rdma && strcmp(o->fabric, "tcp") != 0)
        return cli_wrong_usage("serve", "--fabric: tcp or rdma, not '%s'", o->fabric);
    if (config->rdma && (!anonymous || o->chaos))
        return cli_wrong_usage("serve", anonymous ? "--chaos is for tcp: a network card runs verbs by itself"
                                                  : "--memory with --fabric rdma: what a network card was writing "
                                                    "when the daemon ended could not be finished");
    config->memory = anonymous ? NULL : o->memory;
    config->size = o->size;
    config->tls = tls_of(o);
    config->insecure = o->insecure;
    config->lease_ms = (unsigned)(lease / 1000000u);
    config->threads = (unsigned)o->threads;
    config->chaos = o->chaos;
    config->log = stderr;
    return 0;
}


static int serve(const net_server_config *config) {
    if (net_server_open(config, &running) < 0)
        return failed();
    struct sigaction action = {.sa_handler = end_serving};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    printf("ready: %s\n", net_server_address(running));
    fflush(stdout);
    int err = net_server_run(running);
    if (err < 0)
        failed();
    net_server_close(running);
    return err < 0 ? CLI_SERVE : CLI_DONE;
}


int cli_serve(int argc, char **argv) {
    serve_options o = {.lease = LEASE_DEFAULT, .threads = 1, .fabric = "tcp"};
    bool help = false;
    const cli_option options[] = {
        {"listen", CLI_TEXT, &o.listen, "HOST:PORT", "where to listen; port 0 picks one, told on the ready line"},
        {"fabric", CLI_TEXT, &o.fabric, "tcp|rdma",
         "how verbs come: as messages (default), or by an RDMA network card"},
        {"size", CLI_BYTES, &o.size, "SIZE", "bytes of the memory node"},
        {"memory", CLI_TEXT, &o.memory, "PATH",
         "a file (tmpfs, hugetlbfs) that outlives the daemon, or 'anonymous' (default)"},
        {"secret", CLI_TEXT, &o.secret, "FILE",
         "TLS with this pre-shared key (default: the file that FARINDEX_SECRET names)"},
        {"cert", CLI_TEXT, &o.cert, "FILE", "TLS with certificates: this side's"},
        {"key", CLI_TEXT, &o.key, "FILE", "... its private key"},
        {"ca", CLI_TEXT, &o.ca, "FILE", "... and who signs those of the other side"},
        {"insecure", CLI_FLAG, &o.insecure, NULL, "plain text also where others can listen"},
        {"lease", CLI_TEXT, &o.lease, "TIME", "a client whose host does not answer for so long is cut (default 10s)"},
        {"threads", CLI_NUMBER, &o.threads, "N", "threads that serve (default 1)"},
        {"chaos", CLI_FLAG, &o.chaos, NULL, "for tests: batches interleave, verbs tear between units"},
        {"status", CLI_TEXT, &o.status, "HOST:PORT", "looks at a running daemon instead"},
        {"json", CLI_FLAG, &o.json, NULL, "... and prints JSON"},
        {0},
    };
    int err = cli_parse(argc, argv, "serve --listen HOST:PORT --size SIZE [OPTIONS]", options,
                        "Pools on it: tcp://HOST:PORT,HOST:PORT, or rdma://... SIGTERM ends it with status 0; it fails "
                        "with status 3.\n",
                        NULL, &help);
    if (err || help)
        return err;
    if (o.status)
        return show_status(&o);
    net_server_config config = {0};
    err = make_config(&o, &config);
    return err ? err : serve(&config);
}
