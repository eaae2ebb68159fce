/* The sweeper's work (sweep.h). Cut off anywhere, the next sweeper begins anew with a new number: without DONE nobody
 * settles the old one. */
#include "pool/sweep.h"

#include "base/error.h"
#include "base/grow.h"
#include "pool/blocker.h"
#include "pool/catalog.h"
#include "pool/catalog_layout.h"
#include "pool/false_home.h"
#include "pool/request.h"
#include "pool/store.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MARK_BLOCKS  64u   /* whose marks are written at once */
#define MARKS_LATE   32u   /* marks under way */
#define SETTLE_TICKS 300u  /* how long owners that sleep are given to settle, when somebody waits for it */
#define SHORT_TICKS  1000u /* how long one who is short waits while the epoch does not move */

typedef struct known { /* a client as it was found when the sweep began */
    unsigned id, generation;
    bool gone;
} known;

typedef struct known_list {
    known *items;
    size_t count;
} known_list;

typedef struct late_mark { /* still to be made */
    uint64_t *word, bit;
} late_mark;

typedef struct sweeper {
    far_walk walk; /* first: the walk is told of this */
    far_task *t;
    far_store *store;
    const far_geometry *geometry;
    far_sweep_mode mode;
    uint32_t sweep, old_sweep; /* this one, and the one before */
    uint64_t wanted;           /* when it began with the first part */
    uint64_t *marks;           /* of the blocks of this part: bit per granule; behind them those of any other block */
    uint64_t first, end;       /* the blocks of this part; of the others all counts as met */
    late_mark late[MARKS_LATE];
    uint64_t met;                 /* objects so far */
    unsigned written;             /* blocks whose marks were put */
    uint64_t checks[MARK_BLOCKS]; /* of marks that are being written */
    known_list dead, owners;      /* clients that died; handles that own blocks */
    far_catalog_view view;        /* what is listed at the end */
    unsigned missing;             /* handles that have not settled yet; the others ... */
    uint64_t settled;             /* ... found so many bytes lost */
    far_sweep_result result;
} sweeper;


/* ---- Marks ---- */

static bool is_covered(const sweeper *s, uint64_t number) {
    return number >= s->first && number < s->end;
}


static uint64_t *marks_of(const sweeper *s, uint64_t number) {
    uint64_t at = is_covered(s, number) ? number - s->first : s->end - s->first;
    return s->marks + at * (far_bitmap_bytes(s->geometry) / sizeof(uint64_t));
}


/* Objects are met in any order, and the marks of a large pool fit in no cache: a word is fetched now, and changed when
 * MARKS_LATE others were met. */
static void mark_later(sweeper *s, uint64_t *word, uint64_t bit) {
    late_mark *late = &s->late[s->met++ % MARKS_LATE];
    if (late->word)
        *late->word |= late->bit;
    *late = (late_mark){word, bit};
    __builtin_prefetch(word, 1);
}


static void make_late_marks(sweeper *s) {
    for (late_mark *late = s->late; late < s->late + MARKS_LATE; late++)
        if (late->word)
            *late->word |= late->bit;
    memset(s->late, 0, sizeof(s->late));
}


static int meet_object(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    sweeper *s = (sweeper *)walk;
    far_block_id id;
    (void)type, (void)size;
    if (!far_block_of(s->geometry, addr, &id) || addr % FAR_GRANULE != 0)
        return far_fail(FAR_ERR_CORRUPT, "index '%s' reaches %#llx, where no object begins",
                        index ? index->name : "(the pool)", (unsigned long long)addr);
    uint64_t number = far_block_number(s->geometry, id), at = far_block_inner(s->geometry, addr) / FAR_GRANULE;
    if (!is_covered(s, number))
        return 0;
    mark_later(s, marks_of(s, number) + at / 64, 1ull << at % 64);
    return 0;
}


/* ---- Step 1: the sweeper, the dead ---- */

static int become_sweeper(far_task *t, far_request *r, void *ctx) {
    unsigned own = far_task_pool(t)->team.own->id;
    (void)ctx;
    if (r->sweeper != 0 && r->sweeper != own) {
        int gone = far_client_handle_gone(t, r->sweeper);
        if (gone <= 0)
            return gone < 0 ? gone : far_fail(FAR_ERR_BUSY, "client %u is sweeping", r->sweeper);
    }
    r->sweeper = own; /* nobody needs to hear of that */
    return 0;
}


/* Returns whether it is gone. */
static int add_known(known_list *list, unsigned id, unsigned generation, bool gone) {
    known *more = far_grow(list->items, list->count, sizeof(*more));
    if (!more)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a list of clients");
    list->items = more;
    list->items[list->count++] = (known){id, generation, gone};
    return gone;
}


static int find_dead(far_task *t, void *ctx, unsigned id, const far_client *client) {
    sweeper *s = ctx;
    far_client_state state = far_client_state_of(client->word);
    int dead = state == FAR_CLIENT_DEAD;
    if (state == FAR_CLIENT_LIVE && id != far_task_client(t))
        dead = far_is_dead(t, id, far_client_generation_of(client->word));
    if (dead == 1)
        dead = add_known(&s->dead, id, far_client_generation_of(client->word), true);
    return dead < 0 ? dead : 0;
}


/* Whether all sessions of the handle that owns a block are closed or fenced. */
static int is_gone(sweeper *s, unsigned id, unsigned generation) {
    const far_session *own = far_task_pool(s->t)->team.own;
    for (size_t i = 0; i < s->owners.count; i++)
        if (s->owners.items[i].id == id && s->owners.items[i].generation == generation)
            return s->owners.items[i].gone;
    int gone = 0;
    if (id != own->id || generation != own->generation) {
        gone = far_is_dead(s->t, id, generation);
        uint64_t word = 0;
        if (gone == 1)
            gone = far_read_word(s->t, far_client_entry(id), &word);
        if (gone == 0 && word != 0) /* another incarnation of the id has its own blocks */
            gone = far_client_generation_of(word) != generation ? 1 : far_client_handle_gone(s->t, id);
    }
    return gone < 0 ? gone : add_known(&s->owners, id, generation, gone);
}


/* The stamp keeps the marks of earlier sweeps away from it: what its owner had in hand since then died with it. So did what
 * it knew of free objects: there may be some of every class. */
static int disown(sweeper *s, far_block_id id, uint64_t word) {
    far_block_state orphan = {.kind = FAR_BLOCK_ORPHAN, .used = true};
    const uint64_t words[] = {far_stamp_pack(s->geometry, id, s->old_sweep), UINT64_MAX};
    uint64_t old;
    far_write(s->t, far_block_stamp(s->geometry, id), words, sizeof(words));
    far_cas(s->t, far_block_entry(s->geometry, id), word, far_block_pack(&orphan), &old);
    return far_wait(s->t);
}


static int take_from_dead(far_task *t, void *ctx, far_block_id id, const uint64_t *entry) {
    sweeper *s = ctx;
    uint64_t word = entry[0];
    far_block_state state = far_block_unpack(word);
    if (state.kind != FAR_BLOCK_OWNED && state.kind != FAR_BLOCK_WIPING)
        return 0;
    int err = is_gone(s, state.id, state.generation);
    if (err <= 0)
        return err;
    if (state.kind == FAR_BLOCK_OWNED) {
        err = far_run_undo(t, id, state.length); /* its maker died before it was finished, perhaps */
        if (err == 0)
            err = disown(s, id, word);
    } else {
        err = far_store_free_run(t, id, word);
    }
    return err < 0 ? err : 0;
}


static int begin(sweeper *s) {
    far_request made;
    assert(s->t->pin.epoch == 0 && s->first < s->end);
    int err = far_request_change(s->t, become_sweeper, s, &made);
    if (err < 0)
        return err;
    s->old_sweep = made.sweep;
    if (s->first == 0)
        err = far_read_word(s->t, far_addr_make(0, FAR_SUPER_WANTED), &s->wanted);
    if (err == 0)
        err = far_clients_each(s->t, find_dead, s);
    if (err == 0)
        err = far_blocks_each(s->t, take_from_dead, s);
    return err;
}


/* ---- Steps 2 to 4: the walk ---- */

/* ctx: whether the walk begins, with a sweep of its own, or is over. */
static int set_walk(far_task *t, far_request *r, void *ctx) {
    if (r->sweeper != far_task_pool(t)->team.own->id)
        return far_fail(FAR_ERR_FENCED, "another client took over the sweep: this one was declared dead");
    r->walk = *(bool *)ctx;
    r->spare = false;
    r->number = far_number_next(r->number);
    r->sweep = r->walk ? far_number_next(r->sweep) : r->sweep;
    return 0;
}


/* The sweeper itself must hear its requests, and settle: it is awake. */
static int request(sweeper *s, bool walks, far_request *made) {
    uint64_t ticks = s->mode == FAR_SWEEP_SHORT ? SHORT_TICKS : FAR_BLOCKED_TICKS;
    uint64_t patience = s->mode == FAR_SWEEP_SLOWLY ? FAR_TIME_NEVER : ticks * far_tick(far_task_fabric(s->t));
    int err = far_request_change(s->t, set_walk, &walks, made);
    if (err == 0)
        err = far_pin_take(s->t);
    far_pin_drop(s->t);
    return err < 0 ? err : far_request_wait(s->t, made->number, patience);
}


static int write_marks_of(far_task *t, void *ctx, far_block_id id, const uint64_t *entry) {
    sweeper *s = ctx;
    far_block_kind kind = far_block_unpack(entry[0]).kind;
    if (kind == FAR_BLOCK_FREE || kind == FAR_BLOCK_BODY)
        return 0;
    const uint64_t *marks = marks_of(s, far_block_number(s->geometry, id));
    uint64_t *check = &s->checks[s->written % MARK_BLOCKS];
    *check = far_marks_check(s->geometry, id, s->sweep, marks);
    far_write(t, far_block_marks(s->geometry, id), marks, far_bitmap_bytes(s->geometry));
    far_write(t, far_block_marks_check(s->geometry, id), check, 8);
    return ++s->written % MARK_BLOCKS == 0 ? far_wait(t) : 0;
}


static int write_marks(sweeper *s) {
    int err = far_blocks_each(s->t, write_marks_of, s), last = far_wait(s->t);
    return err < 0 ? err : last;
}


/* Meets all that is linked; what of it is said to be free is found with it. */
static int walk_indexes(sweeper *s) {
    uint64_t blocks = s->end - s->first;
    far_homes homes = {.t = s->t, .first = s->first, .end = s->end, .mend = s->mode != FAR_SWEEP_COUNT};
    homes.bits = calloc(blocks, far_bitmap_bytes(s->geometry));
    int err = homes.bits ? far_homes_begin(&homes) : far_fail(FAR_ERR_NO_MEMORY, "no memory for free bitmaps");
    far_point(s->t, "sweep:homes");
    if (err == 0)
        err = far_catalog_walk(s->t, &s->walk);
    make_late_marks(s);
    far_point(s->t, "sweep:met");
    if (err == 0)
        err = far_homes_end(&homes, s->marks);
    if (homes.count && s->result.false_homes == 0)
        strcpy(s->result.false_home, homes.words);
    s->result.false_homes += homes.count;
    free(homes.bits);
    return err;
}


static int walk(sweeper *s) {
    far_request made;
    assert(s->t->pin.epoch == 0); /* everybody's answer waits for the pins of that time, ours too */
    int err = request(s, true, &made);
    if (err != 0)
        return err;
    s->sweep = made.sweep;
    far_point(s->t, "sweep:walk");
    far_task_rest_between_pins(s->t, s->mode == FAR_SWEEP_SLOWLY);
    err = walk_indexes(s);
    far_task_rest_between_pins(s->t, false);
    far_point(s->t, "sweep:walked");
    if (err == 0)
        err = write_marks(s);
    if (err == 0)
        err = request(s, false, &made);
    return err;
}


/* ---- Step 5: the end ---- */

/* What was wanted is swept with the last part. */
static int publish(sweeper *s) {
    uint64_t done = far_done_pack(s->sweep, s->mode == FAR_SWEEP_COUNT);
    int err = far_write_word(s->t, far_addr_make(0, FAR_SUPER_DONE), done);
    if (err < 0)
        return err;
    atomic_store_explicit(&s->store->line.done, done, memory_order_release);
    if (s->end < far_block_total(s->geometry) || s->mode == FAR_SWEEP_COUNT)
        return 0;
    atomic_store_explicit(&s->store->line.swept, s->wanted, memory_order_release);
    return far_write_word(s->t, far_addr_make(0, FAR_SUPER_SWEPT), s->wanted);
}


static bool is_listed(const sweeper *s, uint32_t uid) {
    return uid == 0 || far_catalog_find_uid(&s->view, uid);
}


/* A run whose maker had heard of this sweep may have been linked behind the walk. Of one whose stamp is broken nobody knows:
 * it stays, and the next sweep tells. */
static int end_run(sweeper *s, far_block_id id, const uint64_t *entry) {
    far_block_state state = far_block_unpack(entry[0]);
    bool met = marks_of(s, far_block_number(s->geometry, id))[0] & 1;
    if (!met && !far_stamp_is_sound(s->geometry, id, entry[2]))
        return far_write_word(s->t, far_block_hint(s->geometry, id), far_stamp_pack(s->geometry, id, s->sweep));
    if (met || !far_number_is_newer(s->sweep, far_stamp_sweep(entry[2])))
        return 0;
    if (s->mode == FAR_SWEEP_COUNT && !is_listed(s, state.uid))
        return 0; /* whoever dropped its index is about to free it */
    s->result.leaked_bytes += state.length * s->geometry->block_bytes;
    if (s->mode == FAR_SWEEP_COUNT)
        return 0;
    return far_store_free_run(s->t, id, entry[0]);
}


/* Bytes of an orphan that are neither met nor home; all of a slab whose index is not listed, which its next owner frees
 * as a whole (a count leaves that to whoever dropped the index). settled: only these. */
static uint64_t lost_in_orphan(const sweeper *s, const far_tables *b, bool settled) {
    const far_geometry *g = s->geometry;
    const uint64_t *marks = marks_of(s, far_block_number(g, b->id));
    uint64_t lost = 0;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++) {
        far_page_state page = far_page_unpack(b->pages[p]);
        uint32_t objects = page.in_use ? far_slab_objects(g->page_bytes, &page) : 0;
        bool listed = objects > 0 && is_listed(s, page.uid);
        for (uint32_t n = 0; n < objects; n++) {
            uint64_t at = p * (g->page_bytes / FAR_GRANULE) + n * (page.size / FAR_GRANULE);
            bool known = (marks[at / 64] | b->bits[at / 64]) >> at % 64 & 1;
            if (listed ? !settled && !known : s->mode != FAR_SWEEP_COUNT)
                lost += page.size;
        }
    }
    return lost;
}


/* Under a new pin after each that was freed or adopted: there may be many, that takes time, and the epoch goes on
 * meanwhile. */
static int go_on(far_task *t, int done) {
    if (done <= 0)
        return done;
    far_catalog_unpin(t);
    return far_pin_take(t);
}


static bool is_covered_orphan(void *ctx, far_block_id id, const uint64_t *entry) {
    const sweeper *s = ctx;
    return far_block_unpack(entry[0]).kind == FAR_BLOCK_ORPHAN && is_covered(s, far_block_number(s->geometry, id));
}


/* An orphan with something to settle becomes ours: it is settled with our own blocks. */
static int end_orphan(far_task *t, void *ctx, far_tables *b) {
    sweeper *s = ctx;
    int err = far_tables_prove(t, b);
    if (err < 0 || !is_covered_orphan(s, b->id, b->entry)) /* somebody has adopted it meanwhile */
        return err;
    uint64_t lost = lost_in_orphan(s, b, !far_number_is_newer(s->sweep, (uint32_t)b->entry[1]));
    if (lost == 0)
        return 0;
    if (s->mode != FAR_SWEEP_COUNT)
        return go_on(t, far_orphan_adopt(t, b->id, b->entry)); /* and who settles it counts it */
    s->result.leaked_bytes += lost;
    return 0;
}


static int end_if_run(far_task *t, void *ctx, far_block_id id, const uint64_t *entry) {
    return far_block_unpack(entry[0]).kind == FAR_BLOCK_RUN ? go_on(t, end_run(ctx, id, entry)) : 0;
}


/* Nothing in the pool names them any more. */
static int free_dead(sweeper *s) {
    for (size_t i = 0; i < s->dead.count; i++) {
        int done = far_client_free(s->t, s->dead.items[i].id, s->dead.items[i].generation);
        if (done < 0)
            return done;
        s->result.dead_clients += done == 1;
    }
    return 0;
}


static int finish(sweeper *s) {
    int err = publish(s);
    if (err == 0)
        err = far_catalog_listed(s->t, &s->view);
    if (err == 0)
        err = far_pin_take(s->t);
    if (err == 0)
        err = far_blocks_each(s->t, end_if_run, s);
    if (err == 0)
        err = far_tables_each(s->t, is_covered_orphan, end_orphan, s);
    far_catalog_unpin(s->t);
    if (err == 0)
        err = free_dead(s);
    return err;
}


/* The field becomes free, whatever came of it; `walk` with it. */
static int step_down(far_task *t, far_request *r, void *ctx) {
    (void)ctx;
    if (r->sweeper != far_task_pool(t)->team.own->id)
        return 1;
    r->sweeper = 0;
    if (r->walk) /* the walk was given up: all are to hear of that */
        r->number = far_number_next(r->number);
    r->walk = false;
    return 0;
}


/* ---- A sweep that is none ---- */

static bool is_ours(far_team *team, unsigned id) {
    bool ours = id == team->own->id;
    pthread_mutex_lock(&team->lock);
    for (const far_session *s = team->first; s && !ours; s = s->next)
        ours = s->id == id;
    pthread_mutex_unlock(&team->lock);
    return ours;
}


bool far_sweep_is_said_of_us(far_pool *pool) {
    unsigned said = atomic_load_explicit(&pool->store->line.sweeper, memory_order_acquire);
    return said != 0 && !atomic_load_explicit(&pool->store->sweeping, memory_order_acquire) &&
           is_ours(&pool->team, said);
}


/* The id of a session that is dead may be another handle's by now, which sweeps, while ours still has that session: the
 * registry tells. (Our own id is nobody else's as long as this session lives.) */
static int deny(far_task *t, far_request *r, void *ctx) {
    unsigned own = far_task_pool(t)->team.own->id;
    uint64_t word = 0;
    if (r->sweeper == 0 || !is_ours(&far_task_pool(t)->team, r->sweeper))
        return 1;
    int err = r->sweeper == own ? 0 : far_read_word(t, far_client_entry(r->sweeper), &word);
    if (err < 0)
        return err;
    if (r->sweeper != own && (far_client_state_of(word) != FAR_CLIENT_LIVE || far_client_handle_of(word) != own))
        return 1;
    r->sweeper = own;
    return step_down(t, r, ctx);
}


/* Takes `sweeping`, as a sweep does, so that none begins in this handle meanwhile. */
int far_sweep_deny(far_task *t) {
    far_store *s = far_store_of(t);
    far_request made;
    if (atomic_exchange_explicit(&s->sweeping, true, memory_order_acquire))
        return 0;
    int err = far_request_change(t, deny, NULL, &made);
    if (err >= 0)
        atomic_store_explicit(&s->line.sweeper, 0, memory_order_release);
    atomic_store_explicit(&s->sweeping, false, memory_order_release);
    return err < 0 ? err : 0;
}


/* ---- Waiting for the owners ---- */

static bool owns_blocks(const sweeper *s, unsigned id) {
    for (size_t i = 0; i < s->owners.count; i++)
        if (s->owners.items[i].id == id && !s->owners.items[i].gone)
            return true;
    return false;
}


static int has_settled(far_task *t, void *ctx, unsigned id, const far_client *client) {
    sweeper *s = ctx;
    if (far_client_state_of(client->word) != FAR_CLIENT_LIVE || far_client_handle_of(client->word) != id)
        return 0;
    if (far_settled_sweep(client->settled) == s->sweep)
        s->settled += far_settled_bytes(client->settled);
    else
        s->missing += owns_blocks(s, id) || id == far_task_pool(t)->team.own->id;
    return 0;
}


/* A handle that sleeps settles when it looks at the pool next; one that was stopped never does. */
static int wait_until_settled(sweeper *s) {
    far_pool *pool = far_task_pool(s->t);
    uint64_t tick = far_tick(pool->fabric), until = far_now(s->t) + SETTLE_TICKS * tick;
    for (;;) {
        s->missing = 0;
        s->settled = 0;
        int err = far_clients_each(s->t, has_settled, s);
        if (err < 0)
            return err;
        if (s->missing == 0 || far_now(s->t) >= until)
            break;
        if ((err = far_pin_take(s->t)) < 0) /* awake, to settle our own */
            return err;
        far_pin_drop(s->t);
        if ((err = far_attend(s->t)) < 0)
            return err;
        far_sleep(s->t, tick / 2);
    }
    s->result.leaked_bytes += s->settled;
    return 0;
}


/* ---- The sweep as a whole ---- */

static int sweep_part(sweeper *s) {
    int err = begin(s);
    if (err < 0)
        return err;
    if ((err = walk(s)) == 0)
        err = finish(s);
    if (s->t->session->lost)
        return err < 0 ? err : s->t->session->lost;
    far_pin_drop(s->t);
    far_request made;
    int end = far_request_change(s->t, step_down, NULL, &made), wanted = 0;
    if (err != 0) /* those who heard of it have forgotten what they had not settled of the one before */
        wanted = far_want_sweep(s->t);
    end = end < 0 ? end : wanted;
    err = err != 0 ? err : end;
    return err == 0 && s->mode != FAR_SWEEP_SLOWLY ? wait_until_settled(s) : err;
}


static void forget_part(sweeper *s) {
    free(s->marks);
    free(s->dead.items);
    free(s->owners.items);
    s->dead = s->owners = (known_list){0};
}


/* A pool whose marks would be too large is swept in parts, one after the other. */
static int sweep(sweeper *s) {
    uint64_t total = far_block_total(s->geometry), most = s->store->marks_max / far_bitmap_bytes(s->geometry);
    int err = 0;
    for (s->end = 0; s->end < total && err == 0;) {
        s->first = s->end;
        s->end = total - s->first > most ? s->first + most : total;
        s->marks = calloc(s->end - s->first + 1, far_bitmap_bytes(s->geometry));
        if (s->marks)
            memset(marks_of(s, s->end), 0xff, far_bitmap_bytes(s->geometry));
        err = s->marks ? sweep_part(s) : far_fail(FAR_ERR_NO_MEMORY, "no memory for the marks of a sweep");
        forget_part(s);
    }
    if (err != 0)
        return err;
    uint64_t left = s->mode == FAR_SWEEP_COUNT ? s->result.leaked_bytes : 0;
    s->result.repaired_bytes = s->mode == FAR_SWEEP_COUNT ? 0 : s->result.leaked_bytes;
    return far_write_word(s->t, far_addr_make(0, FAR_SUPER_LEAKED), left);
}


int far_sweep(far_task *t, far_sweep_mode mode, far_sweep_result *result) {
    far_pool *pool = far_task_pool(t);
    *result = (far_sweep_result){0};
    if (t->pin.epoch != 0)
        return far_fail(FAR_ERR_INVALID, "a pinned task cannot sweep: it would wait for itself");
    if (atomic_exchange_explicit(&pool->store->sweeping, true, memory_order_acquire))
        return far_fail(FAR_ERR_BUSY, "this handle is sweeping");
    sweeper s = {
        .walk = {.object = meet_object}, .t = t, .store = pool->store, .geometry = &pool->geometry, .mode = mode};
    far_aside aside = far_aside_begin(t);
    int err = sweep(&s);
    far_aside_end(t, aside);
    *result = s.result;
    atomic_store_explicit(&pool->store->sweeping, false, memory_order_release);
    return err;
}
