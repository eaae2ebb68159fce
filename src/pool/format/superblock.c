/* Computes the layout of a pool, formats all-zero memory, checks the superblock of a formatted pool, and restores a
 * damaged constant (superblock.h). far_superblock_open is called when a pool is opened, far_superblock_check by checks
 * and repairs. */
#include "pool/format/superblock.h"
#include "base/error.h"
#include "pool/alloc/blocks.h"
#include "pool/format/fabric_record.h"
#include "pool/handle.h"
#include "pool/report.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define BLOCKS_MIN     4 /* minimum number of blocks on each node */
#define SLOTS_MIN      64
#define BYTES_PER_SLOT 16384
/* Blocks have the smallest size, unless the pool has at least BLOCKS_ENOUGH blocks of a larger size. Blocks larger than
 * FAR_BLOCK_BYTES_ENOUGH are used only if the pool has at least BLOCKS_AIM of them. */
#define BLOCKS_ENOUGH     256
#define BLOCKS_AIM        8192
#define BLOCK_PAGES_BYTES (FAR_BLOCK_PAGES * 8)

_Static_assert(FAR_SUPER_NODE_TABLE + 8 * FAR_NODES_MAX <= FAR_SUPER_REGISTRY,
               "the node table ends before the registry");
_Static_assert(FAR_SUPER_EPOCH == 64 && FAR_SUPER_SLOTS_HIGH < 128, "the words that change share one line");

typedef struct super_image { /* The superblock as one batch of READs returned it. */
    uint64_t magic;
    /* The words of the superblock, by offset / 8. For the magic word use the field `magic`, which was read before the
     * other words, instead of words[0]. */
    uint64_t words[FAR_SUPER_FABRIC_RECORD / 8 + 1];
    uint64_t node_bytes[FAR_NODES_MAX];
} super_image;

typedef struct node_header {
    uint64_t magic, pool_id, node;
} node_header;


static uint64_t round_up(uint64_t number, uint64_t step) {
    return (number + step - 1) / step * step;
}


static uint64_t block_size_for(uint64_t total) {
    uint64_t size = FAR_BLOCK_BYTES_MIN;
    while (size < FAR_BLOCK_BYTES_MAX &&
           size * 2 <= total / (size < FAR_BLOCK_BYTES_ENOUGH ? BLOCKS_ENOUGH : BLOCKS_AIM))
        size *= 2;
    return size;
}


/* Computes the layout of one node with the given number of blocks. Returns the offset where the last block ends. */
static uint64_t lay_out_node(far_geometry *g, unsigned n, uint64_t start, uint64_t blocks) {
    g->node[n].blocks = blocks;
    g->node[n].entries = round_up(start, 64);
    g->node[n].pages = round_up(g->node[n].entries + blocks * FAR_BLOCK_ENTRY_BYTES, 64);
    g->node[n].bitmaps = round_up(g->node[n].pages + blocks * BLOCK_PAGES_BYTES, 64);
    g->node[n].marks = round_up(g->node[n].bitmaps + blocks * far_bitmap_bytes(g), 64);
    g->node[n].first_block = round_up(g->node[n].marks + blocks * far_bitmap_bytes(g), 4096);
    return g->node[n].first_block + blocks * g->block_bytes;
}


static int fit_node_layout(far_geometry *g, unsigned n) {
    uint64_t start = n == 0 ? FAR_SUPER_REGISTRY + (uint64_t)(g->session_slots + 1) * FAR_CLIENT_BYTES : 64, blocks = 0;
    uint64_t per_block = g->block_bytes + FAR_BLOCK_ENTRY_BYTES + BLOCK_PAGES_BYTES + 2 * far_bitmap_bytes(g);
    if (g->node_bytes[n] > start)
        blocks = (g->node_bytes[n] - start) / per_block;
    while (blocks >= BLOCKS_MIN && lay_out_node(g, n, start, blocks) > g->node_bytes[n])
        blocks--; /* the rounding of the table sizes may have cost the space of a block */
    if (blocks < BLOCKS_MIN)
        return far_fail(FAR_ERR_INVALID,
                        "memory node %u has %llu bytes, which is too small for %d blocks of %llu bytes", n,
                        (unsigned long long)g->node_bytes[n], BLOCKS_MIN, (unsigned long long)g->block_bytes);
    assert(g->node[n].first_block % 4096 == 0 && g->node[n].entries >= start);
    return 0;
}


static int fit_all_nodes(far_geometry *g) {
    int err = 0;
    g->page_bytes = g->block_bytes / FAR_BLOCK_PAGES;
    for (unsigned n = 0; n < g->nodes && err == 0; n++)
        err = fit_node_layout(g, n);
    for (unsigned n = 1; n < g->nodes; n++)
        g->node[n].first_number = g->node[n - 1].first_number + g->node[n - 1].blocks;
    return err;
}


int far_geometry_make(unsigned nodes, const uint64_t node_bytes[], const far_capabilities *capabilities,
                      uint64_t pool_id, far_geometry *g) {
    if (nodes < 1 || nodes > FAR_NODES_MAX)
        return far_fail(FAR_ERR_INVALID, "a pool must have 1 to %d memory nodes, not %u", FAR_NODES_MAX, nodes);
    memset(g, 0, sizeof(*g));
    g->nodes = nodes;
    g->capabilities = *capabilities;
    g->agreed_capabilities = far_capabilities_pack(capabilities);
    g->pool_id = pool_id;
    uint64_t total = 0;
    for (unsigned n = 0; n < nodes; n++) {
        if (node_bytes[n] > FAR_NODE_BYTES_MAX || node_bytes[n] % 8 != 0)
            return far_fail(FAR_ERR_INVALID,
                            "memory node %u has %llu bytes; its size must be a multiple of 8 and at most 1T", n,
                            (unsigned long long)node_bytes[n]);
        g->node_bytes[n] = node_bytes[n];
        total += node_bytes[n];
    }
    g->block_bytes = block_size_for(total);
    uint64_t slots = total / BYTES_PER_SLOT;
    g->session_slots = slots < SLOTS_MIN ? SLOTS_MIN : slots > FAR_CLIENT_ID_MAX ? FAR_CLIENT_ID_MAX : (unsigned)slots;
    int err;
    while ((err = fit_all_nodes(g)) < 0 && g->block_bytes > FAR_BLOCK_BYTES_MIN)
        /* smaller blocks help if the pool has many small nodes, or one node much smaller than the others */
        g->block_bytes /= 2;
    return err;
}


static uint64_t hash_constants(const far_geometry *g) {
    uint64_t constants[3 + FAR_NODES_MAX] = {g->pool_id, g->agreed_capabilities,
                                             far_shape_pack(g->nodes, g->block_bytes, g->session_slots)};
    memcpy(constants + 3, g->node_bytes, g->nodes * sizeof(uint64_t));
    return XXH3_64bits(constants, (3 + g->nodes) * sizeof(uint64_t));
}


static const uint64_t granules[] = {8, 16, 64};
enum { GRANULES = sizeof(granules) / sizeof(granules[0]) };


static bool capabilities_are_known(uint64_t word) {
    bool known = false;
    for (unsigned i = 0; i < GRANULES; i++)
        known |= (word & 0xffff) == granules[i];
    return known && (word >> 18) == 0;
}


/* Checks that this fabric offers every capability that the pool relies on. All clients of a pool run the same protocol,
 * so each client must offer these capabilities. */
static int check_capabilities(const far_fabric *fabric, uint64_t word) {
    if (!capabilities_are_known(word))
        return far_fail(FAR_ERR_CORRUPT, "%s: the pool's capabilities are damaged", fabric->uri);
    far_capabilities pool = far_capabilities_unpack(word);
    const far_capabilities *ours = &fabric->capabilities;
    if (pool.atomic_bytes > ours->atomic_bytes)
        return far_fail(
            FAR_ERR_UNSUPPORTED,
            "%s: the pool relies on accesses of %u bytes that do not tear, but this fabric guarantees only %u bytes",
            fabric->uri, pool.atomic_bytes, ours->atomic_bytes);
    if (pool.masked_cas && !ours->masked_cas)
        return far_fail(FAR_ERR_UNSUPPORTED, "%s: the pool relies on masked CAS, which this fabric does not support",
                        fabric->uri);
    if (pool.atomics_in_order && !ours->atomics_in_order)
        return far_fail(
            FAR_ERR_UNSUPPORTED,
            "%s: the pool relies on atomics that take effect in order, which this fabric does not guarantee",
            fabric->uri);
    return 0;
}


/* Reads the superblock. The magic word is read first and was written last, so if it is valid, the constants are
 * complete. */
static int read_image(far_task *t, super_image *image) {
    unsigned nodes = far_task_fabric(t)->nodes;
    far_read(t, far_addr_make(0, FAR_SUPER_MAGIC), &image->magic, 8);
    far_read(t, far_addr_make(0, 0), image->words, sizeof(image->words));
    far_read(t, far_addr_make(0, FAR_SUPER_NODE_TABLE), image->node_bytes, nodes * sizeof(uint64_t));
    return far_wait(t);
}


static int read_headers(far_task *t, unsigned nodes, node_header *headers) {
    for (unsigned n = 1; n < nodes; n++)
        far_read(t, far_addr_make(n, 0), &headers[n], sizeof(headers[n]));
    return far_wait(t);
}


static int check_constants(far_task *t, const super_image *image, far_geometry *g) {
    const far_fabric *fabric = far_task_fabric(t);
    if (image->magic >> 16 != FAR_POOL_MAGIC)
        return far_fail(FAR_ERR_CORRUPT, "%s: not a farindex pool", fabric->uri);
    if (image->magic != FAR_POOL_MAGIC_WORD)
        return far_fail(FAR_ERR_CORRUPT,
                        "%s: the pool has format version %u, but this library supports only version %u", fabric->uri,
                        (unsigned)(image->magic & 0xffff), FAR_POOL_FORMAT);
    unsigned nodes = (unsigned)(image->words[FAR_SUPER_SHAPE / 8] & 0xffff);
    if (nodes != fabric->nodes)
        return far_fail(FAR_ERR_CORRUPT, "%s: the pool was formatted with %u memory nodes, but the URI names %u",
                        fabric->uri, nodes, fabric->nodes);
    for (unsigned n = 0; n < nodes; n++)
        if (image->node_bytes[n] != fabric->node_bytes[n])
            return far_fail(FAR_ERR_CORRUPT, "%s: memory node %u was formatted with %llu bytes, but now has %llu",
                            fabric->uri, n, (unsigned long long)image->node_bytes[n],
                            (unsigned long long)fabric->node_bytes[n]);
    uint64_t capabilities = image->words[FAR_SUPER_CAPABILITIES / 8];
    int err = check_capabilities(fabric, capabilities);
    if (err < 0)
        return err;
    far_capabilities agreed = far_capabilities_unpack(capabilities);
    agreed.min_rtt = fabric->capabilities.min_rtt;
    agreed.reads_in_order = fabric->capabilities.reads_in_order;
    err = far_geometry_make(nodes, fabric->node_bytes, &agreed, image->words[FAR_SUPER_POOL_ID / 8], g);
    if (err < 0)
        return err;
    if (image->words[FAR_SUPER_SHAPE / 8] != far_shape_pack(nodes, g->block_bytes, g->session_slots) ||
        image->words[FAR_SUPER_CHECK / 8] != hash_constants(g))
        return far_fail(FAR_ERR_CORRUPT, "%s: the superblock is damaged", fabric->uri);
    node_header headers[FAR_NODES_MAX];
    err = read_headers(t, nodes, headers);
    for (unsigned n = 1; n < nodes && err == 0; n++)
        if (headers[n].magic != FAR_POOL_MAGIC_WORD || headers[n].pool_id != g->pool_id || headers[n].node != n)
            err = far_fail(FAR_ERR_CORRUPT, "%s: memory node %u is not node %u of this pool", fabric->uri, n, n);
    return err;
}


/* Returns whether the memory is unformatted; called if there is no magic word. The memory is unformatted if it is all
 * zero, or contains only words of an unfinished formatting by a failed client. */
static bool is_unformatted(const super_image *image, const far_geometry *g) {
    uint64_t capabilities = image->words[FAR_SUPER_CAPABILITIES / 8], shape = image->words[FAR_SUPER_SHAPE / 8];
    if (capabilities != 0 && !capabilities_are_known(capabilities))
        return false;
    if (shape != 0 && shape != far_shape_pack(g->nodes, g->block_bytes, g->session_slots))
        return false;
    for (unsigned i = FAR_SUPER_CHECK / 8 + 1; i < sizeof(image->words) / 8; i++)
        if (image->words[i] != 0)
            return false;
    for (unsigned n = 0; n < g->nodes; n++)
        if (image->node_bytes[n] != 0 && image->node_bytes[n] != g->node_bytes[n])
            return false;
    return true;
}


/* Agrees on the pool id and the capabilities with clients that format the pool concurrently. The first CAS of each word
 * wins, and every client continues with the winning values. */
static int agree_on_constants(far_task *t, far_geometry *g) {
    far_fabric *fabric = far_task_fabric(t);
    uint64_t id = 0, capabilities = far_capabilities_pack(&fabric->capabilities), old_id, old_capabilities;
    while (id == 0)
        fabric->host->ops->secret(fabric->host, &id, sizeof(id));
    far_cas(t, far_addr_make(0, FAR_SUPER_POOL_ID), 0, id, &old_id);
    far_cas(t, far_addr_make(0, FAR_SUPER_CAPABILITIES), 0, capabilities, &old_capabilities);
    int err = far_wait(t);
    if (err < 0)
        return err;
    if (old_capabilities != 0)
        capabilities = old_capabilities;
    err = check_capabilities(fabric, capabilities);
    if (err < 0)
        return err;
    g->pool_id = old_id != 0 ? old_id : id;
    g->agreed_capabilities = capabilities;
    return 0;
}


static bool header_is_ours(const node_header *header, const far_geometry *g, unsigned n) {
    return (header->magic == 0 || header->magic == FAR_POOL_MAGIC_WORD) &&
           (header->pool_id == 0 || header->pool_id == g->pool_id) && (header->node == 0 || header->node == n);
}


static int check_headers(far_task *t, const far_geometry *g) {
    node_header headers[FAR_NODES_MAX];
    int err = read_headers(t, g->nodes, headers);
    for (unsigned n = 1; n < g->nodes && err == 0; n++)
        if (!header_is_ours(&headers[n], g, n))
            err = far_fail(FAR_ERR_CORRUPT, "%s: memory node %u belongs to another pool, or contains other data",
                           far_task_fabric(t)->uri, n);
    return err;
}


/* Writes all constants except the magic word. Every client writes the same bytes, so a client that was suspended here
 * and continues after the pool is in use does no harm. */
static int write_constants(far_task *t, const far_geometry *g) {
    uint64_t words[] = {g->pool_id, g->agreed_capabilities, far_shape_pack(g->nodes, g->block_bytes, g->session_slots),
                        hash_constants(g)};
    node_header headers[FAR_NODES_MAX];
    _Static_assert(sizeof(words) == FAR_SUPER_CHECK + 8 - FAR_SUPER_POOL_ID, "from the pool id to the check");
    for (unsigned n = 1; n < g->nodes; n++) {
        headers[n] = (node_header){FAR_POOL_MAGIC_WORD, g->pool_id, n};
        far_write(t, far_addr_make(n, 0), &headers[n], sizeof(headers[n]));
    }
    far_write(t, far_addr_make(0, FAR_SUPER_POOL_ID), words, sizeof(words));
    far_write(t, far_addr_make(0, FAR_SUPER_NODE_TABLE), g->node_bytes, g->nodes * sizeof(uint64_t));
    return far_wait(t);
}


static int write_constants_and_magic(far_task *t, const far_geometry *g) {
    int err = write_constants(t, g);
    return err < 0 ? err : far_write_word(t, far_addr_make(0, FAR_SUPER_MAGIC), FAR_POOL_MAGIC_WORD);
}


static int format_pool(far_task *t, far_geometry *g) {
    int err = agree_on_constants(t, g);
    if (err == 0)
        err = check_headers(t, g);
    if (err == 0)
        err = write_constants(t, g);
    if (err < 0)
        return err;
    uint64_t old;
    return far_cas_word(t, far_addr_make(0, FAR_SUPER_MAGIC), 0, FAR_POOL_MAGIC_WORD, &old);
}


/* ---- Restoring: if exactly one constant is damaged, it is derived from the others ---- */

typedef struct damaged_pool {
    const far_fabric *fabric;
    const super_image *image;
    const node_header *headers;
} damaged_pool;


static unsigned count_wrong_words(const damaged_pool *e, const far_geometry *g) {
    const uint64_t *words = e->image->words;
    unsigned wrong = (e->image->magic != FAR_POOL_MAGIC_WORD) + (words[FAR_SUPER_POOL_ID / 8] != g->pool_id) +
                     (words[FAR_SUPER_CAPABILITIES / 8] != g->agreed_capabilities) +
                     (words[FAR_SUPER_SHAPE / 8] != far_shape_pack(g->nodes, g->block_bytes, g->session_slots)) +
                     (words[FAR_SUPER_CHECK / 8] != hash_constants(g));
    for (unsigned n = 0; n < g->nodes; n++)
        wrong += e->image->node_bytes[n] != g->node_bytes[n];
    for (unsigned n = 1; n < g->nodes; n++)
        wrong += (e->headers[n].magic != FAR_POOL_MAGIC_WORD) + (e->headers[n].pool_id != g->pool_id) +
                 (e->headers[n].node != n);
    return wrong;
}


/* Returns whether `id` can be a damaged copy of the pool id `right`, which means that all its bits are 0, all its bits
 * are 1, or one bit is flipped. A node that belongs to another pool has a different id too, but practically never such
 * a value. */
static bool is_corrupt_copy_of_id(uint64_t id, uint64_t right) {
    return id == 0 || id == UINT64_MAX || __builtin_popcountll(id ^ right) == 1;
}


/* Tests a hypothesis for `restore_constants`: the pool has this id and these capabilities, and exactly one constant
 * word is damaged. `hash_is_intact` states whether the stored hash agrees with the hypothesis; if not, the hash is the
 * damaged word. Sets `g` to the layout. */
static bool one_word_is_damaged(const damaged_pool *e, uint64_t id, uint64_t capabilities, bool hash_is_intact,
                                far_geometry *g) {
    far_capabilities agreed = far_capabilities_unpack(capabilities);
    if (id == 0 || !capabilities_are_known(capabilities) ||
        far_geometry_make(e->fabric->nodes, e->fabric->node_bytes, &agreed, id, g) < 0 ||
        count_wrong_words(e, g) != 1 || (e->image->words[FAR_SUPER_CHECK / 8] == hash_constants(g)) != hash_is_intact)
        return false;
    for (unsigned n = 1; n < g->nodes; n++)
        if (e->headers[n].pool_id != id && !is_corrupt_copy_of_id(e->headers[n].pool_id, id))
            return false;
    bool other_version = e->image->magic != FAR_POOL_MAGIC_WORD && e->image->magic >> 16 == FAR_POOL_MAGIC;
    /* with several nodes, the headers of the other nodes confirm the format version */
    return g->nodes > 1 || !other_version;
}


static bool derive_constants(const damaged_pool *e, far_geometry *g) {
    uint64_t id = e->image->words[FAR_SUPER_POOL_ID / 8], capabilities = e->image->words[FAR_SUPER_CAPABILITIES / 8];
    for (uint64_t other = 0; other < 4 * GRANULES; other++)
        if (one_word_is_damaged(e, id, granules[other % GRANULES] | (other / GRANULES) << 16, true, g))
            return true;
    for (unsigned n = 1; n < e->fabric->nodes; n++)
        if (one_word_is_damaged(e, e->headers[n].pool_id, capabilities, true, g))
            return true;
    for (unsigned bit = 0; bit < 64; bit++)
        if (one_word_is_damaged(e, id ^ 1ull << bit, capabilities, true, g))
            return true;
    /* The last hypothesis is that the hash is damaged. With a single node only the superblock contains the pool id, so
     * the stored id is accepted. */
    return one_word_is_damaged(e, id, capabilities, false, g);
}


/* Restores the damaged constant of a pool that was refused with the error `refused`; far_last_error contains its text.
 * Returns that error if the other constants do not determine the damaged one. */
static int restore_constants(far_task *t, int refused, super_image *image) {
    node_header headers[FAR_NODES_MAX];
    far_geometry found;
    char why[256];
    snprintf(why, sizeof(why), "%s", far_last_error());
    int err = read_headers(t, far_task_fabric(t)->nodes, headers);
    if (err == 0 && !derive_constants(&(damaged_pool){far_task_fabric(t), image, headers}, &found))
        return far_fail(refused,
                        refused == FAR_ERR_CORRUPT
                            ? "%s; it cannot be restored, because the other constants do not determine the damaged one"
                            : "%s",
                        why);
    if (err == 0)
        err = write_constants_and_magic(t, &found);
    return err < 0 ? err : read_image(t, image);
}


/* Formats the memory if it is empty. If it is not empty, returns FAR_ERR_CORRUPT, unless another client formatted the
 * memory concurrently. */
static int format_if_empty(far_task *t, super_image *image, far_geometry *g) {
    const far_fabric *fabric = far_task_fabric(t);
    int err = far_geometry_make(fabric->nodes, fabric->node_bytes, &fabric->capabilities, 0, g);
    if (err < 0)
        return err;
    bool unformatted = is_unformatted(image, g);
    if (unformatted && (far_task_pool(t)->options.must_exist || fabric->reads_only))
        return far_fail(FAR_ERR_NOT_FOUND, "%s: there is no pool here; the memory was never used", fabric->uri);
    if (unformatted)
        err = format_pool(t, g);
    if (err == 0)
        /* the superblock is read again, also if another client finished formatting concurrently */
        err = read_image(t, image);
    if (err == 0 && image->magic == 0)
        err = far_fail(FAR_ERR_CORRUPT, "%s: neither a farindex pool nor empty memory", fabric->uri);
    return err;
}


int far_superblock_open(far_task *t, far_geometry *g) {
    far_pool *pool = far_task_pool(t);
    super_image image;
    int err = read_image(t, &image);
    if (err == 0 && image.magic == 0)
        err = format_if_empty(t, &image, g);
    if (err == 0)
        err = check_constants(t, &image, g);
    if ((err == FAR_ERR_CORRUPT || err == FAR_ERR_UNSUPPORTED) && pool->options.restore && !pool->fabric->reads_only &&
        (err = restore_constants(t, err, &image)) == 0)
        err = check_constants(t, &image, g);
    return err < 0 ? err : far_fabric_record_apply(pool, image.words[FAR_SUPER_FABRIC_RECORD / 8], &g->capabilities);
}


int far_superblock_check(far_task *t, bool repair, far_report *report) {
    const far_geometry *g = &far_task_pool(t)->geometry;
    super_image image;
    far_geometry seen;
    int err = read_image(t, &image);
    if (err == 0)
        err = check_constants(t, &image, &seen);
    if (err == 0 && image.words[FAR_SUPER_POOL_ID / 8] != g->pool_id)
        err = far_fail(FAR_ERR_CORRUPT, "the superblock belongs to another pool");
    if (repair && (err == FAR_ERR_CORRUPT || err == FAR_ERR_UNSUPPORTED))
        err = write_constants_and_magic(t, g);
    if (err == 0)
        err = far_fabric_record_check(far_task_pool(t), image.words[FAR_SUPER_FABRIC_RECORD / 8]);
    if (err != FAR_ERR_CORRUPT && err != FAR_ERR_UNSUPPORTED)
        return err;
    far_report_problem(report, "%s", far_last_error());
    return 0;
}
