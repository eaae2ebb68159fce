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
 * A page whose page word is damaged is in no known slab. Salvage tries all sizes and types of slabs that the index has
 * elsewhere on such a page. These guessed candidates are only used if a get finds them. */
#include "base/error.h"
#include "base/grow.h"
#include "client/client.h"
#include "client/op.h"
#include "index/common/results.h"
#include "pool/alloc/blocks.h"

#include <stdlib.h>
#include <string.h>

/* number of bytes at the beginning of a large object that are searched for a key; a key is never longer */
#define LARGE_HEAD_BYTES (16u << 10)
_Static_assert(LARGE_HEAD_BYTES <= FAR_BLOCK_BYTES_MIN, "the head of a large object is in its first block");

typedef struct slab_format { /* size and type of the objects of a slab */
    unsigned type, pages;
    uint64_t size;
} slab_format;

typedef struct collecting { /* the first step */
    far_index *index;
    far_keys keys;    /* candidates from known slabs */
    far_keys guessed; /* candidates from pages that belong to no known slab */
    bool guesses;     /* true during the second pass over the blocks, which only guesses */
    slab_format *formats;
    size_t format_count;
    char *slab; /* local copy of a slab or of the head of a large object, with room for a block */
} collecting;

typedef struct candidate {
    far_bytes key;
    bool guessed;
} candidate;


/* ---- Collecting candidates ---- */

static int note_format(collecting *c, const far_page_state *page) {
    for (size_t i = 0; i < c->format_count; i++)
        if (c->formats[i].type == page->type && c->formats[i].size == page->size)
            return 0;
    slab_format *formats = far_grow(c->formats, c->format_count, sizeof(*formats));
    if (!formats)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a salvage");
    c->formats = formats;
    c->formats[c->format_count++] = (slab_format){page->type, page->pages, page->size};
    return 0;
}


static int read_memory(far_task *t, far_addr addr, char *to, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += FAR_VERB_BYTES_MAX) {
        far_read(t, addr + at, to + at, bytes - at < FAR_VERB_BYTES_MAX ? bytes - at : FAR_VERB_BYTES_MAX);
        far_mark(t, FAR_VERB_SYSTEM);
    }
    return far_wait(t);
}


static int collect_from_object(far_task *t, collecting *c, unsigned type, const char *object, uint64_t bytes) {
    far_scratch_mark mark = far_scratch_here(t);
    int err = c->index->kind->object_keys(t, c->index, type, object, bytes, c->guesses ? &c->guessed : &c->keys);
    far_scratch_back(t, mark);
    return err;
}


static int collect_from_slab(far_task *t, collecting *c, unsigned type, const char *slab, uint64_t bytes,
                             uint64_t size) {
    int err = 0;
    for (uint64_t at = 0; at + size <= bytes && err >= 0; at += size)
        err = collect_from_object(t, c, type, slab + at, size);
    return err;
}


/* Tries all formats on the pages from `first` to before `end`, which belong to no known slab. Every page may be the
 * first one of a slab whose page word is damaged. */
static int guess_slabs(far_task *t, collecting *c, far_addr base, unsigned first, unsigned end) {
    uint64_t page_bytes = far_geometry_of(t)->page_bytes;
    int err = read_memory(t, base + first * page_bytes, c->slab, (end - first) * page_bytes);
    for (unsigned p = first; p < end && err >= 0; p++)
        for (size_t i = 0; i < c->format_count && err >= 0; i++) {
            const slab_format *format = &c->formats[i];
            unsigned pages = format->pages < end - p ? format->pages : end - p;
            err = collect_from_slab(t, c, format->type, c->slab + (p - first) * page_bytes, pages * page_bytes,
                                    format->size);
        }
    return err;
}


static int collect_from_large_object(far_task *t, collecting *c, far_addr base, unsigned type) {
    int err = read_memory(t, base, c->slab, LARGE_HEAD_BYTES);
    return err < 0 ? err : collect_from_object(t, c, type, c->slab, LARGE_HEAD_BYTES);
}


/* The block has no slabs. A large object of the index may begin here even if the entry of the block does not show that,
 * because the entry may be damaged. */
static int guess_large_object(far_task *t, collecting *c, far_addr base) {
    int err = 0;
    for (unsigned type = 0; type < c->index->kind->type_count && err >= 0; type++)
        err = collect_from_large_object(t, c, base, type);
    return err;
}


/* Returns whether a slab with a sound page word begins at this page, and sets *slab. The words of its other pages must be
 * 0, because a damaged number of pages must not hide the slabs that follow. */
static bool slab_begins(const far_geometry *g, const far_tables *b, unsigned p, far_page_state *slab) {
    if (b->pages[p] == 0 || !far_page_is_sound(g, p, b->pages[p]))
        return false;
    *slab = far_page_unpack(b->pages[p]);
    for (unsigned q = p + 1; q < p + slab->pages; q++)
        if (b->pages[q] != 0)
            return false;
    return true;
}


/* Collects from the slabs of the block that have a sound page word in the first pass, and guesses on all other pages in
 * the second pass. */
static int collect_from_pages(far_task *t, collecting *c, const far_tables *b) {
    const far_geometry *g = far_geometry_of(t);
    far_addr base = far_block_base(g, b->id);
    unsigned loose = 0; /* the pages from here to before the current one belong to no known slab */
    int err = 0;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES && err >= 0;) {
        far_page_state page;
        if (!slab_begins(g, b, p, &page)) {
            p++;
            continue;
        }
        uint64_t bytes = page.pages * g->page_bytes;
        if (c->guesses && loose < p)
            err = guess_slabs(t, c, base, loose, p);
        else if (!c->guesses && page.uid == c->index->uid && (err = note_format(c, &page)) >= 0 &&
                 (err = read_memory(t, base + p * g->page_bytes, c->slab, bytes)) >= 0)
            err = collect_from_slab(t, c, page.type, c->slab, bytes, page.size);
        loose = p += page.pages;
    }
    return c->guesses && loose < FAR_BLOCK_PAGES && err >= 0 ? guess_slabs(t, c, base, loose, FAR_BLOCK_PAGES) : err;
}


static int collect_from_block(far_task *t, void *ctx, far_tables *b) {
    collecting *c = ctx;
    far_block_state state = far_block_unpack(b->entry[0]);
    far_addr base = far_block_base(far_geometry_of(t), b->id);
    bool has_pages = false;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++)
        has_pages |= b->pages[p] != 0;
    if (has_pages)
        return collect_from_pages(t, c, b);
    if (state.kind == FAR_BLOCK_FREE)
        return 0;
    if (c->guesses)
        return guess_large_object(t, c, base);
    if (state.kind == FAR_BLOCK_LARGE_HEAD && state.uid == c->index->uid)
        return collect_from_large_object(t, c, base, state.type);
    return 0;
}


static int collect_from_memory(far_task *t, collecting *c) {
    int err = 0;
    for (unsigned pass = 0; pass < 2 && err >= 0; pass++) {
        c->guesses = pass == 1;
        err = far_tables_each(t, NULL, collect_from_block, c);
    }
    return err;
}


/* Task function: collects all candidates. */
static int collect_candidates(far_task *t, void *arg) {
    collecting *c = arg;
    t->label = "salvage";
    t->index_key = c->index->uid;
    int err = c->index->kind->object_keys ? collect_from_memory(t, c) : 0;
    c->keys.skips_damage = true;
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


/* Adds the keys that the index can contain. Damaged objects may contain keys of impossible lengths. */
static size_t add_candidates(const far_index *index, const far_keys *keys, bool guessed, candidate *to) {
    uint32_t size = (uint32_t)index->options[FAR_OPTION_KEY_SIZE], max = (uint32_t)index->options[FAR_OPTION_MAX_KEY],
             length;
    size_t count = 0;
    for (size_t at = 0; at < keys->used; at += sizeof(length) + length) {
        memcpy(&length, keys->data + at, sizeof(length));
        if (length > 0 && length <= max && (size == 0 || length == size))
            to[count++] = (candidate){{keys->data + at + sizeof(length), length}, guessed};
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


/* Gets the candidates and delivers the pairs. Returns 0, or the error of a session or pool that is lost. */
static int deliver_candidates(far_session *s, far_index *index, const candidate *list, size_t count,
                              const far_salvage *salvage, uint8_t *value) {
    for (size_t i = 0; i < count; i++) {
        size_t length = 0;
        far_bytes key = list[i].key;
        int err = far_get(s, index, key.data, key.length, value, FAR_VALUE_MAX, &length);
        if (err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE || err == FAR_ERR_INVALID)
            return err;
        if (err == 0 && salvage->each(salvage->ctx, key.data, key.length, value, length))
            return 0;
        if (err < 0 && err != FAR_ERR_NOT_FOUND && !list[i].guessed)
            salvage->skipped(salvage->ctx, key.data, key.length, far_last_error());
    }
    return 0;
}


int far_index_salvage(far_session *s, far_index *index, const far_salvage *salvage) {
    collecting c = {.index = index, .slab = malloc(FAR_BLOCK_BYTES_MAX)};
    uint8_t *value = malloc(FAR_VALUE_MAX);
    candidate *list = NULL;
    size_t count = 0;
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
    if (err >= 0)
        err = deliver_candidates(s, index, list, count, salvage, value);
    else
        err = far_describe_error(s, err);
    free(list);
    free(c.keys.data);
    free(c.guessed.data);
    free(c.formats);
    free(c.slab);
    free(value);
    return err;
}
