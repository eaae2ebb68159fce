/* `farindex serve` runs the daemon of a memory node, or queries the status of a running daemon (--status). */
#include "base/parse.h"
#include "base/text.h"
#include "fabric/memory_file.h"
#include "fabric/node/admission.h"
#include "fabric/node/memory.h"
#include "fabric/node/server.h"
#include "fabric/tcp/link.h"
#include "pool/format/fabric_record.h"
#include "tools/farindex/commands.h"
#include "tools/farindex/serve_metrics.h"

#include <inttypes.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LEASE_DEFAULT    "10s"
#define STATUS_MS        10000
#define CLI_SERVE_FAILED 3 /* exit status if the daemon could not serve, or if its status could not be queried */

typedef struct serve_options {
    const char *listen, *memory, *secret, *read_secret, *cert, *key, *ca, *lease, *status, *fabric, *log_level,
        *metrics;
    uint64_t size, threads, per_address;
    bool insecure, chaos, json, shared, overcommit;
} serve_options;

static const char *const log_levels[NET_LOG_LEVELS] = {"error", "warning", "info"};
static net_server *running;


static void stop_daemon(int signal) {
    (void)signal;
    net_server_stop(running);
}


static int report_failure(void) {
    cli_failed("serve: %s", far_last_error());
    return CLI_SERVE_FAILED;
}


static net_tls_config make_tls_config(const serve_options *o) {
    /* An option for TLS or --insecure is an explicit choice. It hides the environment variable, as it does in a URI. */
    bool is_explicit = o->cert || o->key || o->ca || o->insecure;
    const char *secret = o->secret ? o->secret : is_explicit ? NULL : getenv("FARINDEX_SECRET");
    return (net_tls_config){secret && *secret ? secret : NULL, o->cert, o->key, o->ca, o->read_secret};
}


/* ---- Querying the status ---- */

static void print_state(const net_state *s, const char *where) {
    char bytes[FAR_SIZE_TEXT], in[FAR_SIZE_TEXT], out[FAR_SIZE_TEXT], refuted[FAR_VIOLATIONS_TEXT];
    printf("%s: farindex %.16s, %s of memory, %u threads, %" PRIu64 " restarts\n", where, s->library,
           far_format_size(s->bytes, bytes), s->threads, s->restarts);
    if (s->pool)
        printf("pool %016" PRIx64 ", node %u of %u%s\n", s->pool, s->node, s->nodes,
               s->complete ? "" : " (not complete)");
    else
        printf("the node belongs to no pool yet\n");
    if (s->refuted)
        printf("guarantees that failed a self-test: %s\n", far_violations_text((unsigned)s->refuted, refuted));
    printf("%" PRIu64 " sessions, %" PRIu64 " clients since the start, %" PRIu64 " sessions ended or cut, %" PRIu64
           " connections refused\n",
           s->sessions, s->comes, s->cuts, s->refused);
    printf("%" PRIu64 " batches, %" PRIu64 " verbs, %s in, %s out\n", s->batches, s->verbs,
           far_format_size(s->bytes_in, in), far_format_size(s->bytes_out, out));
}


static void set_hex(json_t *object, const char *name, uint64_t value) {
    char digits[17];
    snprintf(digits, sizeof(digits), "%016" PRIx64, value);
    cli_json_set_text(object, name, digits);
}


static void print_state_as_json(const net_state *s, const char *where) {
    char refuted[FAR_VIOLATIONS_TEXT];
    json_t *state = cli_json_object();
    cli_json_set_text(state, "address", where);
    cli_json_set_text(state, "version", s->library);
    cli_json_set_count(state, "bytes", s->bytes);
    set_hex(state, "pool", s->pool);
    cli_json_set_count(state, "node", s->node);
    cli_json_set_count(state, "nodes", s->nodes);
    cli_json_set_bool(state, "complete", s->complete);
    set_hex(state, "instance", s->instance);
    cli_json_set_count(state, "restarts", s->restarts);
    cli_json_set_count(state, "started", s->started);
    cli_json_set_count(state, "threads", s->threads);
    cli_json_set_count(state, "sessions", s->sessions);
    cli_json_set_count(state, "connections", s->connections);
    cli_json_set_count(state, "came", s->comes);
    cli_json_set_count(state, "cuts", s->cuts);
    cli_json_set_count(state, "refused", s->refused);
    cli_json_set_count(state, "batches", s->batches);
    cli_json_set_count(state, "verbs", s->verbs);
    cli_json_set_count(state, "bytes_in", s->bytes_in);
    cli_json_set_count(state, "bytes_out", s->bytes_out);
    cli_json_set_text(state, "refuted", far_violations_text((unsigned)s->refuted, refuted));
    cli_json_print(stdout, state);
}


static int show_status(const serve_options *o) {
    net_address address;
    net_link link;
    net_state state;
    char error[256];
    if (net_address_parse(o->status, strlen(o->status), &address, error, sizeof(error)) < 0)
        return cli_wrong_usage("serve", "--status: %s", error);
    net_tls_config config = make_tls_config(o);
    net_dial_options dial = {.insecure = o->insecure, .purpose = NET_FOR_INSPECTION, .timeout_ms = STATUS_MS};
    int err = net_tls_open(&config, false, &dial.tls);
    if (err == 0 && (err = net_links_open(&link, &address, 1, &dial)) == 0) {
        err = net_link_call(&link, &address, NET_STATUS, NULL, 0, NET_STATE, &state, sizeof(state), STATUS_MS);
        net_channel_close(&link.channel);
    }
    bool plain = !dial.tls && !config.secret && !config.cert && !config.key && !config.ca;
    net_tls_close(dial.tls);
    if (err == FAR_ERR_INVALID && plain) /* the words of far_last_error() describe parameters of a URI */
        return cli_wrong_usage("serve", "--status: %s is another host; give --secret FILE, certificates, or --insecure",
                               o->status);
    if (err < 0)
        return report_failure();
    state.library[sizeof(state.library) - 1] = 0;
    far_make_printable(state.library);
    if (o->json)
        print_state_as_json(&state, o->status);
    else
        print_state(&state, o->status);
    return CLI_DONE;
}


/* ---- Serving ---- */

static int make_config(const serve_options *o, net_server_options *config) {
    char error[256];
    uint64_t lease;
    if (!o->listen)
        return cli_wrong_usage("serve", "--listen HOST:PORT is missing");
    if (net_address_parse(o->listen, strlen(o->listen), &config->listen, error, sizeof(error)) < 0)
        return cli_wrong_usage("serve", "--listen: %s", error);
    if (far_parse_duration(o->lease, &lease, error, sizeof(error)) < 0)
        return cli_wrong_usage("serve", "--lease: %s", error);
    if (lease < 1000000000u || lease > 3600000000000u)
        return cli_wrong_usage("serve", "--lease: must be within 1s..3600s, not %s", o->lease);
    if (o->threads < 1 || o->threads > 64)
        return cli_wrong_usage("serve", "--threads: must be within 1..64, not %" PRIu64, o->threads);
    bool anonymous = !o->memory || strcmp(o->memory, "anonymous") == 0;
    if (anonymous && o->size == 0)
        return cli_wrong_usage("serve", "--size is missing");
    if (o->size != 0 && !net_memory_size_is_valid(o->size))
        return cli_wrong_usage("serve", "--size: " NET_MEMORY_SIZES);
    config->rdma = strcmp(o->fabric, "rdma") == 0;
    if (!config->rdma && strcmp(o->fabric, "tcp") != 0)
        return cli_wrong_usage("serve", "--fabric: must be tcp or rdma, not '%s'", o->fabric);
    if (config->rdma && (!anonymous || o->chaos))
        return cli_wrong_usage("serve", anonymous
                                            ? "--chaos needs --fabric tcp, because a network card executes verbs itself"
                                            : "--memory excludes --fabric rdma, because WRITEs that the network card "
                                              "had not finished when the daemon ended would be lost");
    config->memory = (net_memory_options){
        .path = anonymous ? NULL : o->memory, .size = o->size, .shared = o->shared, .overcommit = o->overcommit};
    config->tls = make_tls_config(o);
    config->insecure = o->insecure;
    config->lease_ms = (unsigned)(lease / 1000000u);
    config->threads = (unsigned)o->threads;
    config->chaos = o->chaos;
    config->log = STDERR_FILENO;
    config->per_address = (unsigned)o->per_address;
    while (config->log_level < NET_LOG_LEVELS && strcmp(o->log_level, log_levels[config->log_level]) != 0)
        config->log_level++;
    if (config->log_level == NET_LOG_LEVELS)
        return cli_wrong_usage("serve", "--log-level: must be error, warning or info, not '%s'", o->log_level);
    if (o->per_address < 1 || o->per_address > 1000000)
        return cli_wrong_usage("serve", "--connections-per-address: must be within 1..1000000, not %" PRIu64,
                               o->per_address);
    return 0;
}


/* Reports the state of the daemon to systemd, if systemd started it with Type=notify (see sd_notify(3)). */
static void notify_systemd(const char *state) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = path ? strlen(path) : 0;
    if (length == 0 || length >= sizeof(address.sun_path) || (*path != '/' && *path != '@'))
        return;
    memcpy(address.sun_path, path, length);
    if (*path == '@') /* '@' denotes an abstract socket, whose address begins with a zero byte */
        address.sun_path[0] = 0;
    int sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sender < 0)
        return;
    sendto(sender, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address,
           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length));
    close(sender);
}


/* `metrics` is the address of the HTTP server, or NULL. */
static int run_daemon(const net_server_options *config, const net_address *metrics) {
    metrics_server *http = NULL;
    const char *path = config->memory.path;
    bool creates = path && access(path, F_OK) < 0;
    if (net_server_open(config, &running) < 0)
        return report_failure();
    if (creates && far_memory_file_ends_at_logout(path, geteuid(), ""))
        cli_note("%s: " FAR_ENDS_AT_LOGOUT, path);
    if (metrics && metrics_server_open(metrics, running, &http) < 0) {
        report_failure();
        net_server_close(running);
        return CLI_SERVE_FAILED;
    }
    struct sigaction action = {.sa_handler = stop_daemon};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    printf("ready: %s\n", net_server_address(running));
    if (http)
        printf("metrics: http://%s/metrics\n", metrics_server_address(http));
    fflush(stdout);
    notify_systemd("READY=1");
    int err = net_server_run(running);
    signal(SIGTERM, SIG_IGN); /* the daemon ends now, so it must not be stopped again while or after it is freed */
    signal(SIGINT, SIG_IGN);
    notify_systemd("STOPPING=1");
    if (err < 0)
        report_failure();
    metrics_server_close(http);
    net_server_close(running);
    return err < 0 ? CLI_SERVE_FAILED : CLI_DONE;
}


int cli_serve(int argc, char **argv) {
    serve_options o = {.lease = LEASE_DEFAULT,
                       .threads = 1,
                       .fabric = "tcp",
                       .log_level = "info",
                       .per_address = NET_PER_ADDRESS_DEFAULT};
    bool help = false;
    const cli_option options[] = {
        {"listen", CLI_TEXT, &o.listen, "HOST:PORT",
         "address to listen on; for port 0 the ready line names the chosen port"},
        {"fabric", CLI_TEXT, &o.fabric, "tcp|rdma",
         "verbs arrive as messages (tcp, default), or at an RDMA network card"},
        {"size", CLI_BYTES, &o.size, "SIZE", "size of the memory node"},
        {"memory", CLI_TEXT, &o.memory, "PATH",
         "a file (tmpfs, hugetlbfs) that outlives the daemon, or 'anonymous' (default)"},
        {"shared", CLI_FLAG, &o.shared, NULL, "... also if other users own, can write or can read the file"},
        {"overcommit", CLI_FLAG, &o.overcommit, NULL, "does not check that the host has the memory"},
        {"secret", CLI_TEXT, &o.secret, "FILE",
         "TLS with this pre-shared key (default: the file that FARINDEX_SECRET names)"},
        {"read-secret", CLI_TEXT, &o.read_secret, "FILE", "... and a second key, with which clients may only read"},
        {"cert", CLI_TEXT, &o.cert, "FILE", "TLS with certificates: the certificate of this side"},
        {"key", CLI_TEXT, &o.key, "FILE", "... the private key of that certificate"},
        {"ca", CLI_TEXT, &o.ca, "FILE", "... the authority that signs the certificates of the other side"},
        {"insecure", CLI_FLAG, &o.insecure, NULL, "allows connections without TLS beyond this host"},
        {"lease", CLI_TEXT, &o.lease, "TIME", "cuts a client whose host has not answered for this time (default 10s)"},
        {"threads", CLI_NUMBER, &o.threads, "N", "number of threads that serve clients (default 1)"},
        {"connections-per-address", CLI_NUMBER, &o.per_address, "N",
         "largest number of connections from one address (default 1024)"},
        {"log-level", CLI_TEXT, &o.log_level, "LEVEL",
         "writes lines up to this level to stderr: error, warning, info (default)"},
        {"metrics", CLI_TEXT, &o.metrics, "HOST:PORT",
         "serves metrics for Prometheus at http://HOST:PORT/metrics, without TLS"},
        {"chaos", CLI_FLAG, &o.chaos, NULL, "for tests: interleaves batches and tears verbs between tearing granules"},
        {"status", CLI_TEXT, &o.status, "HOST:PORT", "prints the status of a running daemon instead"},
        {"json", CLI_FLAG, &o.json, NULL, "... as JSON"},
        {0},
    };
    int err = cli_parse(argc, argv, "serve --listen HOST:PORT --size SIZE [OPTIONS]", options,
                        "The URI of a pool on memory nodes is tcp://HOST:PORT,HOST:PORT or rdma://... SIGTERM ends the "
                        "daemon with status "
                        "0; a failure ends it\nwith status 3.\n",
                        NULL, &help);
    if (err || help)
        return err;
    if (o.status)
        return show_status(&o);
    net_server_options config = {0};
    net_address metrics;
    char error[256];
    err = make_config(&o, &config);
    if (err == 0 && o.metrics && net_address_parse(o.metrics, strlen(o.metrics), &metrics, error, sizeof(error)) < 0)
        err = cli_wrong_usage("serve", "--metrics: %s", error);
    return err ? err : run_daemon(&config, o.metrics ? &metrics : NULL);
}
