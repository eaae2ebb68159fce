/* Small services of tasks: time, random numbers, counters, and properties of the session and the pool (task.h). */
#include "task/session.h"


uint64_t far_now(const far_task *t) {
    return far_host_now(t->session->conn->fabric->host);
}


uint64_t far_rtt(const far_task *t) {
    return t->session->conn->fabric->rtt;
}


uint64_t far_task_random(far_task *t) {
    return far_random_next(&t->session->random);
}


void far_task_reached(far_task *t, far_point_site *site) {
    far_conn *conn = t->session->conn;
    if (!conn->fabric->watch)
        return;
    atomic_fetch_add_explicit(&site->met, 1, memory_order_relaxed);
    conn->fabric->watch->point(conn, site->name, t->label);
}


void far_count_lock_retry(far_task *t) {
    t->stats->lock_retries++;
    far_count_retry(t);
}


void far_count_stale(far_task *t) {
    t->stats->stale_hits++;
}


void far_note_added(far_task *t, bool added) {
    t->added = added;
}


void far_count_cache(far_task *t, bool hit) {
    if (hit)
        t->stats->cache_hits++;
    else
        t->stats->cache_misses++;
}


void far_count_combined(far_task *t, bool write) {
    if (write)
        t->stats->combined_writes++;
    else
        t->stats->delegated_reads++;
}


far_session *far_task_session(const far_task *t) {
    return t->session;
}


far_pool *far_task_pool(const far_task *t) {
    return t->session->pool;
}


far_fabric *far_task_fabric(const far_task *t) {
    return t->session->conn->fabric;
}


unsigned far_task_nodes(const far_task *t) {
    return far_task_fabric(t)->nodes;
}


bool far_task_reaches(const far_task *t, far_addr addr, uint64_t bytes) {
    return far_fabric_in_range(far_task_fabric(t), addr, bytes);
}


unsigned far_task_number(const far_task *t) {
    return t->number;
}


unsigned far_task_client(const far_task *t) {
    return t->session->id;
}


unsigned far_task_generation(const far_task *t) {
    return t->session->generation;
}


const far_capabilities *far_task_capabilities(const far_task *t) {
    return t->session->capabilities;
}
