/* The leak sweep, one pass over a set of blocks: choose and stamp, quarantine, walk, release (sweep.h). Every step can
 * be done twice: a sweeper that died leaves the flags of its blocks, and whoever comes next begins again with those. */
#include "pool/sweeping.h"

#include "pool/catalog.h"
#include "pool/catalog_layout.h"
#include "runtime/error.h"

#include <stdlib.h>
#include <string.h>

#define SLICE_BLOCKS    64u  /* in quarantine at once */
#define RELEASE_EPOCHS  5u   /* after the walk: what was given back during it is then past its time */
#define SLEEPER_TICKS   250u /* how long a handle that sleeps is given to let go */
#define KEPT_TABLES_MAX 65536u


static far_swept *find_swept(far_sweeper *s, far_block_id id) {
    uint32_t at = s->place[far_block_number(s->geometry, id)];
    return at == 0 ? NULL : &s->blocks[at - 1];
}


/* The object that begins at the address is reachable. True: there is one, or its block is not swept. */
static bool meet(far_sweeper *s, far_addr addr) {
    far_block_id id;
    if (!far_block_of(s->geometry, addr, &id))
        return false;
    far_swept *b = find_swept(s, id);
    if (b == NULL || b->met == NULL) /* not swept, or it went out of our hands: parts of a run did while it was made */
        return true;
    uint64_t inner = far_block_inner(s->geometry, addr);
    if (b->run) {
        b->met[0] |= 1;
        return inner == 0;
    }
    unsigned first = (unsigned)(inner / s->geometry->page_bytes);
    while (first > 0 && b->pages[first] == 0)
        first--;
    far_page_state page = far_page_unpack(b->pages[first]);
    uint64_t at = inner - first * s->geometry->page_bytes;
    if (!page.in_use || at % page.size != 0 || at / page.size >= far_slab_objects(s->geometry->page_bytes, &page))
        return false;
    b->met[inner / FAR_GRANULE / 64] |= 1ull << inner / FAR_GRANULE % 64;
    return true;
}


static int meet_object(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    (void)type, (void)size;
    if (!meet((far_sweeper *)walk, addr))
        return far_fail(FAR_ERR_CORRUPT, "index '%s' reaches %#llx, where no object begins",
                        index != NULL ? index->name : "(the pool)", (unsigned long long)addr);
    return 0;
}


/* The sweep word. */

static int set_word(far_sweeper *s, uint64_t word) {
    uint64_t old;
    int err = far_cas_word(s->t, far_addr_make(0, FAR_SUPER_SWEEP), s->word, word, &old);
    if (err == 0 && old != s->word)
        err = far_fail(FAR_ERR_FENCED, "another client took over the sweep: this one was declared dead");
    if (err == 0)
        s->word = word;
    return err;
}


static uint64_t own_word(const far_sweeper *s, far_sweep_phase phase) {
    return far_sweep_pack(far_task_client(s->t), far_task_generation(s->t), phase, s->sequence);
}


/* The word becomes ours with a new number. */
static int begin(far_sweeper *s) {
    far_addr addr = far_addr_make(0, FAR_SUPER_SWEEP);
    uint64_t word, old;
    int err = far_read_word(s->t, addr, &word);
    if (err < 0)
        return err;
    unsigned owner = far_sweep_owner(word);
    if (owner != 0) {
        int dead = owner == far_task_client(s->t) ? 0 : far_is_dead(s->t, owner, far_sweep_generation(word));
        if (dead <= 0)
            return dead < 0 ? dead : far_fail(FAR_ERR_BUSY, "client %u is sweeping", owner);
    }
    if (far_sweep_sequence(word) == UINT32_MAX) /* stamps are compared */
        return far_fail(FAR_ERR_UNSUPPORTED, "this pool was swept 2^32 times: its sweeps have no more numbers");
    s->sequence = far_sweep_sequence(word) + 1;
    s->word = own_word(s, FAR_SWEEP_NONE);
    err = far_cas_word(s->t, addr, word, s->word, &old);
    if (err == 0 && old != word)
        err = far_fail(FAR_ERR_BUSY, "another client began a sweep");
    return err;
}


/* Choosing and stamping. */

/* A block whose owner is dead; 0, 1 or an error. */
static int is_dead_owner(far_sweeper *s, const far_block_state *state) {
    if (state->id == far_task_client(s->t) && state->generation == far_task_generation(s->t))
        return 0;
    return far_is_dead(s->t, state->id, state->generation);
}


static int is_chosen(far_sweeper *s, uint64_t number, const far_block_state *state) {
    if (state->quarantined)
        return 1; /* left by a sweeper that died */
    switch (state->kind) {
    case FAR_BLOCK_OWNED:
        if (s->only_dead)
            return is_dead_owner(s, state);
        break; /* whoever has it: a full sweep takes each block once */
    case FAR_BLOCK_WIPING: {
        int dead = is_dead_owner(s, state);
        if (dead <= 0 || s->only_dead)
            return dead;
        break;
    }
    case FAR_BLOCK_RUN:
        if (s->only_dead)
            return 1; /* made by a dead one and linked nowhere, perhaps: to look is cheap */
        break;
    case FAR_BLOCK_ORPHAN:
        if (s->only_dead)
            return 0;
        break;
    default:
        return 0;
    }
    return number >= s->cursor;
}


/* Stamps a block and puts the flag on it. 1: it is covered; 0: it changed hands just now, and is stamped as before:
 * what is retired in a block with our stamp counts on us to wait until it can be reused. *entry: what is there now. */
static int cover(far_sweeper *s, far_block_id id, uint64_t entry[2]) {
    far_block_state state = far_block_unpack(entry[0]);
    uint64_t old, stamped = far_stamp_pack(s->sequence, far_stamp_freed(entry[1]));
    state.quarantined = true;
    far_write(s->t, far_block_stamp(s->geometry, id), &stamped, 8);
    far_cas(s->t, far_block_entry(s->geometry, id), entry[0], far_block_pack(&state), &old);
    int err = far_wait(s->t);
    if (err == 0 && old != entry[0]) {
        entry[0] = old;
        return far_write_word(s->t, far_block_stamp(s->geometry, id), entry[1]);
    }
    if (err < 0)
        return err;
    far_swept *b = &s->blocks[s->count++];
    *b = (far_swept){.id = id, .stamp = stamped};
    s->place[far_block_number(s->geometry, id)] = (uint32_t)s->count;
    return 1;
}


static int choose_on_node(far_sweeper *s, unsigned node, uint64_t number, unsigned *room) {
    uint32_t blocks = (uint32_t)s->geometry->node[node].blocks;
    far_scratch_mark mark = far_scratch_here(s->t);
    uint64_t *entries = far_scratch(s->t, (size_t)blocks * FAR_BLOCK_ENTRY_BYTES + 16);
    int err = entries == NULL ? FAR_ERR_NO_MEMORY : far_blocks_read(s->t, node, 0, blocks, entries);
    uint32_t run_end = 0, run_head = 0;
    for (uint32_t i = 0; i < blocks && err >= 0; number += err == 1, i += err == 1) {
        uint64_t *entry = entries + 2 * (size_t)i;
        far_block_state state = far_block_unpack(entry[0]);
        if (state.kind == FAR_BLOCK_RUN) {
            run_head = i;
            run_end = i + state.length;
        }
        bool large = state.kind != FAR_BLOCK_RUN, full = large ? *room == 0 : s->more && !s->only_dead;
        err = is_chosen(s, number, &state);
        if (err == 1 && full) {
            s->more = true;
            if (number < s->next_cursor)
                s->next_cursor = number;
        } else if (err == 1) {
            err = cover(s, (far_block_id){node, i}, entry); /* 0: once more with what is there now */
            *room -= err == 1 && large;
            if (err == 1 && state.kind == FAR_BLOCK_OWNED && i < run_end)
                s->blocks[s->count - 1].body_of = i - run_head;
        } else if (err == 0) {
            err = 1; /* not to be swept */
        }
    }
    far_scratch_back(s->t, mark);
    return err < 0 ? err : 0;
}


/* First what was left in quarantine and belongs to the dead, then, in a full sweep, the next blocks behind the cursor.
 */
static int choose(far_sweeper *s) {
    uint64_t total = far_block_total(s->geometry), number = 0;
    unsigned room = SLICE_BLOCKS;
    s->count = 0;
    s->more = false;
    s->next_cursor = total;
    memset(s->place, 0, total * sizeof(*s->place));
    int err = 0;
    for (unsigned node = 0; node < s->geometry->nodes && err == 0; node++) {
        err = choose_on_node(s, node, number, &room);
        number += s->geometry->node[node].blocks;
    }
    return err;
}


/* The quarantine has been heard of everywhere: states and page words do not change any more. */

/* A run that its maker did not finish before it died: all the blocks that its head claims are the run. */
static int finish_body(far_sweeper *s, far_swept *b, uint64_t word) {
    uint64_t head_word;
    far_block_id head = {b->id.node, b->id.index - b->body_of};
    int done = far_read_word(s->t, far_block_entry(s->geometry, head), &head_word);
    far_block_state run = far_block_unpack(head_word),
                    body = {.kind = FAR_BLOCK_BODY, .used = far_block_unpack(word).used, .length = b->body_of};
    if (done == 0 && run.kind == FAR_BLOCK_RUN && run.length > b->body_of)
        done = far_block_swap(s->t, b->id, &word, &body);
    return done < 0 ? done : 0;
}


static int look_at_block(far_sweeper *s, far_swept *b) {
    uint64_t word;
    int err = far_read_word(s->t, far_block_entry(s->geometry, b->id), &word);
    if (err < 0)
        return err;
    far_block_state state = far_block_unpack(word);
    size_t words = 1;
    if (!state.quarantined)
        return 0;
    if (state.kind == FAR_BLOCK_OWNED && b->body_of > 0)
        return finish_body(s, b, word);
    if (state.kind == FAR_BLOCK_RUN) {
        b->run = true;
    } else if (state.kind == FAR_BLOCK_OWNED || state.kind == FAR_BLOCK_ORPHAN) {
        err = far_pages_read(s->t, b->id, b->pages);
        if (err == FAR_ERR_CORRUPT)
            return far_fail(err, "the page words of block %u of node %u are broken", b->id.index, b->id.node);
        words = s->geometry->block_bytes / FAR_GRANULE / 64;
    } else {
        return 0;
    }
    if (err == 0 && (b->met = calloc(words, 8)) == NULL)
        err = FAR_ERR_NO_MEMORY;
    return err;
}


/* Handles that sleep let go when they look at the sweep word; one that does not look is dealt with when it wakes, and
 * what it holds counts as leaked. */
static int count_late(far_task *t, void *ctx, unsigned id, const far_client *client) {
    far_sweeper *s = ctx;
    (void)t;
    bool handle = far_client_state_of(client->word) == FAR_CLIENT_LIVE && far_client_handle_of(client->word) == id;
    s->late += handle && client->seen_sweep < s->sequence;
    return 0;
}


static int wait_for_sleepers(far_sweeper *s) {
    uint64_t tick = far_housekeeping_tick(far_task_pool(s->t)), until = far_now(s->t) + SLEEPER_TICKS * tick;
    for (;;) {
        s->late = 0;
        int err = far_clients_each(s->t, count_late, s);
        if (err < 0 || s->late == 0)
            return err;
        if (s->impatient || far_now(s->t) >= until) {
            s->impatient = true; /* once is enough */
            return 0;
        }
        far_sleep(s->t, tick);
    }
}


/* What live sessions keep for themselves. */
static int meet_kept(far_task *t, void *ctx, unsigned id, const far_client *client) {
    far_sweeper *s = ctx;
    (void)id;
    if (far_client_state_of(client->word) != FAR_CLIENT_LIVE)
        return 0;
    const size_t words = 2 + 2 * FAR_KEPT_PER_TABLE;
    far_scratch_mark mark = far_scratch_here(t);
    uint64_t *table = far_scratch(t, words * 8);
    int err = table == NULL ? FAR_ERR_NO_MEMORY : 0;
    far_addr at = client->kept;
    for (unsigned n = 0; at != 0 && err == 0 && n < KEPT_TABLES_MAX; n++) {
        if (!meet(s, at))
            break; /* closed meanwhile */
        far_read(t, at, table, words * 8);
        err = far_wait(t);
        for (size_t i = 2; err == 0 && i < words; i += 2)
            if (table[i] != 0)
                meet(s, table[i]);
        at = table[0];
    }
    far_scratch_back(t, mark);
    return err;
}


static int walk_all(far_sweeper *s) {
    int err = far_pin_take(s->t);
    if (err == 0)
        err = far_clients_each(s->t, meet_kept, s);
    far_catalog_unpin(s->t);
    if (err == 0)
        err = far_catalog_walk(s->t, &s->walk);
    return err;
}


/* From here on objects that were not met may be freed: handles that have not heard of it must forget them when they
 * wake. */
static int stamp_freed(far_sweeper *s) {
    for (size_t i = 0; i < s->count; i++) {
        s->blocks[i].stamp = far_stamp_pack(s->sequence, s->sequence);
        far_write(s->t, far_block_stamp(s->geometry, s->blocks[i].id), &s->blocks[i].stamp, 8);
    }
    return far_wait(s->t);
}


static unsigned extra_epochs(void) {
    unsigned most = 0;
    for (unsigned k = 0; far_index_kinds[k] != NULL; k++)
        for (unsigned i = 0; i < far_index_kinds[k]->type_count; i++)
            if (far_index_kinds[k]->types[i].extra_epochs > most)
                most = far_index_kinds[k]->types[i].extra_epochs;
    return most;
}


static int examine(far_sweeper *s) {
    int err = set_word(s, own_word(s, FAR_SWEEP_QUARANTINE));
    if (err == 0)
        err = far_pin_take(s->t); /* our own handle is not to sleep through it */
    far_pin_drop(s->t);
    if (err == 0)
        err = far_wait_epochs(s->t, 2);
    if (err == 0)
        err = wait_for_sleepers(s);
    for (size_t i = 0; i < s->count && err == 0; i++)
        err = look_at_block(s, &s->blocks[i]);
    if (err == 0)
        err = walk_all(s);
    return err;
}


static int release(far_sweeper *s) {
    int err = s->repair ? stamp_freed(s) : 0;
    if (err == 0)
        err = set_word(s, own_word(s, FAR_SWEEP_RELEASING));
    if (err == 0)
        err = far_wait_epochs(s->t, RELEASE_EPOCHS + extra_epochs());
    if (err == 0)
        err = far_sweep_read_uids(s);
    for (size_t i = 0; i < s->count && err == 0; i++) {
        err = far_sweep_release_block(s, &s->blocks[i]);
        if (far_task_fabric(s->t)->at_once) /* nothing else makes it pause, and to wipe takes long */
            far_yield(s->t);
    }
    free(s->uids);
    s->uids = NULL;
    return err;
}


/* The dead. */

static int find_dead(far_task *t, void *ctx, unsigned id, const far_client *client) {
    far_sweeper *s = ctx;
    far_client_state state = far_client_state_of(client->word);
    int dead = state == FAR_CLIENT_DEAD;
    if (state == FAR_CLIENT_LIVE && id != far_task_client(t))
        dead = far_is_dead(t, id, far_client_generation_of(client->word));
    if (dead <= 0)
        return dead;
    struct far_dead *more = realloc(s->dead, (s->dead_count + 1) * sizeof(*more));
    if (more == NULL)
        return FAR_ERR_NO_MEMORY;
    s->dead = more;
    s->dead[s->dead_count++] = (struct far_dead){id, far_client_generation_of(client->word)};
    return 0;
}


/* Before it is free: what it had unlinked in blocks of others is not found by this sweep. */
static int count_died(far_sweeper *s) {
    far_faa(s->t, far_addr_make(0, FAR_SUPER_DIED), 1, NULL);
    int err = far_wait(s->t);
    return err < 0 ? err : 1;
}


/* Nothing in the pool names them any more. A handle's own entry after those of its sessions. The sweep word is still
 * ours: two who freed one entry would clear that of a session which has it by then. */
static int free_dead(far_sweeper *s) {
    for (unsigned round = 0; round < 2; round++)
        for (size_t i = 0; i < s->dead_count; i++) {
            if (s->dead[i].id == 0)
                continue;
            int done = far_client_may_free(s->t, s->dead[i].id);
            if (done == 1)
                done = count_died(s);
            if (done == 1)
                done = far_client_free(s->t, s->dead[i].id, s->dead[i].generation);
            if (done < 0)
                return done;
            if (done == 1) {
                s->result.dead_clients++;
                s->dead[i].id = 0;
            }
        }
    return 0;
}


/* Nothing was decided. But what was given back in quarantine is not past its time: the blocks stay covered until it is.
 */
static int give_up(far_sweeper *s) {
    int err = set_word(s, own_word(s, FAR_SWEEP_RELEASING));
    if (err == 0)
        err = far_wait_epochs(s->t, RELEASE_EPOCHS + extra_epochs());
    for (size_t i = 0; i < s->count && err == 0; i++)
        err = far_sweep_unmark(s, s->blocks[i].id);
    return err;
}


/* The word is ours. */
static int examine_and_release(far_sweeper *s) {
    bool find = s->only_dead && s->dead_count == 0;
    int err = find ? far_clients_each(s->t, find_dead, s) : 0; /* before blocks are chosen: theirs are among them */
    if (err == 0)
        err = choose(s);
    bool work = s->count > 0 || s->must_walk;
    if (err == 0 && work)
        err = examine(s);
    if (err < 0 && s->count > 0 && !s->t->session->lost) {
        s->left = give_up(s) < 0;
        return err;
    }
    if (err == 0 && work)
        err = release(s);
    s->left = err < 0 && s->count > 0;
    if (err == 0 && s->only_dead && !s->more)
        err = free_dead(s);
    return err;
}


static int pass(far_sweeper *s) {
    int err = begin(s);
    if (err < 0)
        return err;
    s->left = false;
    s->count = 0;
    err = examine_and_release(s);
    for (size_t i = 0; i < s->count; i++)
        free(s->blocks[i].met);
    if (s->t->session->lost)
        return err < 0 ? err : s->t->session->lost;
    int end = set_word(s, far_sweep_pack(0, 0, s->left ? FAR_SWEEP_RELEASING : FAR_SWEEP_NONE, s->sequence));
    far_epoch_request(far_task_pool(s->t)); /* so that all hear of it */
    return err < 0 ? err : end;
}


/* Sweeps. */

static bool is_abandoned(uint64_t word) {
    return far_sweep_owner(word) != 0 || far_sweep_phase_of(word) != FAR_SWEEP_NONE;
}


static int sweep_dead(far_sweeper *s) {
    uint64_t word;
    int err = far_clients_each(s->t, find_dead, s);
    if (err == 0)
        err = far_read_word(s->t, far_addr_make(0, FAR_SUPER_SWEEP), &word);
    if (err < 0 || (s->dead_count == 0 && !is_abandoned(word)))
        return err;
    s->only_dead = s->must_walk = true;
    s->dead_count = 0; /* others may have swept them before it is our turn: they are looked for again then */
    do
        err = pass(s);
    while (err == 0 && s->more);
    return err;
}


/* Drops of this handle that are under way shall not look like leaks. */
static int finish_drops(far_sweeper *s) {
    far_quarantine *q = far_task_pool(s->t)->quarantine;
    for (unsigned round = 0; round < 3; round++) {
        bool any = false;
        pthread_mutex_lock(&q->lock);
        for (far_memory *m = q->memories; m != NULL; m = m->next) {
            pthread_mutex_lock(&m->lock);
            any |= m->drop_count > 0;
            pthread_mutex_unlock(&m->lock);
        }
        pthread_mutex_unlock(&q->lock);
        int err = any ? far_wait_epochs(s->t, 3) : 0;
        if (err == 0 && any)
            err = far_memory_tick(s->t);
        if (err < 0 || !any)
            return err;
    }
    return 0;
}


static int sweep_all(far_sweeper *s) {
    uint64_t total = far_block_total(s->geometry), died = 0;
    int err = finish_drops(s);
    if (err == 0)
        err = far_read_word(s->t, far_addr_make(0, FAR_SUPER_DIED), &died);
    s->only_dead = s->must_walk = false;
    for (s->cursor = 0; s->cursor < total && err == 0; s->cursor = s->next_cursor)
        err = pass(s);
    if (err == 0)
        err =
            far_write_word(s->t, far_addr_make(0, FAR_SUPER_LEAKED), s->result.leaked_bytes - s->result.repaired_bytes);
    if (err == 0 && s->repair)
        err = far_write_word(s->t, far_addr_make(0, FAR_SUPER_SWEPT), died);
    return err;
}


int far_sweep(far_task *t, bool all, bool repair, far_sweep_result *result) {
    *result = (far_sweep_result){0};
    const far_geometry *g = &far_task_pool(t)->geometry;
    uint64_t total = far_block_total(g);
    if (t->pin.epoch != 0)
        return far_fail(FAR_ERR_INVALID, "a pinned task cannot sweep: it would wait for itself");
    far_sweeper s = {.walk = {.object = meet_object}, .t = t, .geometry = g, .repair = repair, .impatient = !all};
    s.place = calloc(total + 1, sizeof(*s.place));
    s.blocks = calloc(total + 1, sizeof(*s.blocks));
    far_aside aside = far_aside_begin(t);
    int err = s.place == NULL || s.blocks == NULL ? far_fail(FAR_ERR_NO_MEMORY, "no memory for a sweep") : 0;
    if (err == 0 && repair)
        err = sweep_dead(&s);
    if (err == 0 && all)
        err = sweep_all(&s);
    far_aside_end(t, aside);
    *result = s.result;
    free(s.place);
    free(s.blocks);
    free(s.dead);
    return err;
}
