/* The client registry (clients.h): sessions register and unregister here, any client confirms here that another one has
 * failed, and the collector frees the ids of failed sessions. */
#include "base/error.h"
#include "pool/handle.h"
#include "pool/report.h"
#include "task/progress.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define ENTRIES_PER_READ 64 /* number of registry entries that one READ reads */
/* the same for a READ of the whole registry, most of which is unused */
#define ENTRIES_PER_LONG_READ 512
#define GENERATION_LAST       0xffffu


typedef int (*entry_visit)(far_task *t, void *ctx, unsigned id, const far_client *client);


static int visit_entries(far_task *t, unsigned high, unsigned per_read, entry_visit each, void *ctx) {
    int err = 0;
    far_scratch_mark mark = far_scratch_here(t);
    far_client *chunk = far_scratch(t, per_read * sizeof(*chunk));
    if (!chunk)
        return far_fail(FAR_ERR_NO_MEMORY, "not enough local memory to read the client registry");
    for (unsigned first = 1; first <= high && err == 0; first += per_read) {
        unsigned count = high - first + 1 < per_read ? high - first + 1 : per_read;
        far_read(t, far_client_entry(first), chunk, count * sizeof(*chunk));
        err = far_wait(t);
        for (unsigned i = 0; i < count && err == 0; i++)
            err = each(t, ctx, first + i, &chunk[i]);
    }
    far_scratch_back(t, mark);
    return err;
}


/* Raises the number of used entries to at least `id`. This happens before the entry of that id becomes live, because
 * scans of the registry must not miss the entry; otherwise the epoch could advance past the pins of this client. */
static int raise_slots_high(far_task *t, unsigned id, unsigned high) {
    uint64_t seen = high, old;
    while (seen < id) {
        int err = far_cas_word(t, far_addr_make(0, FAR_SUPER_SLOTS_HIGH), seen, id, &old);
        if (err < 0)
            return err;
        if (old == seen)
            break;
        seen = old;
    }
    return 0;
}


/* Visits all entries, whatever the number of used entries says. */
static int visit_all_entries(far_task *t, entry_visit each, void *ctx) {
    return visit_entries(t, far_task_pool(t)->geometry.session_slots, ENTRIES_PER_LONG_READ, each, ctx);
}


/* Reads the number of used entries. A damaged number that is too large only makes scans longer. If it is below the id of
 * a session of this handle, other clients may not see that session and its pins. */
static int read_slots_high(far_task *t, unsigned *high) {
    const far_session *own = far_task_pool(t)->team.own;
    const unsigned slots = far_task_pool(t)->geometry.session_slots;
    uint64_t word;
    int err = far_read_word(t, far_addr_make(0, FAR_SUPER_SLOTS_HIGH), &word);
    *high = word < slots ? (unsigned)word : slots;
    if (err == 0 && (*high < t->session->id || (own && *high < own->id)))
        err = far_fail(FAR_ERR_CORRUPT,
                       "the number of used session ids is damaged, because it does not include client %u",
                       t->session->id);
    return err;
}


int far_clients_each(far_task *t, entry_visit each, void *ctx) {
    unsigned high;
    int err = read_slots_high(t, &high);
    return err < 0 ? err : visit_entries(t, high, ENTRIES_PER_READ, each, ctx);
}


/* Sets the session's id and generation. Other threads of the handle read both fields under the lock of the session
 * list. */
static void set_session_identity(far_session *s, unsigned id, unsigned generation) {
    pthread_mutex_lock(&s->pool->team.lock);
    s->id = id;
    s->generation = generation;
    pthread_mutex_unlock(&s->pool->team.lock);
}


/* Sets words 1 to 7 of a free entry to zero when the entry is claimed. These words are zero unless they were damaged. A
 * damaged word 1 would count as a pin and would hold up the epoch for ever. */
static int clear_stray_words(far_task *t, unsigned id, const far_client *client) {
    static const far_client none;
    const size_t first = offsetof(far_client, pin);
    if (memcmp((const char *)client + first, (const char *)&none + first, sizeof(none) - first) == 0)
        return 0;
    far_write(t, far_client_entry(id) + first, (const char *)&none + first, sizeof(none) - first);
    return far_wait(t);
}


/* Claims a free entry for the task's session. Returns 1 if the session owns the id now, 0 if another session was
 * faster. The pair {id, generation} is registered with the fabric before the CAS, because other clients may check its
 * liveness as soon as they can read it. */
static int claim_entry(far_task *t, unsigned id, const far_client *client, unsigned handle, unsigned high) {
    far_session *s = t->session;
    uint64_t word = client->word;
    unsigned generation = far_client_generation_of(word) + 1;
    assert(id > 0 && id <= far_task_pool(t)->geometry.session_slots && generation <= GENERATION_LAST);
    assert(s->id == 0); /* a session gets an id at most once */
    int err = far_control_send(t, FAR_CONTROL_CLAIM, id, generation);
    if (err == FAR_ERR_BUSY)
        return 0;
    if (err == 0)
        err = raise_slots_high(t, id, high);
    uint64_t old, live = far_client_pack(FAR_CLIENT_LIVE, generation, handle ? handle : id);
    if (err == 0)
        err = far_cas_word(t, far_client_entry(id), word, live, &old);
    if (err < 0)
        return err;
    /* Another session owns the pair {id, generation} now. This registration with the fabric is cancelled, so that
     * fencing the other session does not fence ours. */
    if (old != word) {
        err = far_control_send(t, FAR_CONTROL_CLAIM, 0, 0);
        return err < 0 ? err : 0;
    }
    set_session_identity(s, id, generation);
    err = clear_stray_words(t, id, client);
    return err < 0 ? err : 1;
}


typedef struct registration {
    unsigned handle, high;
} registration;


static bool is_claimable(uint64_t word) {
    return far_client_state_of(word) == FAR_CLIENT_FREE && far_client_generation_of(word) < GENERATION_LAST;
}


static int try_used_entry(far_task *t, void *ctx, unsigned id, const far_client *client) {
    registration *r = ctx;
    r->high = id;
    return is_claimable(client->word) ? claim_entry(t, id, client, r->handle, id) : 0;
}


/* Tries the entries that no session has used yet, in ascending order. */
static int try_new_entries(far_task *t, registration *r) {
    unsigned slots = far_task_pool(t)->geometry.session_slots;
    for (unsigned id = r->high + 1; id <= slots; id++) {
        far_client client;
        far_read(t, far_client_entry(id), &client, sizeof(client));
        int err = far_wait(t);
        if (err == 0 && is_claimable(client.word))
            err = claim_entry(t, id, &client, r->handle, id - 1);
        if (err != 0)
            return err;
    }
    return far_fail(FAR_ERR_BUSY, "all %u session ids of the pool are in use: close a session or evict a client",
                    slots);
}


/* Checks that the handle's system session is still live, after a further session of the handle has registered. If the
 * system session was declared failed, a collection may have freed its id already, and the pins that the handle
 * publishes in that entry would not protect this session. This check follows the registration, so a client that
 * declares the system session failed later finds this session live, and leaves the handle's entry in use. */
static int check_handle_is_live(far_task *t, unsigned handle) {
    uint64_t word;
    int err = far_read_word(t, far_client_entry(handle), &word);
    if (err < 0)
        return err;
    const far_session *own = far_task_pool(t)->team.own;
    if (word == far_client_pack(FAR_CLIENT_LIVE, own->generation, handle))
        return 0;
    far_client_unregister(t);
    return far_fail(FAR_ERR_FENCED,
                    "this pool handle was declared failed by another client: close it and open the pool again");
}


int far_client_register(far_task *t, unsigned handle) {
    registration r = {handle, 0};
    int err = far_clients_each(t, try_used_entry, &r);
    if (err == 0)
        err = try_new_entries(t, &r);
    if (err < 0)
        return err;
    return handle ? check_handle_is_live(t, handle) : 0;
}


/* Frees an entry. No other client writes to the entry at this time, because either the session is our own and lives, or
 * it is fenced and this task belongs to the only collector. */
static int free_entry(far_task *t, unsigned id, uint64_t word) {
    static const uint64_t zeros[FAR_CLIENT_BYTES / 8 - 1];
    uint64_t old;
    assert(far_client_state_of(word) != FAR_CLIENT_FREE);
    far_write(t, far_client_entry(id) + 8, zeros, sizeof(zeros));
    int err = far_wait(t);
    if (err == 0)
        err = far_cas_word(t, far_client_entry(id), word,
                           far_client_pack(FAR_CLIENT_FREE, far_client_generation_of(word), 0), &old);
    if (err == 0 && old != word)
        err = far_fail(FAR_ERR_FENCED,
                       "session %u was declared failed by another client: close it and open another one", id);
    return err;
}


int far_client_unregister(far_task *t) {
    far_session *s = t->session;
    if (s->id == 0)
        return 0;
    uint64_t word;
    int err = far_read_word(t, far_client_entry(s->id), &word);
    if (err == 0 && (far_client_state_of(word) != FAR_CLIENT_LIVE || far_client_generation_of(word) != s->generation))
        err = far_fail(FAR_ERR_FENCED,
                       "session %u was declared failed by another client: close it and open another one", s->id);
    if (err == 0)
        err = free_entry(t, s->id, word);
    if (err == 0) {
        set_session_identity(s, 0, 0);
        s->conn->leaves = true;
    }
    return err;
}


int far_client_confirm_failed_pinned(far_task *t, unsigned id, unsigned generation) {
    far_session *s = t->session;
    if (id == 0 || id > far_task_pool(t)->geometry.session_slots)
        return 1;
    if (id == s->id && (generation == s->generation || generation == FAR_ANY_GENERATION))
        return s->lost;
    uint64_t word, old;
    int err = far_read_word(t, far_client_entry(id), &word);
    if (err < 0)
        return err;
    unsigned living = far_client_generation_of(word);
    if (far_client_state_of(word) != FAR_CLIENT_LIVE || (generation != FAR_ANY_GENERATION && generation != living))
        return 1;
    int dead = far_control_send(t, FAR_CONTROL_HAS_FAILED, id, living);
    if (dead <= 0 || far_task_fabric(t)->reads_only)
        return dead;
    /* the loss counter is raised before the entry is marked as fenced, so that the loss is not forgotten if this client
     * fails in between */
    far_faa(t, far_addr_make(0, FAR_SUPER_LOSSES), 1, NULL);
    err = far_wait(t);
    if (err == 0)
        err = far_cas_word(t, far_client_entry(id), word,
                           far_client_pack(FAR_CLIENT_FENCED, living, far_client_handle_of(word)), &old);
    if (err < 0)
        return err;
    if (old == word)
        far_pool_wake(far_task_pool(t));
    return 1;
}


int far_client_confirm_failed(far_task *t, unsigned id, unsigned generation) {
    int dead = far_client_confirm_failed_pinned(t, id, generation);
    /* the other client lives and may work without a pin, so the caller must not take the lack of changes for corruption
     */
    if (dead == 0 && id != t->session->id)
        far_progress_reset(t);
    return dead;
}


static int confirm_liveness(far_task *t, void *ctx, unsigned id, const far_client *client) {
    (void)ctx;
    if (far_client_state_of(client->word) != FAR_CLIENT_LIVE || id == far_task_client(t))
        return 0;
    int dead = far_client_confirm_failed(t, id, far_client_generation_of(client->word));
    return dead < 0 ? dead : 0;
}


int far_clients_check_liveness(far_task *t) {
    return far_clients_each(t, confirm_liveness, NULL);
}


/* ---- Checks and repairs of the registry ---- */

static int find_last_used(far_task *t, void *ctx, unsigned id, const far_client *client) {
    (void)t;
    if (client->word)
        *(unsigned *)ctx = id;
    return 0;
}


/* The entries are read before the word, because a client raises the word before its entry becomes live. A repair never
 * excludes an id that a new client may be claiming at this moment: it raises a number that is too small, and it replaces
 * one that is too large by the number of all ids. */
int far_clients_check_used(far_task *t, bool repair, far_report *report) {
    const far_addr at = far_addr_make(0, FAR_SUPER_SLOTS_HIGH);
    const unsigned slots = far_task_pool(t)->geometry.session_slots;
    unsigned last = 0;
    uint64_t word, old;
    int err = visit_all_entries(t, find_last_used, &last);
    if (err == 0)
        err = far_read_word(t, at, &word);
    if (err < 0 || (word >= last && word <= slots))
        return err;
    if (repair)
        return word < last ? raise_slots_high(t, last, (unsigned)word) : far_cas_word(t, at, word, slots, &old);
    far_report_problem(report, "the number of used session ids is %llu, but %u ids were used, and the pool has %u",
                       (unsigned long long)word, last, slots);
    return 0;
}


/* Returns whether the id belongs to an open session of this handle. */
static bool is_own_session(far_session_list *team, unsigned id) {
    pthread_mutex_lock(&team->lock);
    bool own = id == team->own->id && !team->own->lost;
    for (const far_session *s = team->first; s && !own; s = s->next)
        own = s->id == id && !s->lost;
    pthread_mutex_unlock(&team->lock);
    return own;
}


static int note_other_client(far_task *t, void *ctx, unsigned id, const far_client *client) {
    far_other_clients *others = ctx;
    char words[FAR_CLIENT_DESCRIPTION];
    if (far_client_state_of(client->word) != FAR_CLIENT_LIVE || is_own_session(&far_task_pool(t)->team, id))
        return 0;
    unsigned generation = far_client_generation_of(client->word);
    int dead = far_client_confirm_failed(t, id, generation);
    if (dead != 0)
        return dead < 0 ? dead : 0;
    size_t used = strlen(others->names);
    others->count++;
    /* the sessions of a handle belong to one process, so only system sessions are named if there are any */
    if (used > 0 && far_client_handle_of(client->word) != id)
        return 0;
    far_client_describe(t, id, generation, words);
    snprintf(others->names + used, sizeof(others->names) - used, "%s%s", used ? ", " : "", words);
    return 0;
}


int far_clients_find_others(far_task *t, far_other_clients *others) {
    *others = (far_other_clients){0};
    return visit_all_entries(t, note_other_client, others);
}


static int count_live(far_task *t, void *ctx, unsigned id, const far_client *client) {
    (void)t, (void)id;
    *(unsigned *)ctx += far_client_state_of(client->word) == FAR_CLIENT_LIVE;
    return 0;
}


int far_clients_live(far_task *t, unsigned *count) {
    *count = 0;
    return far_clients_each(t, count_live, count);
}


/* Visitor of far_clients_each. Returns 1 if the session of this entry belongs to the handle and lives. */
static int find_live_session(far_task *t, void *ctx, unsigned id, const far_client *client) {
    if (far_client_state_of(client->word) != FAR_CLIENT_LIVE || far_client_handle_of(client->word) != *(unsigned *)ctx)
        return 0;
    int dead = far_client_confirm_failed(t, id, far_client_generation_of(client->word));
    return dead < 0 ? dead : !dead;
}


/* The system session is checked first. Once it is marked as failed, no further session of the handle can register
 * (check_handle_is_live), so the scan that follows finds all sessions of the handle. In the opposite order the scan
 * could miss a session that is just being opened. */
int far_handle_confirm_failed(far_task *t, unsigned handle) {
    int dead = far_client_confirm_failed(t, handle, FAR_ANY_GENERATION);
    if (dead <= 0)
        return dead;
    int lives = far_clients_each(t, find_live_session, &handle);
    return lives < 0 ? lives : !lives;
}


int far_client_free(far_task *t, unsigned id, unsigned generation) {
    uint64_t word;
    int err = far_read_word(t, far_client_entry(id), &word);
    if (err < 0 || far_client_state_of(word) != FAR_CLIENT_FENCED ||
        (generation != FAR_ANY_GENERATION && generation != far_client_generation_of(word)))
        return err < 0 ? err : 1;
    int gone = far_client_handle_of(word) == id ? far_handle_confirm_failed(t, id) : 1;
    if (gone <= 0)
        return gone;
    err = free_entry(t, id, word);
    return err < 0 ? err : 1;
}


int64_t far_client_process(far_task *t, unsigned id, unsigned generation) {
    const far_fabric_ops *ops = far_task_fabric(t)->ops;
    return ops->process_of ? ops->process_of(t->session->conn, id, generation) : 0;
}


void far_client_describe(far_task *t, unsigned id, unsigned generation, char words[FAR_CLIENT_DESCRIPTION]) {
    int64_t process = far_client_process(t, id, generation);
    if (process > 0)
        snprintf(words, FAR_CLIENT_DESCRIPTION, "client %u (process %lld)", id, (long long)process);
    else
        snprintf(words, FAR_CLIENT_DESCRIPTION, "client %u", id);
}
