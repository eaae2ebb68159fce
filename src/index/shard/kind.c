/* The kind "shard": its options and object types, and create, open and close. README.md explains the protocol. */
#include "base/error.h"
#include "base/hash.h"
#include "index/shard/shard.h"
#include "pool/format/clients.h"

#include <stdlib.h>
#include <string.h>


/* defaults of the option `share`, for the pointer layout and the inline layout: one of `share` inserts takes a step of
 * sweep or drain (take_work_share in load_factor.c) */
enum { SHARE = 16, SHARE_INLINE = 6 };

/* default of the option `bits` (default_bits): smallest and largest value, and the part of the pool that an empty index
 * may use */
enum { BY_POOL = -1, BITS_MIN = 4, BITS_MAX = 7, MEMORY_SHARE = 256 };


uint64_t shard_hash(const far_index *index, far_bytes key) {
    const shard_state *st = shard_state_of(index);
    uint64_t word;
    if (!st->inlined)
        return far_hash(key, st->seed);
    memcpy(&word, key.data, sizeof(word));
    if (st->hash_bits < 64)
        word = __builtin_bswap64(word);
    return shard_mix(word & shard_mask(st->hash_bits), st->seed, st->hash_bits);
}


uint64_t shard_i_key(const shard_state *st, uint64_t h) {
    uint64_t word = shard_unmix(h, st->seed, st->hash_bits);
    return st->hash_bits < 64 ? __builtin_bswap64(word) : word;
}


bool shard_i_too_wide(const shard_state *st, far_bytes key) {
    uint64_t word;
    memcpy(&word, key.data, sizeof(word));
    return st->hash_bits < 64 && __builtin_bswap64(word) >> st->hash_bits;
}


void shard_level_hashes(const shard_state *st, uint64_t h, uint64_t level[3]) {
    for (unsigned i = 0; i < 3; i++)
        level[i] = shard_level_hash(st, h, i);
}


static bool is_inlined(const far_index *index) {
    return index->options[SHARD_OPTION_LAYOUT] == 0 && index->options[FAR_OPTION_KEY_SIZE] == 8 &&
           index->options[FAR_OPTION_VALUE_SIZE] == 8;
}


static unsigned log2_of(uint64_t n) {
    return 63 - (unsigned)__builtin_clzll(n);
}


static uint64_t descriptor_bytes(unsigned p) {
    return (sizeof(shard_descriptor) + (8ull << p) + 15) & ~15ull;
}


/* Returns the default of the option `bits`. Many clients fill a small table faster than it can double, because a doubling
 * waits for an epoch in which every client takes part. So an empty index of a large pool has 4 buckets for each of 2048
 * clients, but at most 1/256 of the memory of the pool. */
static unsigned default_bits(const far_pool *pool, unsigned p) {
    unsigned b = BITS_MIN;
    while (b < BITS_MAX && (uint64_t)SHARD_BUCKET_BYTES << (p + b + 1) <= far_memory_bytes(pool) / MEMORY_SHARE)
        b++;
    return b;
}


/* Determines the number of partitions (2^*p) and the size of an empty partition (2^*b buckets). If the option
 * `partitions` is 0, the number follows from the number of memory nodes. Returns 0 or an error. */
static int choose_shape(far_task *t, far_index *index, unsigned *p, unsigned *b) {
    uint64_t partitions = (uint64_t)index->options[SHARD_OPTION_PARTITIONS], nodes = far_task_nodes(t);
    if (partitions & (partitions - 1))
        return far_fail(FAR_ERR_INVALID, "partitions: %llu is not a power of two", (unsigned long long)partitions);
    if (partitions == 0)
        for (partitions = 64; partitions < 16 * nodes;)
            partitions *= 2;
    int64_t extent = index->options[SHARD_OPTION_EXTENT];
    if ((extent & (extent - 1)) != 0 || (extent != 0 && extent < SHARD_BUCKET_BYTES))
        return far_fail(FAR_ERR_INVALID, "extent: %lld is not a power of two from 512", (long long)extent);
    *p = log2_of(partitions);
    int64_t bits = index->options[SHARD_OPTION_BITS];
    *b = bits == BY_POOL ? default_bits(index->pool, *p) : (unsigned)bits;
    if (descriptor_bytes(*p) > far_object_bytes_max(index->pool))
        return far_fail(FAR_ERR_INVALID, "partitions: the pool is too small for an index of %llu partitions",
                        (unsigned long long)partitions);
    if (is_inlined(index) && !index->options[SHARD_OPTION_NARROW] && *p + *b < SHARD_IMPLIED)
        return far_fail(FAR_ERR_INVALID,
                        "bits: with keys and values of 8 bytes, partitions * 2^bits must be at least 2^%d",
                        SHARD_IMPLIED);
    return 0;
}


/* Returns the size of an extent: half of a block, unless the option `extent` demands a smaller one. */
static uint64_t extent_bytes(const far_index *index) {
    uint64_t half = far_object_bytes_max(index->pool) / 2, wanted = (uint64_t)index->options[SHARD_OPTION_EXTENT];
    return wanted && wanted < half ? wanted : half;
}


/* Fills an image of segment 0 with EMPTY slots at version 0. */
static void fill_segment(bool inlined, uint64_t *w, uint64_t buckets) {
    for (uint64_t i = 0; i < buckets; i++, w += SHARD_WORDS) {
        for (unsigned j = 0; j < SHARD_P_SLOTS; j++)
            w[j] = inlined ? (j % 2 ? shard_kw_empty(0, 0) : 0) : shard_empty(0);
        w[inlined ? SHARD_I_H : SHARD_P_HEADER] = shard_header(0, 0, 0);
        if (inlined)
            w[SHARD_I_K] = SHARD_K_FREE;
    }
}


/* Allocates segment 0 and its array of extents, if it has several. Returns 0 or an error. */
static int allocate_first_segment(far_task *t, far_index *index, unsigned node, shard_new_directory *made) {
    far_object object;
    int err = 0;
    for (; err >= 0 && made->extents < made->count; made->extents += err >= 0) {
        err = far_alloc(t, index, SHARD_TYPE_SEGMENT, made->bytes, node, FAR_ALLOC_ON_NODE, &object);
        made->extent[made->extents] = err < 0 ? 0 : object.addr;
    }
    made->segment = err < 0 ? 0 : made->extent[0];
    if (err < 0 || made->count == 1)
        return err;
    err = far_alloc(t, index, SHARD_TYPE_PROGRESS, (made->count * 8 + 15) & ~15ull, node, FAR_ALLOC_ON_NODE, &object);
    made->segment = err < 0 ? 0 : object.addr;
    return err;
}


void shard_free_directory(far_task *t, far_index *index, const shard_new_directory *made) {
    for (uint64_t i = 0; i < made->extents; i++)
        far_free(t, index, SHARD_TYPE_SEGMENT, made->extent[i], made->bytes);
    if (made->segment && made->count > 1)
        far_free(t, index, SHARD_TYPE_PROGRESS, made->segment, (made->count * 8 + 15) & ~15ull);
    if (made->directory)
        far_free(t, index, SHARD_TYPE_DIRECTORY, made->directory, SHARD_DIR_WORDS * 8);
}


/* Writes the directory, the array of the extents of segment 0, and the extents. */
static int write_directory(far_task *t, far_index *index, const shard_new_directory *made) {
    uint64_t *buckets = far_scratch(t, made->bytes), *words = far_scratch(t, SHARD_DIR_WORDS * 8);
    if (!buckets || !words)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to make a partition");
    fill_segment(is_inlined(index), buckets, made->bytes / SHARD_BUCKET_BYTES);
    memset(words, 0, SHARD_DIR_WORDS * 8);
    words[SHARD_DIR_SEGMENT] = made->segment;
    for (uint64_t i = 0; i < made->count; i++)
        for (uint64_t at = 0; at < made->bytes; at += FAR_VERB_BYTES_MAX)
            far_write(t, made->extent[i] + at, (const char *)buckets + at,
                      made->bytes - at < FAR_VERB_BYTES_MAX ? made->bytes - at : FAR_VERB_BYTES_MAX);
    if (made->count > 1)
        far_write(t, made->segment, made->extent, made->count * 8);
    far_write(t, made->directory, words, SHARD_DIR_WORDS * 8);
    return far_wait(t);
}


int shard_make_directory(far_task *t, far_index *index, unsigned node, unsigned b, shard_new_directory *made) {
    uint64_t bytes = (uint64_t)SHARD_BUCKET_BYTES << b, largest = extent_bytes(index);
    far_object object;
    *made = (shard_new_directory){.bytes = bytes < largest ? bytes : largest};
    made->count = bytes / made->bytes;
    made->extent = far_scratch(t, made->count * 8);
    if (!made->extent)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to make a partition");
    int err = allocate_first_segment(t, index, node, made);
    if (err >= 0)
        err = far_alloc(t, index, SHARD_TYPE_DIRECTORY, SHARD_DIR_WORDS * 8, node, FAR_ALLOC_ON_NODE, &object);
    made->directory = err < 0 ? 0 : object.addr;
    if (err < 0) {
        shard_free_directory(t, index, made);
        return err;
    }
    return write_directory(t, index, made);
}


static int create_partition(far_task *t, far_index *index, unsigned node, unsigned b, far_addr *pcb) {
    shard_new_directory made;
    far_object object;
    far_scratch_mark mark = far_scratch_here(t);
    int err = shard_make_directory(t, index, node, b, &made);
    if (err < 0 ||
        (err = far_alloc(t, index, SHARD_TYPE_PCB, SHARD_PCB_WORDS * 8, node, FAR_ALLOC_ON_NODE, &object)) < 0)
        return err;
    uint64_t words[SHARD_PCB_WORDS] = {[SHARD_PCB_ROOT] = shard_root(0, SHARD_STABLE, true, 0),
                                       [SHARD_PCB_DIRECTORY] = shard_directory_word(made.directory, 0)};
    far_write(t, object.addr, words, sizeof(words));
    *pcb = object.addr;
    err = far_wait(t);
    far_scratch_back(t, mark);
    return err;
}


static uint64_t descriptor_check(const shard_descriptor *descriptor) {
    return far_hash((far_bytes){descriptor + 1, 8ull << descriptor->p}, (uint64_t)descriptor->p << 32 | descriptor->b);
}


static int shard_create(far_task *t, far_index *index) {
    unsigned p = 0, b = 0;
    int err = choose_shape(t, index, &p, &b);
    if (err < 0)
        return err;
    shard_descriptor *descriptor = far_scratch(t, descriptor_bytes(p));
    uint64_t *pcb = (uint64_t *)(descriptor + 1);
    if (!descriptor)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to create an index");
    memset(descriptor, 0, descriptor_bytes(p));
    *descriptor = (shard_descriptor){.magic = SHARD_MAGIC, .p = p, .b = b};
    for (uint64_t i = 0; i < 1ull << p; i++)
        if ((err = create_partition(t, index, (unsigned)(i % far_task_nodes(t)), b, &pcb[i])) < 0)
            return err;
    descriptor->check = descriptor_check(descriptor);
    far_object object;
    if ((err = far_alloc(t, index, SHARD_TYPE_ROOT, descriptor_bytes(p), 0, 0, &object)) < 0)
        return err;
    far_index_set_descriptor(index, object.addr);
    far_write(t, object.addr, descriptor, descriptor_bytes(p));
    return far_wait(t);
}


static bool hash_has_bits_for(const shard_state *st, unsigned version) {
    if (version >= SHARD_VERSIONS)
        return false;
    if (st->inlined)
        return st->p + st->b + version < st->hash_bits;
    return shard_tag_low(st->p, st->b, version) + SHARD_TAG_BITS <= 64;
}


/* Returns true if all objects of a version fit into a block of the pool: its progress table, its tables, and the arrays
 * of their extents. Sizes grow with the version, so they cannot overflow if those of the version
 * before fit. */
static bool version_fits(const far_pool *pool, const shard_state *st, unsigned version) {
    uint64_t most = far_object_bytes_max(pool);
    if (version > 0 && shard_progress_bytes(st, version) > most)
        return false;
    for (unsigned level = 1; level <= 3; level++)
        if (shard_table_object_bytes(st, level, version) > most)
            return false;
    return true;
}


static void read_options(shard_state *st, const far_index *index) {
    const int64_t *o = index->options;
    int64_t slots = st->inlined ? SHARD_I_SLOTS : SHARD_P_SLOTS,
            l2_slots = st->inlined ? SHARD_L2_I_SLOTS : SHARD_L2_P_SLOTS;
    st->slots = (unsigned)(o[SHARD_OPTION_SLOTS] && o[SHARD_OPTION_SLOTS] < slots ? o[SHARD_OPTION_SLOTS] : slots);
    st->l2_slots = (unsigned)(o[SHARD_OPTION_L2_SLOTS] && o[SHARD_OPTION_L2_SLOTS] < l2_slots ? o[SHARD_OPTION_L2_SLOTS]
                                                                                              : l2_slots);
    st->hash_bits = st->inlined && o[SHARD_OPTION_NARROW] ? SHARD_REM_BITS : 64;
    st->implied = st->hash_bits - SHARD_REM_BITS;
    st->load = (unsigned)(o[SHARD_OPTION_LOAD] ? o[SHARD_OPTION_LOAD] : st->inlined ? 75 : 80);
    st->extent = extent_bytes(index);
    st->afs = (unsigned)o[SHARD_OPTION_AFS];
    st->alpha = (unsigned)o[SHARD_OPTION_ALPHA];
    st->grace = o[SHARD_OPTION_GRACE];
    st->lazy = o[SHARD_OPTION_LAZY];
    st->share = (unsigned)(o[SHARD_OPTION_SHARE] ? o[SHARD_OPTION_SHARE] : st->inlined ? SHARE_INLINE : SHARE);
    st->idle_sweep = o[SHARD_OPTION_IDLE_SWEEP];
    st->move_on_read = o[SHARD_OPTION_MOVE_ON_READ];
    st->sampling = o[SHARD_OPTION_LOAD_BY];
    st->combining = o[SHARD_OPTION_COMBINING];
    st->absorb = o[SHARD_OPTION_ABSORB];
    st->pair_read = o[SHARD_OPTION_PAIR_READ];
    /* a split after a get (move_on_read) needs the header of the bucket */
    st->half_read = st->inlined && o[SHARD_OPTION_HALF_READ] && !st->move_on_read;
    st->ordered_cas = o[SHARD_OPTION_ORDERED_CAS];
    st->tag_mask = (1u << o[SHARD_OPTION_TAG_BITS]) - 1;
    for (unsigned v = 0; v < sizeof(st->tag_low); v++)
        st->tag_low[v] = (uint8_t)shard_tag_low(st->p, st->b, v);
    while (hash_has_bits_for(st, st->versions) && version_fits(index->pool, st, st->versions))
        st->versions++;
    while (st->single_extent_segments < st->versions && shard_extent_count(st, 1, st->single_extent_segments) == 0)
        st->single_extent_segments++;
    st->one_filter_bit = o[SHARD_OPTION_FILTER_BITS] == 1;
    memcpy(&st->seed, index->secret, sizeof(st->seed));
    memcpy(st->level_seed, index->secret + 8, sizeof(st->level_seed));
}


static int read_partitions(far_task *t, const uint64_t *pcb, shard_state *st) {
    uint64_t count = 1ull << st->p, (*words)[SHARD_PCB_READ_WORDS] = far_scratch(t, count * sizeof(*words));
    if (!words)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to open an index");
    for (uint64_t i = 0; i < count; i++)
        far_read(t, pcb[i], words[i], sizeof(words[i]));
    int err = far_wait(t);
    for (uint64_t i = 0; err >= 0 && i < count; i++) {
        shard_partition *part = &st->part[i];
        part->pcb = pcb[i];
        part->number = i;
        atomic_store_explicit(&part->root, words[i][SHARD_PCB_ROOT], memory_order_relaxed);
        shard_learn_partition(t, part, words[i]);
        atomic_store_explicit(&part->count, (int64_t)words[i][SHARD_PCB_COUNT], memory_order_relaxed);
        atomic_flag_clear_explicit(&part->working, memory_order_relaxed);
        atomic_flag_clear_explicit(&part->growing, memory_order_relaxed);
    }
    return err;
}


int shard_read_descriptor(far_task *t, const far_index *index, shard_descriptor **read) {
    shard_descriptor head;
    far_read(t, index->descriptor, &head, sizeof(head));
    int err = far_wait(t);
    if (err < 0)
        return err;
    if (head.magic != SHARD_MAGIC && (head.magic & shard_mask(48)) == (SHARD_MAGIC & shard_mask(48)))
        return far_fail(FAR_ERR_INVALID,
                        "index '%s' was created by %s version of farindex, in a layout that this version cannot read: "
                        "dump it with that version, drop it, and load it again",
                        index->name, head.magic < SHARD_MAGIC ? "an earlier" : "a later");
    if (head.magic != SHARD_MAGIC || head.p > SHARD_P_MAX || head.b > SHARD_B_MAX)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': its descriptor is corrupt", index->name);
    shard_descriptor *descriptor = far_scratch(t, descriptor_bytes(head.p));
    if (!descriptor)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to open an index");
    *descriptor = head;
    far_read(t, index->descriptor + sizeof(head), descriptor + 1, 8ull << head.p);
    if ((err = far_wait(t)) < 0)
        return err;
    if (head.check != descriptor_check(descriptor))
        return far_fail(FAR_ERR_CORRUPT, "index '%s': its descriptor is corrupt: the checksum does not match",
                        index->name);
    *read = descriptor;
    return 0;
}


static int shard_open(far_task *t, far_index *index) {
    shard_descriptor *descriptor;
    int err = shard_read_descriptor(t, index, &descriptor);
    if (err < 0)
        return err;
    shard_state *st = calloc(1, sizeof(*st) + (sizeof(st->part[0]) << descriptor->p));
    if (!st)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to open an index");
    st->inlined = is_inlined(index);
    st->wide = shard_has_wide_vectors();
    st->whole_pairs = far_task_capabilities(t)->atomic_bytes >= 16;
    st->p = descriptor->p;
    st->b = descriptor->b;
    read_options(st, index);
    unsigned clients;
    if ((err = far_clients_live(t, &clients)) < 0 ||
        (err = read_partitions(t, (const uint64_t *)(descriptor + 1), st)) < 0) {
        free(st);
        return err;
    }
    atomic_store_explicit(&st->clients, clients, memory_order_relaxed);
    /* handles begin at different partitions, so that they do not repeat the same work */
    atomic_store_explicit(&st->idle_next, far_task_client(t) % (1u << st->p), memory_order_relaxed);
    index->state = st;
    far_point(t, "shard:opened");
    return 0;
}


shard_counters shard_totals;


static void add_counters(const shard_counters *c) {
    _Atomic uint64_t *to = (_Atomic uint64_t *)&shard_totals;
    const _Atomic uint64_t *from = (const _Atomic uint64_t *)c;
    for (unsigned i = 0; i < sizeof(*c) / sizeof(*to); i++)
        atomic_fetch_add_explicit(&to[i], atomic_load_explicit(&from[i], memory_order_relaxed), memory_order_relaxed);
}


static void shard_close(far_index *index) {
    shard_state *st = index->state;
    add_counters(&st->counters);
    for (uint64_t i = 0; i < 1ull << st->p; i++)
        shard_free_extent_caches(st, &st->part[i]);
    free(st);
    index->state = NULL;
}


/* Returns the bytes of local memory that the handle uses for this index. This memory is not a cache, because it cannot
 * be evicted. */
size_t shard_local_bytes(const far_index *index) {
    shard_state *st = index->state;
    size_t bytes = sizeof(*st) + (sizeof(st->part[0]) << st->p);
    for (uint64_t i = 0; i < 1ull << st->p; i++)
        bytes += shard_extent_cache_bytes(st, &st->part[i]);
    return bytes;
}


static int shard_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value) {
    return (shard_state_of(index)->inlined ? shard_i_put : shard_p_put)(t, index, how, key, value);
}


static int shard_remove(far_task *t, far_index *index, far_bytes key) {
    return (shard_state_of(index)->inlined ? shard_i_remove : shard_p_remove)(t, index, key);
}


static const char *const layouts[] = {"auto", "pointer", NULL}, *const load_by[] = {"count", "sample", NULL};

static const far_option_def options[] = {
    {"partitions", FAR_OPTION_NUMBER, 0, 0, 65536, NULL, "a power of two; 0: by the number of memory nodes"},
    {"bits", FAR_OPTION_NUMBER, BY_POOL, BY_POOL, 16, NULL,
     "an empty partition has 2^bits buckets; not given: 4 to 7, by the size of the pool"},
    {"load", FAR_OPTION_NUMBER, 0, 0, 95, NULL,
     "percentage of slots in use at which a partition doubles; 0: 80, or 75 with inline pairs"},
    {"slots", FAR_OPTION_NUMBER, 0, 0, 63, NULL, "number of slots used in a bucket (for tests); 0: all"},
    {"l2_slots", FAR_OPTION_NUMBER, 0, 0, 8, NULL, "number of slots used in a level-2 bucket (for tests); 0: all"},
    {"extent", FAR_OPTION_NUMBER, 0, 0, 2 << 20, NULL,
     "largest extent of a table in bytes, a power of two from 512 (for tests); 0: half of a block"},
    {"afs", FAR_OPTION_NUMBER, 0, 0, 1000000, NULL,
     "number of writes after which a handle publishes its count; 0: adaptive"},
    {"alpha", FAR_OPTION_NUMBER, 100, 1, 10000, NULL,
     "with afs=0: thousandths of the free slots that may be filled before counts are published again"},
    {"grace", FAR_OPTION_BOOL, 1, 0, 1, NULL, "splits do not freeze words once all clients know of the doubling"},
    {"lazy_resize", FAR_OPTION_BOOL, 1, 0, 1, NULL,
     "off: writes wait until all buckets of a doubling partition are split"},
    {"combining", FAR_OPTION_BOOL, 1, 0, 1, NULL, "both halves of a split are written in one round trip"},
    {"absorb", FAR_OPTION_BOOL, 1, 0, 1, NULL, "an update that lost to another one counts as superseded and succeeds"},
    {"pair_read", FAR_OPTION_BOOL, 1, 0, 1, NULL, "while a partition doubles, child and parent are read together"},
    {"half_read", FAR_OPTION_BOOL, 1, 0, 1, NULL,
     "inline pairs: gets read half of the bucket first; off: better if most gets are of absent keys"},
    {"ordered_cas", FAR_OPTION_BOOL, 1, 0, 1, NULL,
     "off: every write locks its bucket, and every get reads the header of its bucket twice"},
    {"tag_bits", FAR_OPTION_NUMBER, 14, 7, 14, NULL, "number of tag bits that are compared"},
    {"filter_bits", FAR_OPTION_NUMBER, 16, 1, 16, NULL, "bits of the overflow filter: 1 or 16"},
    {"layout", FAR_OPTION_CHOICE, 0, 0, 0, layouts,
     "auto: keys and values of 8 bytes are stored in the buckets; pointer: in pair blocks"},
    {"narrow", FAR_OPTION_BOOL, 0, 0, 1, NULL,
     "inline pairs: keys are big-endian numbers below 2^54, tables may be tiny (for tests)"},
    {"idle_sweep", FAR_OPTION_BOOL, 1, 0, 1, NULL,
     "housekeeping continues the doubling of partitions without inserts, and shrinks empty ones"},
    {"move_on_read", FAR_OPTION_BOOL, 0, 0, 1, NULL, "a get that reads an unsplit bucket splits it afterwards"},
    {"load_by", FAR_OPTION_CHOICE, 0, 0, 0, load_by,
     "how the load is measured: count: by a shared count of keys; sample: by the buckets that inserts read"},
    {"share", FAR_OPTION_NUMBER, 0, 0, 1024, NULL,
     "one of this many inserts takes a step of a doubling (1: for tests); 0: 16, or 6 with inline pairs"},
    {0},
};

static const far_type types[SHARD_TYPES] = {
    [SHARD_TYPE_ROOT] = {.name = "root", .align = 16},
    [SHARD_TYPE_PCB] = {.name = "partition", .align = 64},
    [SHARD_TYPE_SEGMENT] = {.name = "segment", .align = 64},
    [SHARD_TYPE_OVERFLOW] = {.name = "overflow", .align = 64},
    [SHARD_TYPE_PROGRESS] = {.name = "progress", .align = 16},
    [SHARD_TYPE_NODE] = {.name = "node", .align = 64},
    [SHARD_TYPE_BLOCK] = {.name = "block", .align = 64},
    [SHARD_TYPE_DIRECTORY] = {.name = "body", .align = 64},
};

static const char *const private_options[] = {"slots",      "l2_slots",     "extent",      "grace",
                                              "pair_read",  "tag_bits",     "filter_bits", "narrow",
                                              "idle_sweep", "move_on_read", "share",       NULL};

const far_index_kind far_shard_kind = {
    .name = "shard",
    .what_for = "point operations in one round trip; no scans",
    .options = options,
    .private_options = private_options,
    .max_key = 65535,
    .types = types,
    .type_count = SHARD_TYPES,
    .create = shard_create,
    .open = shard_open,
    .close = shard_close,
    .get = shard_get,
    .get_many = shard_get_many,
    .put = shard_put,
    .remove = shard_remove,
    .walk = shard_walk,
    .check = shard_check,
    .usage = shard_usage,
    .keys = shard_keys,
    .object_keys = shard_object_keys,
    .load_factor = shard_load_factor,
    .epoch_hook = shard_epoch_hook,
    .idle_hook = shard_idle_hook,
};
