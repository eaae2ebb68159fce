/* Salvage: delivers the pairs of a damaged index that can still be read (far_index_salvage, used by `farindex dump
 * --salvage` and `copy --salvage`).
 *
 * A scan ends at the first broken object, because it cannot know which keys follow. Salvage therefore does not follow
 * the structure of the index to find its keys. It works in two steps:
 *
 *   1. It collects candidates: all keys that it finds in the objects of the index. The tables of the allocator show
 *      where these objects are, whether or not the index still leads to them. The index kind extracts the keys
 *      (far_index_kind.object_keys). The contents of an inline shard index can be decoded only with the position of
 *      each bucket, so that kind also traverses its buckets and leaves out those that are broken.
 *   2. It gets each candidate by an ordinary get. A get reads only the path of its key. So a pair is delivered if and
 *      only if its own path is intact, however damaged the rest of the index is; and a key that was deleted or was
 *      never written is not delivered, although an old or damaged object contained it.
 *
 * A page whose page word is damaged is in no known slab. On such a page an object of any type may begin at any place.
 * Salvage tries all of them. These guessed candidates, and the keys in free objects, are gotten last, and are not
 * reported unless a get finds them. */
#include "base/error.h"
#include "client/client.h"
#include "client/op.h"
#include "client/snapshot.h"
#include "index/common/results.h"
#include "pool/alloc/blocks.h"

#include <stdlib.h>
#include <string.h>

typedef struct collecting { /* the first step */
    far_index *index;
    far_snapshot survey; /* the indexes of the pool */
    far_keys keys;       /* candidates from objects in use */
    far_keys guessed;    /* candidates from free objects, and from pages that belong to no known slab */
    char *slab;          /* local copy of a slab or of loose pages, with room for a block */
} collecting;

typedef struct candidate {
    far_bytes key;
    bool guessed, done; /* done: the pair was delivered */
} candidate;


/* ---- Collecting candidates ---- */

static int read_memory(far_task *t, far_addr addr, char *to, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += FAR_VERB_BYTES_MAX) {
        far_read(t, addr + at, to + at, bytes - at < FAR_VERB_BYTES_MAX ? bytes - at : FAR_VERB_BYTES_MAX);
        far_mark(t, FAR_VERB_SYSTEM);
    }
    return far_wait(t);
}


static int collect_from_object(far_task *t, collecting *c, unsigned type, const char *object, uint64_t bytes,
                               bool in_use) {
    far_scratch_mark mark = far_scratch_here(t);
    int err = c->index->kind->object_keys(t, c->index, type, object, bytes, in_use ? &c->keys : &c->guessed);
    far_scratch_back(t, mark);
    return err;
}


/* Collects from a slab that begins at page `first` of the block. Free objects may contain keys that were deleted. */
static int collect_from_slab(far_task *t, collecting *c, const far_tables *b, unsigned first,
                             const far_page_state *slab) {
    uint64_t start = first * far_geometry_of(t)->page_bytes, bytes = slab->pages * far_geometry_of(t)->page_bytes;
    int err = read_memory(t, far_block_base(far_geometry_of(t), b->id) + start, c->slab, bytes);
    for (uint64_t at = 0; at + slab->size <= bytes && err >= 0; at += slab->size) {
        uint64_t granule = (start + at) / FAR_GRANULE;
        bool is_free = b->bits[granule / FAR_WORD_GRANULES] >> granule % FAR_WORD_GRANULES & 1;
        err = collect_from_object(t, c, slab->type, c->slab + at, slab->size, !is_free);
    }
    return err;
}


/* Collects from the pages from `first` to before `end`, which belong to no known slab. An object of each type may begin
 * wherever its alignment allows. */
static int guess_objects(far_task *t, collecting *c, far_addr base, unsigned first, unsigned end) {
    const far_index_kind *kind = c->index->kind;
    uint64_t page_bytes = far_geometry_of(t)->page_bytes, bytes = (end - first) * page_bytes;
    int err = read_memory(t, base + first * page_bytes, c->slab, bytes);
    for (unsigned type = 0; type < kind->type_count && err >= 0; type++) {
        unsigned align = kind->types[type].align > FAR_GRANULE ? kind->types[type].align : FAR_GRANULE;
        for (uint64_t at = 0; at < bytes && err >= 0; at += align)
            err = collect_from_object(t, c, type, c->slab + at, bytes - at, false);
    }
    return err;
}


/* Returns whether a slab with a credible page word begins at this page, and sets *slab. Some damaged words have a
 * correct check. Therefore the index and the type must exist, and the words of the other pages of the slab must be 0,
 * so that a wrong number of pages does not hide the slabs that follow. */
static bool slab_begins(const collecting *c, const far_geometry *g, const far_tables *b, unsigned p,
                        far_page_state *slab) {
    if (b->pages[p] == 0 || !far_page_is_sound(g, p, b->pages[p]))
        return false;
    *slab = far_page_unpack(b->pages[p]);
    if (slab->uid == c->index->uid ? slab->type >= c->index->kind->type_count
                                   : slab->uid != 0 && !far_snapshot_index_by_uid(&c->survey, slab->uid))
        return false;
    for (unsigned q = p + 1; q < p + slab->pages; q++)
        if (b->pages[q] != 0)
            return false;
    return true;
}


/* Collects from the slabs of the index, and guesses on all pages that belong to no slab. Also guesses on the pages of a
 * slab without keys, because its type may be wrong, and of a slab with an unusual number of pages, because its size may
 * be wrong. */
static int collect_from_pages(far_task *t, collecting *c, const far_tables *b) {
    const far_geometry *g = far_geometry_of(t);
    unsigned loose = 0; /* the pages from here to before the current one belong to no slab */
    int err = 0;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES && err >= 0;) {
        far_page_state slab;
        if (!slab_begins(c, g, b, p, &slab)) {
            p++;
            continue;
        }
        if (loose < p)
            err = guess_objects(t, c, far_block_base(g, b->id), loose, p);
        loose = p + slab.pages;
        size_t before = c->keys.used + c->guessed.used;
        if (err >= 0 && slab.uid == c->index->uid && (err = collect_from_slab(t, c, b, p, &slab)) >= 0 &&
            (before == c->keys.used + c->guessed.used || slab.pages != far_slab_pages(g->page_bytes, slab.size)))
            err = guess_objects(t, c, far_block_base(g, b->id), p, loose);
        p = loose;
    }
    return loose < FAR_BLOCK_PAGES && err >= 0 ? guess_objects(t, c, far_block_base(g, b->id), loose, FAR_BLOCK_PAGES)
                                               : err;
}


/* A block whose entry shows that it is free is searched, too, if it has page words, because the entry may be damaged. */
static int collect_from_block(far_task *t, void *ctx, far_tables *b) {
    bool may_have_objects = !far_block_is_free(b->entry[0]);
    for (unsigned p = 0; p < FAR_BLOCK_PAGES && !may_have_objects; p++)
        may_have_objects = b->pages[p] != 0;
    return may_have_objects ? collect_from_pages(t, ctx, b) : 0;
}


/* Task function: collects all candidates. */
static int collect_candidates(far_task *t, void *arg) {
    collecting *c = arg;
    t->label = "salvage";
    t->index_key = c->index->uid;
    int err = far_tables_each(t, NULL, collect_from_block, c);
    if (err >= 0 && c->index->kind->keys)
        err = c->index->kind->keys(t, c->index, &c->keys);
    return err;
}


/* ---- Getting the candidates ---- */

static int compare_candidates(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    int order = far_bytes_compare(x->key, y->key);
    return order ? order : (int)x->guessed - (int)y->guessed;
}


static size_t count_keys(const far_keys *keys) {
    size_t count = 0;
    uint32_t length;
    for (size_t at = 0; at < keys->used; at += sizeof(length) + length, count++)
        memcpy(&length, keys->data + at, sizeof(length));
    return count;
}


/* Adds the keys to the list, except those of a length that the index cannot have. */
static size_t add_candidates(const far_index *index, const far_keys *keys, bool guessed, candidate *to) {
    uint32_t size = (uint32_t)index->options[FAR_OPTION_KEY_SIZE], length;
    size_t count = 0;
    for (size_t at = 0; at < keys->used; at += sizeof(length) + length) {
        memcpy(&length, keys->data + at, sizeof(length));
        if (size == 0 || length == size)
            to[count++] = (candidate){{keys->data + at + sizeof(length), length}, guessed, false};
    }
    return count;
}


/* Makes the sorted list of all candidates without duplicates. A key that is a candidate in both ways is not a guess. */
static candidate *sort_candidates(const collecting *c, size_t *count) {
    candidate *list = malloc((count_keys(&c->keys) + count_keys(&c->guessed) + 1) * sizeof(*list));
    size_t all = 0, kept = 0;
    if (!list)
        return NULL;
    all = add_candidates(c->index, &c->keys, false, list);
    all += add_candidates(c->index, &c->guessed, true, list + all);
    qsort(list, all, sizeof(*list), compare_candidates);
    for (size_t i = 0; i < all; i++)
        if (kept == 0 || far_bytes_compare(list[kept - 1].key, list[i].key) != 0)
            list[kept++] = list[i];
    *count = kept;
    return list;
}


typedef struct delivery { /* the second step */
    far_session *session;
    far_index *index;
    const far_salvage *salvage;
    candidate *list;
    size_t count;
    uint8_t *value;
    bool ended; /* the caller wants no more pairs */
} delivery;


/* Gets candidates that were not delivered yet, and delivers their pairs. The first round leaves out the guessed ones,
 * and the last round reports the keys that cannot be read. Returns 0, or the error of a lost session. */
static int deliver_candidates(delivery *d, bool last) {
    bool adjacent = false;
    for (size_t i = 0; i < d->count && !d->ended; i++) {
        candidate *c = &d->list[i];
        size_t length = 0;
        adjacent &= !c->done;
        if (c->done || (c->guessed && !last))
            continue;
        int err = far_get(d->session, d->index, c->key.data, c->key.length, d->value, FAR_VALUE_MAX, &length);
        if (err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE || err == FAR_ERR_INVALID)
            return err;
        c->done = err == 0;
        if (err == 0)
            d->ended = d->salvage->each(d->salvage->ctx, c->key.data, c->key.length, d->value, length) != 0;
        if (err < 0 && err != FAR_ERR_NOT_FOUND && !c->guessed && last) {
            d->salvage->skipped(d->salvage->ctx, c->key.data, c->key.length, adjacent, far_last_error());
            adjacent = true;
        }
    }
    return 0;
}


/* Two rounds save more pairs than one. A get of an absent key reads more of the path than a get of a present key, and
 * may leave a hint or a cached node that leads later gets to a broken object; so the guessed candidates, of which most
 * are absent, follow in the second round. And a get may use a shortcut of the index or of the cache, and then passes
 * over a broken object; so the second round repeats the gets that failed, when the first one has filled the cache. */
static int deliver_in_two_rounds(delivery *d) {
    int err = deliver_candidates(d, false);
    return err < 0 ? err : deliver_candidates(d, true);
}


/* Returns whether the index is damaged. A check does not use the leniency of a private copy (far_index.lenient). */
static int is_damaged(far_session *s, far_index *index) {
    bool lenient = index->lenient;
    far_index_set_lenient(index, false);
    int problems = far_index_check(s, index, NULL, NULL);
    far_index_set_lenient(index, lenient);
    return problems != 0;
}


int far_index_salvage(far_session *s, far_index *index, const far_salvage *salvage) {
    far_keys salvaged = {.skips_damage = true, .longest = index ? (size_t)index->options[FAR_OPTION_MAX_KEY] : 0};
    collecting c = {.index = index, .keys = salvaged, .guessed = salvaged, .slab = malloc(FAR_BLOCK_BYTES_MAX)};
    uint8_t *value = malloc(FAR_VALUE_MAX);
    candidate *list = NULL;
    size_t count = 0;
    /* The snapshot fails in a pool with damaged tables. Then slabs of other indexes may be searched, too. */
    (void)far_snapshot_take(s, &c.survey);
    int err = far_call_enter(s);
    if (err >= 0) {
        err = far_check_index(s, index);
        if (err >= 0 && (!value || !c.slab))
            err = far_fail(FAR_ERR_NO_MEMORY, "no memory for a salvage");
        if (err >= 0) {
            far_index_use(index);
            err = far_session_call(s, FAR_STATS_OTHER, false, collect_candidates, &c);
            far_index_unuse(index);
        }
        far_submitted_scans_deliver(s);
        far_call_leave(s);
    }
    if (err >= 0 && !(list = sort_candidates(&c, &count)))
        err = far_fail(FAR_ERR_NO_MEMORY, "no memory for the keys of an index");
    if (err < 0)
        err = far_describe_error(s, err);
    else if ((err = deliver_in_two_rounds(&(delivery){s, index, salvage, list, count, value, false})) >= 0)
        err = is_damaged(s, index);
    far_snapshot_free(&c.survey);
    free(list);
    free(c.keys.data);
    free(c.guessed.data);
    free(c.slab);
    free(value);
    return err;
}
