/* The client registry. */
#include "base/error.h"
#include "pool/handle.h"
#include "task/patience.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define CHUNK           64 /* entries per READ */
#define GENERATION_LAST 0xffffu


typedef int (*entry_visit)(far_task *t, void *ctx, unsigned id, const far_client *client);


static int each_entry(far_task *t, unsigned high, entry_visit each, void *ctx) {
    int err = 0;
    far_scratch_mark mark = far_scratch_here(t);
    far_client *chunk = far_scratch(t, CHUNK * sizeof(*chunk));
    if (!chunk)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to read the client registry");
    for (unsigned first = 1; first <= high && err == 0; first += CHUNK) {
        unsigned count = high - first + 1 < CHUNK ? high - first + 1 : CHUNK;
        far_read(t, far_client_entry(first), chunk, count * sizeof(*chunk));
        err = far_wait(t);
        for (unsigned i = 0; i < count && err == 0; i++)
            err = each(t, ctx, first + i, &chunk[i]);
    }
    far_scratch_back(t, mark);
    return err;
}


/* Scans see the entry before it is live: the epoch must not pass a client that it does not know of. */
static int raise_high(far_task *t, unsigned id, unsigned high) {
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


static int note_used(far_task *t, void *ctx, unsigned id, const far_client *client) {
    unsigned *last = ctx;
    (void)t;
    if (client->word && id > *last)
        *last = id;
    return 0;
}


/* How many entries were ever used cannot be `word`: it was damaged, and nobody would see who lies beyond. It becomes the
 * last entry that was used, in *high, which is at least what it is now. */
static int mend_high(far_task *t, uint64_t word, unsigned *high) {
    uint64_t old;
    int err = each_entry(t, far_task_pool(t)->geometry.session_slots, note_used, high);
    return err < 0 ? err : far_cas_word(t, far_addr_make(0, FAR_SUPER_SLOTS_HIGH), word, *high, &old);
}


/* Entries of sessions that know their id are counted. */
static int read_high(far_task *t, unsigned *high) {
    const far_session *own = far_task_pool(t)->team.own;
    uint64_t word;
    int err = far_read_word(t, far_addr_make(0, FAR_SUPER_SLOTS_HIGH), &word);
    *high = own && own->id > t->session->id ? own->id : t->session->id;
    if (err < 0)
        return err;
    if (word < *high || word > far_task_pool(t)->geometry.session_slots)
        return mend_high(t, word, high);
    *high = (unsigned)word;
    return 0;
}


int far_clients_each(far_task *t, entry_visit each, void *ctx) {
    unsigned high;
    int err = read_high(t, &high);
    return err < 0 ? err : each_entry(t, high, each, ctx);
}


/* Other threads of the handle look at the session's name under the lock. */
static void name_session(far_session *s, unsigned id, unsigned generation) {
    pthread_mutex_lock(&s->pool->team.lock);
    s->id = id;
    s->generation = generation;
    pthread_mutex_unlock(&s->pool->team.lock);
}


/* All but the first word of a free entry is zero, unless it was damaged: a stray pin would stop the epoch for ever. */
static int clear_stray_words(far_task *t, unsigned id, const far_client *client) {
    static const far_client none;
    const size_t first = offsetof(far_client, pin);
    if (memcmp((const char *)client + first, (const char *)&none + first, sizeof(none) - first) == 0)
        return 0;
    far_write(t, far_client_entry(id) + first, (const char *)&none + first, sizeof(none) - first);
    return far_wait(t);
}


/* 1: the id is ours; 0: somebody else has it now. The fabric knows the pair before others can read it. */
static int claim(far_task *t, unsigned id, const far_client *client, unsigned handle, unsigned high) {
    far_session *s = t->session;
    uint64_t word = client->word;
    unsigned generation = far_client_generation_of(word) + 1;
    assert(id > 0 && id <= far_task_pool(t)->geometry.session_slots && generation <= GENERATION_LAST);
    assert(s->id == 0); /* a session has one id in its life */
    int err = far_ask(t, FAR_ASK_CLAIM, id, generation);
    if (err == FAR_ERR_BUSY)
        return 0;
    if (err == 0)
        err = raise_high(t, id, high);
    uint64_t old, live = far_client_pack(FAR_CLIENT_LIVE, generation, handle ? handle : id);
    if (err == 0)
        err = far_cas_word(t, far_client_entry(id), word, live, &old);
    if (err < 0)
        return err;
    if (old != word) { /* the pair is another's: who declares that one dead must not mean us */
        err = far_ask(t, FAR_ASK_CLAIM, 0, 0);
        return err < 0 ? err : 0;
    }
    name_session(s, id, generation);
    err = clear_stray_words(t, id, client);
    return err < 0 ? err : 1;
}


typedef struct registration {
    unsigned handle, high;
} registration;


static bool is_claimable(uint64_t word) {
    return far_client_state_of(word) == FAR_CLIENT_FREE && far_client_generation_of(word) < GENERATION_LAST;
}


static int try_entry(far_task *t, void *ctx, unsigned id, const far_client *client) {
    registration *r = ctx;
    r->high = id;
    return is_claimable(client->word) ? claim(t, id, client, r->handle, id) : 0;
}


/* Entries that nobody used yet, from the first on. */
static int try_new_entries(far_task *t, registration *r) {
    unsigned slots = far_task_pool(t)->geometry.session_slots;
    for (unsigned id = r->high + 1; id <= slots; id++) {
        far_client client;
        far_read(t, far_client_entry(id), &client, sizeof(client));
        int err = far_wait(t);
        if (err == 0 && is_claimable(client.word))
            err = claim(t, id, &client, r->handle, id - 1);
        if (err != 0)
            return err;
    }
    return far_fail(FAR_ERR_BUSY, "all %u session ids of the pool are taken", slots);
}


/* A handle whose own session was declared dead may be swept already, its id given to another: then nothing protects our
 * pins. Read after we are live: whoever declares it dead later finds us, and leaves the handle's word alone. */
static int check_handle(far_task *t, unsigned handle) {
    uint64_t word;
    int err = far_read_word(t, far_client_entry(handle), &word);
    if (err < 0)
        return err;
    const far_session *own = far_task_pool(t)->team.own;
    if (word == far_client_pack(FAR_CLIENT_LIVE, own->generation, handle))
        return 0;
    far_client_unregister(t);
    return far_fail(FAR_ERR_FENCED, "this pool handle was declared dead: close it and open the pool again");
}


int far_client_register(far_task *t, unsigned handle) {
    registration r = {handle, 0};
    int err = far_clients_each(t, try_entry, &r);
    if (err == 0)
        err = try_new_entries(t, &r);
    if (err < 0)
        return err;
    return handle ? check_handle(t, handle) : 0;
}


/* Nobody else writes here: the session is alive and ours, or it is dead and fenced and we are the only sweeper. */
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
        err = far_fail(FAR_ERR_FENCED, "session %u was declared dead", id);
    return err;
}


int far_client_unregister(far_task *t) {
    far_session *s = t->session;
    if (s->id == 0)
        return 0;
    uint64_t word;
    int err = far_read_word(t, far_client_entry(s->id), &word);
    if (err == 0 && (far_client_state_of(word) != FAR_CLIENT_LIVE || far_client_generation_of(word) != s->generation))
        err = far_fail(FAR_ERR_FENCED, "session %u was declared dead", s->id);
    if (err == 0)
        err = free_entry(t, s->id, word);
    if (err == 0) {
        name_session(s, 0, 0);
        s->conn->leaves = true;
    }
    return err;
}


int far_is_dead_pinned(far_task *t, unsigned id, unsigned generation) {
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
    int dead = far_ask(t, FAR_ASK_DEAD, id, living);
    if (dead <= 0)
        return dead;
    far_faa(t, far_addr_make(0, FAR_SUPER_WANTED), 1, NULL); /* first: should we die too, a sweep is wanted already */
    err = far_wait(t);
    if (err == 0)
        err = far_cas_word(t, far_client_entry(id), word,
                           far_client_pack(FAR_CLIENT_DEAD, living, far_client_handle_of(word)), &old);
    if (err < 0)
        return err;
    if (old == word)
        far_pool_wake(far_task_pool(t));
    return 1;
}


int far_is_dead(far_task *t, unsigned id, unsigned generation) {
    int dead = far_is_dead_pinned(t, id, generation);
    if (dead == 0 && id != t->session->id) /* the living may work unpinned: that nothing changes is no sign of damage */
        far_patience_forget(t);
    return dead;
}


static int ask_for_life(far_task *t, void *ctx, unsigned id, const far_client *client) {
    (void)ctx;
    if (far_client_state_of(client->word) != FAR_CLIENT_LIVE || id == far_task_client(t))
        return 0;
    int dead = far_is_dead(t, id, far_client_generation_of(client->word));
    return dead < 0 ? dead : 0;
}


int far_clients_ask(far_task *t) {
    return far_clients_each(t, ask_for_life, NULL);
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


/* 1: this session of the handle lives. */
static int look_for_life(far_task *t, void *ctx, unsigned id, const far_client *client) {
    if (far_client_state_of(client->word) != FAR_CLIENT_LIVE || far_client_handle_of(client->word) != *(unsigned *)ctx)
        return 0;
    int dead = far_is_dead(t, id, far_client_generation_of(client->word));
    return dead < 0 ? dead : !dead;
}


/* First its own session: once that one is marked as dead no other can join (check_handle), so those that are to be
 * found are there. A look at the others before that could miss one that is just opening. */
int far_client_handle_gone(far_task *t, unsigned handle) {
    int dead = far_is_dead(t, handle, FAR_ANY_GENERATION);
    if (dead <= 0)
        return dead;
    int lives = far_clients_each(t, look_for_life, &handle);
    return lives < 0 ? lives : !lives;
}


int far_client_free(far_task *t, unsigned id, unsigned generation) {
    uint64_t word;
    int err = far_read_word(t, far_client_entry(id), &word);
    if (err < 0 || far_client_state_of(word) != FAR_CLIENT_DEAD ||
        (generation != FAR_ANY_GENERATION && generation != far_client_generation_of(word)))
        return err < 0 ? err : 1;
    int gone = far_client_handle_of(word) == id ? far_client_handle_gone(t, id) : 1;
    if (gone <= 0)
        return gone;
    err = free_entry(t, id, word);
    return err < 0 ? err : 1;
}


int64_t far_client_process(far_task *t, unsigned id, unsigned generation) {
    const far_fabric_ops *ops = far_task_fabric(t)->ops;
    return ops->process_of ? ops->process_of(t->session->conn, id, generation) : 0;
}


void far_client_words(far_task *t, unsigned id, unsigned generation, char words[FAR_CLIENT_WORDS]) {
    int64_t process = far_client_process(t, id, generation);
    if (process > 0)
        snprintf(words, FAR_CLIENT_WORDS, "client %u (process %lld)", id, (long long)process);
    else
        snprintf(words, FAR_CLIENT_WORDS, "client %u", id);
}
