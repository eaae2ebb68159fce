/* A client in tests with several processes (guest.h). */
#include "guest.h"
#include "client/end_client.h"


int guest_enter(guest *g, const char *uri, const char *kind) {
    memset(g, 0, sizeof(*g));
    int err = far_pool_open(uri, NULL, &g->pool);
    if (err == 0)
        err = far_session_open(g->pool, &g->session);
    if (err == 0)
        err = kind ? far_index_create(g->session, "i", kind, NULL, &g->index)
                   : far_index_open(g->session, "i", &g->index);
    return err;
}


void guest_leave(guest *g) {
    if (g->index)
        far_index_close(g->index);
    if (g->session)
        far_session_close(g->session);
    if (g->pool)
        far_pool_close(g->pool);
}


static int count_client(void *ctx, const far_client_info *client) {
    (void)client;
    ++*(unsigned *)ctx;
    return 0;
}


unsigned guest_count_live_sessions(guest *g) {
    unsigned count = 0;
    assert_true(far_pool_clients(g->session, count_client, &count) >= 0);
    return count;
}
