/* What a handle does when it sees that a sweep goes on, or went on while it slept. Runs pinned, before the first pin at
 * the next epoch is taken; takes things from all sessions of the handle under their locks. */
#include "pool/memory.h"

#include <stdlib.h>
#include <string.h>

enum { FORGET = 1, COVERED = 2 };

typedef struct view { /* of all blocks of the pool, by number */
    uint64_t total;
    uint64_t *entries; /* 2 words each */
    uint8_t *what;
    uint64_t (*pages)[FAR_BLOCK_PAGES]; /* of those that come back */
    uint64_t *returning;                /* their numbers */
    size_t return_count;
} view;


static void free_view(view *v) {
    free(v->entries);
    free(v->what);
    free(v->pages);
    free(v->returning);
}


static int read_entries(far_task *t, view *v) {
    const far_geometry *g = &far_task_pool(t)->geometry;
    v->total = far_block_total(g);
    v->entries = malloc((v->total + 1) * FAR_BLOCK_ENTRY_BYTES);
    v->what = calloc(v->total + 1, 1);
    uint64_t at = 0;
    int err = v->entries == NULL || v->what == NULL ? FAR_ERR_NO_MEMORY : 0;
    for (unsigned node = 0; node < g->nodes && err == 0; node++) {
        uint32_t blocks = (uint32_t)g->node[node].blocks;
        far_scratch_mark mark = far_scratch_here(t);
        uint64_t *entries = far_scratch(t, (size_t)blocks * FAR_BLOCK_ENTRY_BYTES + 16);
        err = entries == NULL ? FAR_ERR_NO_MEMORY : far_blocks_read(t, node, 0, blocks, entries);
        if (err == 0)
            memcpy(v->entries + 2 * at, entries, (size_t)blocks * FAR_BLOCK_ENTRY_BYTES);
        far_scratch_back(t, mark);
        at += blocks;
    }
    return err;
}


static uint8_t what_of(const view *v, const far_geometry *g, far_addr addr) {
    far_block_id id;
    return far_block_of(g, addr, &id) ? v->what[far_block_number(g, id)] : 0;
}


static void clear_queue(far_memory *m, far_queue *q, const view *v, far_gives *gives) {
    const far_geometry *g = &m->session->pool->geometry;
    for (size_t n = q->count; n > 0; n--) {
        far_retired item;
        far_queue_take(q, &item);
        uint8_t what = what_of(v, g, item.addr);
        if (what & (FORGET | COVERED))
            m->retired_bytes -= far_class_footprint(m, item.class);
        else
            far_queue_put(q, item);
        if ((what & (FORGET | COVERED)) == COVERED)
            far_gives_add(gives, item.class, item.addr);
    }
}


/* Free objects in blocks of others, or in ours that are forgotten: those that are covered go to the pool. */
static void clear_lists(far_memory *m, const view *v, far_gives *gives) {
    const far_geometry *g = &m->session->pool->geometry;
    for (unsigned b = 0; b < FAR_CLASS_BUCKETS; b++)
        for (far_class *c = m->classes[b]; c != NULL; c = c->next)
            for (unsigned n = 0; n < g->nodes; n++) {
                far_entries *list = &c->shelf[n].free;
                for (size_t i = list->count; i-- > 0;) {
                    far_addr addr = far_entry_addr(list->items[i]);
                    uint8_t what = what_of(v, g, addr);
                    if (!(what & (FORGET | COVERED)))
                        continue;
                    if (!(what & FORGET))
                        far_gives_add(gives, c, addr);
                    far_entry last = list->items[list->count - 1], dropped;
                    list->items[list->count - 1] = list->items[i];
                    list->items[i] = last;
                    far_take_free(m, c, n, &dropped);
                }
            }
}


static void let_go(far_memory *m, const view *v, far_gives *gives) {
    const far_geometry *g = &m->session->pool->geometry;
    for (far_held *b = m->blocks; b != NULL; b = b->next) {
        uint8_t what = v->what[far_block_number(g, b->id)];
        if (!(what & (FORGET | COVERED)) || b->away)
            continue;
        if (what & FORGET)
            far_held_unload(m, b);
        else
            far_held_collect(m, b, gives);
        b->away = true;
    }
    clear_lists(m, v, gives);
    clear_queue(m, &m->retired, v, gives);
    clear_queue(m, &m->late, v, gives);
}


static bool is_owned_by(uint64_t word, const far_session *s) {
    far_block_state state = far_block_unpack(word);
    return state.kind == FAR_BLOCK_OWNED && state.id == s->id && state.generation == s->generation;
}


/* Which blocks come back to their sessions: no sweep covers them any more. Their page words are read before they are
 * used. */
static int read_returning(far_task *t, far_quarantine *q, view *v) {
    const far_geometry *g = &far_task_pool(t)->geometry;
    size_t count = 0;
    pthread_mutex_lock(&q->lock);
    for (far_memory *m = q->memories; m != NULL; m = m->next) {
        pthread_mutex_lock(&m->lock);
        for (far_held *b = m->blocks; b != NULL; b = b->next)
            count += b->away;
        pthread_mutex_unlock(&m->lock);
    }
    v->pages = calloc(count + 1, sizeof(*v->pages));
    v->returning = calloc(count + 1, sizeof(*v->returning));
    far_block_id *ids = calloc(count + 1, sizeof(*ids));
    bool room = v->pages != NULL && v->returning != NULL && ids != NULL;
    for (far_memory *m = q->memories; room && m != NULL; m = m->next) {
        pthread_mutex_lock(&m->lock);
        for (far_held *b = m->blocks; b != NULL; b = b->next) {
            uint64_t n = far_block_number(g, b->id);
            if (!b->away || v->return_count == count || v->what[n] & COVERED ||
                far_block_unpack(v->entries[2 * n]).quarantined)
                continue;
            ids[v->return_count] = b->id;
            v->returning[v->return_count++] = n;
        }
        pthread_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&q->lock);
    int err = room ? 0 : FAR_ERR_NO_MEMORY;
    for (size_t i = 0; i < v->return_count && err == 0; i++)
        err = far_pages_read(t, ids[i], v->pages[i]);
    free(ids);
    return err;
}


static void take_returning(far_memory *m, const view *v) {
    const far_geometry *g = &m->session->pool->geometry;
    for (far_held *b = m->blocks, *next; b != NULL; b = next) {
        next = b->next;
        uint64_t n = far_block_number(g, b->id);
        for (size_t i = 0; b->away && i < v->return_count; i++) {
            if (v->returning[i] != n)
                continue;
            if (!is_owned_by(v->entries[2 * n], m->session) || !far_held_load(m, b, v->pages[i]))
                far_held_remove(m,
                                b); /* the sweep freed it (or this process has no memory: then it is found as leaked) */
            else {
                b->away = false;
                b->used = true;
            }
            break;
        }
    }
}


static void set_marks(far_quarantine *q, const view *v) {
    unsigned count = 0;
    for (uint64_t w = 0; w * 64 < v->total; w++) {
        uint64_t bits = 0;
        for (uint64_t n = w * 64; n < v->total && n < w * 64 + 64; n++)
            if (v->what[n] & COVERED)
                bits |= 1ull << n % 64;
        count += (unsigned)__builtin_popcountll(bits);
        atomic_store_explicit(&q->marked[w], bits, memory_order_release);
    }
    atomic_store_explicit(&q->blocks, count, memory_order_release);
    atomic_fetch_add_explicit(&q->heeded, 1, memory_order_acq_rel);
}


/* Everybody can see how far we are: a sweep that wants to be exact waits for sleepers. */
static int tell_seen(far_task *t, uint32_t sequence) {
    far_session *own = far_task_pool(t)->own;
    return own->id == 0 ? 0 : far_write_word(t, far_client_entry(own->id) + offsetof(far_client, seen_sweep), sequence);
}


static int heed(far_task *t, far_quarantine *q, uint64_t word, view *v) {
    uint32_t sequence = far_sweep_sequence(word);
    far_sweep_phase phase = far_sweep_phase_of(word);
    bool choosing = phase == FAR_SWEEP_NONE && far_sweep_owner(word) != 0;
    if (phase != FAR_SWEEP_NONE && far_sweep_owner(word) == 0) /* its sweeper could not finish: somebody must */
        atomic_store_explicit(&far_task_pool(t)->dead_seen, true, memory_order_relaxed);
    int err = read_entries(t, v);
    if (err < 0)
        return err;
    for (uint64_t n = 0; n < v->total; n++) {
        uint64_t stamp = v->entries[2 * n + 1];
        if (far_stamp_freed(stamp) > q->seen)
            v->what[n] |= FORGET;
        if (phase != FAR_SWEEP_NONE && far_stamp_covered(stamp) == sequence)
            v->what[n] |= COVERED;
        bool left = far_block_unpack(v->entries[2 * n]).quarantined &&
                    atomic_load_explicit(&q->marked[n / 64], memory_order_relaxed) >> n % 64 & 1;
        if (choosing && left)
            v->what[n] |=
                COVERED; /* by one whose sweeper died: the next one covers it too. (One that finished let go of it.) */
    }

    /* What tasks retire meanwhile goes by these three: only in blocks that are in quarantine may it be given back at
     * once, so the marks change before the phase. */
    uint64_t current = atomic_load_explicit(&far_task_pool(t)->epochs.current, memory_order_acquire);
    if (phase == FAR_SWEEP_RELEASING)
        atomic_store_explicit(&q->normal_from, current == 0 ? t->pin.epoch : current + 1, memory_order_release);
    set_marks(q, v);
    if (!choosing)
        atomic_store_explicit(&q->phase, phase, memory_order_release);
    if (phase == FAR_SWEEP_RELEASING) /* what is not forgotten was counted, not freed: it stays */
        for (uint64_t n = 0; n < v->total; n++)
            v->what[n] &= (uint8_t)~COVERED;
    far_gives gives = {0};
    pthread_mutex_lock(&q->lock);
    for (far_memory *m = q->memories; m != NULL; m = m->next) {
        pthread_mutex_lock(&m->lock);
        let_go(m, v, &gives);
        pthread_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&q->lock);
    q->seen = choosing ? sequence - 1 : sequence;
    return far_give_back(t, &gives);
}


static int bring_back(far_task *t, far_quarantine *q, view *v) {
    int err = read_returning(t, q, v);
    if (err < 0 || v->return_count == 0)
        return err;
    pthread_mutex_lock(&q->lock);
    for (far_memory *m = q->memories; m != NULL; m = m->next) {
        pthread_mutex_lock(&m->lock);
        take_returning(m, v);
        pthread_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return 0;
}


int far_sweep_observe(far_task *t, uint64_t word) {
    far_quarantine *q = far_task_pool(t)->quarantine;
    if (q == NULL || word == q->word)
        return 0;
    view v = {0};
    far_aside aside = far_aside_begin(t);
    int err = heed(t, q, word, &v);
    if (err == 0)
        err = bring_back(t, q, &v);
    if (err == 0)
        err = tell_seen(t, q->seen);
    far_aside_end(t, aside);
    free_view(&v);
    if (err == 0)
        q->word = word;
    return err;
}
