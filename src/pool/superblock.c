/* Laying out a pool, formatting it, and checking what is there. */
#include "pool/superblock.h"
#include "base/error.h"
#include "pool/blocks.h"
#include "pool/handle.h"
#include "pool/refuted.h"
#include "pool/report.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define BLOCKS_MIN        4 /* of a node */
#define SLOTS_MIN         64
#define BYTES_PER_SLOT    16384
#define BLOCKS_AIM        8192 /* of a pool, before blocks grow beyond the smallest */
#define BLOCK_PAGES_BYTES (FAR_BLOCK_PAGES * 8)

_Static_assert(FAR_SUPER_NODE_TABLE + 8 * FAR_NODES_MAX <= FAR_SUPER_REGISTRY,
               "the node table ends before the registry");
_Static_assert(FAR_SUPER_EPOCH == 64 && FAR_SUPER_SLOTS_HIGH < 128, "the words that change share one line");

typedef struct super_image { /* as read: the magic word first, the rest later */
    uint64_t magic;
    uint64_t words[FAR_SUPER_REFUTED / 8 + 1]; /* by offset / 8; words[0] is not the magic to go by */
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
    while (size < FAR_BLOCK_BYTES_MAX && size * 2 <= total / BLOCKS_AIM)
        size *= 2;
    return size;
}


/* Lays out one node with so many blocks; returns where they end. */
static uint64_t lay_out_node(far_geometry *g, unsigned n, uint64_t start, uint64_t blocks) {
    g->node[n].blocks = blocks;
    g->node[n].entries = round_up(start, 64);
    g->node[n].pages = round_up(g->node[n].entries + blocks * FAR_BLOCK_ENTRY_BYTES, 64);
    g->node[n].bitmaps = round_up(g->node[n].pages + blocks * BLOCK_PAGES_BYTES, 64);
    g->node[n].marks = round_up(g->node[n].bitmaps + blocks * far_bitmap_bytes(g), 64);
    g->node[n].first_block = round_up(g->node[n].marks + blocks * far_bitmap_bytes(g), 4096);
    return g->node[n].first_block + blocks * g->block_bytes;
}


static int fit_node(far_geometry *g, unsigned n) {
    uint64_t start = n == 0 ? FAR_SUPER_REGISTRY + (uint64_t)(g->session_slots + 1) * FAR_CLIENT_BYTES : 64, blocks = 0;
    uint64_t per_block = g->block_bytes + FAR_BLOCK_ENTRY_BYTES + BLOCK_PAGES_BYTES + 2 * far_bitmap_bytes(g);
    if (g->node_bytes[n] > start)
        blocks = (g->node_bytes[n] - start) / per_block;
    while (blocks >= BLOCKS_MIN && lay_out_node(g, n, start, blocks) > g->node_bytes[n])
        blocks--; /* what rounding took */
    if (blocks < BLOCKS_MIN)
        return far_fail(FAR_ERR_INVALID, "memory node %u has %llu bytes: too small for %d blocks of %llu bytes", n,
                        (unsigned long long)g->node_bytes[n], BLOCKS_MIN, (unsigned long long)g->block_bytes);
    assert(g->node[n].first_block % 4096 == 0 && g->node[n].entries >= start);
    return 0;
}


static int fit_nodes(far_geometry *g) {
    int err = 0;
    g->page_bytes = g->block_bytes / FAR_BLOCK_PAGES;
    for (unsigned n = 0; n < g->nodes && err == 0; n++)
        err = fit_node(g, n);
    for (unsigned n = 1; n < g->nodes; n++)
        g->node[n].first_number = g->node[n - 1].first_number + g->node[n - 1].blocks;
    return err;
}


int far_geometry_make(unsigned nodes, const uint64_t node_bytes[], const far_capabilities *capabilities,
                      uint64_t pool_id, far_geometry *g) {
    if (nodes < 1 || nodes > FAR_NODES_MAX)
        return far_fail(FAR_ERR_INVALID, "a pool has 1 to %d memory nodes, not %u", FAR_NODES_MAX, nodes);
    memset(g, 0, sizeof(*g));
    g->nodes = nodes;
    g->capabilities = *capabilities;
    g->agreed = far_capabilities_pack(capabilities);
    g->pool_id = pool_id;
    uint64_t total = 0;
    for (unsigned n = 0; n < nodes; n++) {
        if (node_bytes[n] > FAR_NODE_BYTES_MAX || node_bytes[n] % 8 != 0)
            return far_fail(FAR_ERR_INVALID, "memory node %u has %llu bytes: more than 1T, or not a multiple of 8", n,
                            (unsigned long long)node_bytes[n]);
        g->node_bytes[n] = node_bytes[n];
        total += node_bytes[n];
    }
    g->block_bytes = block_size_for(total);
    uint64_t slots = total / BYTES_PER_SLOT;
    g->session_slots = slots < SLOTS_MIN ? SLOTS_MIN : slots > FAR_CLIENT_ID_MAX ? FAR_CLIENT_ID_MAX : (unsigned)slots;
    int err;
    while ((err = fit_nodes(g)) < 0 && g->block_bytes > FAR_BLOCK_BYTES_MIN)
        g->block_bytes /= 2; /* many small nodes, or one that is much smaller than the others */
    return err;
}


static uint64_t check_word(const far_geometry *g) {
    uint64_t constants[3 + FAR_NODES_MAX] = {g->pool_id, g->agreed,
                                             far_shape_pack(g->nodes, g->block_bytes, g->session_slots)};
    memcpy(constants + 3, g->node_bytes, g->nodes * sizeof(uint64_t));
    return XXH3_64bits(constants, (3 + g->nodes) * sizeof(uint64_t));
}


static const uint64_t units[] = {8, 16, 64};
enum { UNITS = sizeof(units) / sizeof(units[0]) };


static bool capabilities_are_known(uint64_t word) {
    bool known = false;
    for (unsigned i = 0; i < UNITS; i++)
        known |= (word & 0xffff) == units[i];
    return known && (word >> 18) == 0;
}


/* All clients of a pool run one protocol: what it relies on, every one of them must offer. */
static int check_capabilities(const far_fabric *fabric, uint64_t word) {
    if (!capabilities_are_known(word))
        return far_fail(FAR_ERR_CORRUPT, "%s: the pool's capabilities are damaged", fabric->uri);
    far_capabilities pool = far_capabilities_unpack(word);
    const far_capabilities *ours = &fabric->capabilities;
    if (pool.atomic_bytes > ours->atomic_bytes)
        return far_fail(FAR_ERR_UNSUPPORTED, "%s: the pool relies on units of %u bytes, this fabric tears at %u",
                        fabric->uri, pool.atomic_bytes, ours->atomic_bytes);
    if (pool.masked_cas && !ours->masked_cas)
        return far_fail(FAR_ERR_UNSUPPORTED, "%s: the pool relies on masked CAS, this fabric has none", fabric->uri);
    if (pool.atomics_in_order && !ours->atomics_in_order)
        return far_fail(FAR_ERR_UNSUPPORTED, "%s: the pool relies on atomics in order, this fabric has none",
                        fabric->uri);
    return 0;
}


/* The constants are read after the magic word: whoever sees it sees them whole. */
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


static int check_pool(far_task *t, const super_image *image, far_geometry *g) {
    const far_fabric *fabric = far_task_fabric(t);
    if (image->magic >> 16 != FAR_POOL_MAGIC)
        return far_fail(FAR_ERR_CORRUPT, "%s: not a farindex pool", fabric->uri);
    if (image->magic != FAR_POOL_MAGIC_WORD)
        return far_fail(FAR_ERR_CORRUPT, "%s: the pool has format version %u, this library knows version %u",
                        fabric->uri, (unsigned)(image->magic & 0xffff), FAR_POOL_FORMAT);
    unsigned nodes = (unsigned)(image->words[FAR_SUPER_SHAPE / 8] & 0xffff);
    if (nodes != fabric->nodes)
        return far_fail(FAR_ERR_CORRUPT, "%s: the pool was formatted with %u memory nodes, there are %u", fabric->uri,
                        nodes, fabric->nodes);
    for (unsigned n = 0; n < nodes; n++)
        if (image->node_bytes[n] != fabric->node_bytes[n])
            return far_fail(FAR_ERR_CORRUPT, "%s: memory node %u was formatted with %llu bytes and has %llu",
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
        image->words[FAR_SUPER_CHECK / 8] != check_word(g))
        return far_fail(FAR_ERR_CORRUPT, "%s: the superblock is damaged", fabric->uri);
    node_header headers[FAR_NODES_MAX];
    err = read_headers(t, nodes, headers);
    for (unsigned n = 1; n < nodes && err == 0; n++)
        if (headers[n].magic != FAR_POOL_MAGIC_WORD || headers[n].pool_id != g->pool_id || headers[n].node != n)
            err = far_fail(FAR_ERR_CORRUPT, "%s: memory node %u is not node %u of this pool", fabric->uri, n, n);
    return err;
}


/* With no magic word: is this zero memory, or what a formatter leaves that died on the way? */
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


/* The first CAS of each word decides; every formatter goes on with what won. */
static int agree(far_task *t, far_geometry *g) {
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
    g->agreed = capabilities;
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
            err = far_fail(FAR_ERR_CORRUPT, "%s: memory node %u belongs to another pool, or holds something else",
                           far_task_fabric(t)->uri, n);
    return err;
}


/* All that never changes, but the magic word: every client derives it alike, so one that slept until the pool is in use
 * does no harm. */
static int write_constants(far_task *t, const far_geometry *g) {
    uint64_t words[] = {g->pool_id, g->agreed, far_shape_pack(g->nodes, g->block_bytes, g->session_slots),
                        check_word(g)};
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


static int write_all(far_task *t, const far_geometry *g) {
    int err = write_constants(t, g);
    return err < 0 ? err : far_write_word(t, far_addr_make(0, FAR_SUPER_MAGIC), FAR_POOL_MAGIC_WORD);
}


static int format(far_task *t, far_geometry *g) {
    int err = agree(t, g);
    if (err == 0)
        err = check_headers(t, g);
    if (err == 0)
        err = write_constants(t, g);
    if (err < 0)
        return err;
    uint64_t old;
    return far_cas_word(t, far_addr_make(0, FAR_SUPER_MAGIC), 0, FAR_POOL_MAGIC_WORD, &old);
}


/* ---- Restoring: one word is damaged, and the others tell what it was ---- */

typedef struct evidence {
    const far_fabric *fabric;
    const super_image *image;
    const node_header *headers;
} evidence;


static unsigned wrong_words(const evidence *e, const far_geometry *g) {
    const uint64_t *words = e->image->words;
    unsigned wrong = (e->image->magic != FAR_POOL_MAGIC_WORD) + (words[FAR_SUPER_POOL_ID / 8] != g->pool_id) +
                     (words[FAR_SUPER_CAPABILITIES / 8] != g->agreed) +
                     (words[FAR_SUPER_SHAPE / 8] != far_shape_pack(g->nodes, g->block_bytes, g->session_slots)) +
                     (words[FAR_SUPER_CHECK / 8] != check_word(g));
    for (unsigned n = 0; n < g->nodes; n++)
        wrong += e->image->node_bytes[n] != g->node_bytes[n];
    for (unsigned n = 1; n < g->nodes; n++)
        wrong += (e->headers[n].magic != FAR_POOL_MAGIC_WORD) + (e->headers[n].pool_id != g->pool_id) +
                 (e->headers[n].node != n);
    return wrong;
}


/* Whether this id is the pool's, damaged. (A node of another pool has another id too, but not one like these.) */
static bool is_a_damaged_id(uint64_t id, uint64_t right) {
    return id == 0 || id == UINT64_MAX || __builtin_popcountll(id ^ right) == 1;
}


/* Whether the pool had this id and these capabilities. summed: the check says so; else it is the word that is damaged. */
static bool it_was(const evidence *e, uint64_t id, uint64_t capabilities, bool summed, far_geometry *g) {
    far_capabilities agreed = far_capabilities_unpack(capabilities);
    if (id == 0 || !capabilities_are_known(capabilities) ||
        far_geometry_make(e->fabric->nodes, e->fabric->node_bytes, &agreed, id, g) < 0 || wrong_words(e, g) != 1 ||
        (e->image->words[FAR_SUPER_CHECK / 8] == check_word(g)) != summed)
        return false;
    for (unsigned n = 1; n < g->nodes; n++)
        if (e->headers[n].pool_id != id && !is_a_damaged_id(e->headers[n].pool_id, id))
            return false;
    bool other_version = e->image->magic != FAR_POOL_MAGIC_WORD && e->image->magic >> 16 == FAR_POOL_MAGIC;
    return g->nodes > 1 || !other_version; /* the headers of other nodes tell the version */
}


static bool find_constants(const evidence *e, far_geometry *g) {
    uint64_t id = e->image->words[FAR_SUPER_POOL_ID / 8], capabilities = e->image->words[FAR_SUPER_CAPABILITIES / 8];
    for (uint64_t other = 0; other < 4 * UNITS; other++)
        if (it_was(e, id, units[other % UNITS] | (other / UNITS) << 16, true, g))
            return true;
    for (unsigned n = 1; n < e->fabric->nodes; n++)
        if (it_was(e, e->headers[n].pool_id, capabilities, true, g))
            return true;
    for (unsigned bit = 0; bit < 64; bit++)
        if (it_was(e, id ^ 1ull << bit, capabilities, true, g))
            return true;
    return it_was(e, id, capabilities, false, g); /* of one node nothing else has the id: any will do */
}


/* The pool was refused with this error, whose words are far_last_error's. */
static int restore(far_task *t, int refused, super_image *image) {
    node_header headers[FAR_NODES_MAX];
    far_geometry found;
    char why[256];
    snprintf(why, sizeof(why), "%s", far_last_error());
    int err = read_headers(t, far_task_fabric(t)->nodes, headers);
    if (err == 0 && !find_constants(&(evidence){far_task_fabric(t), image, headers}, &found))
        return far_fail(
            refused,
            refused == FAR_ERR_CORRUPT ? "%s; it cannot be restored: the other words do not tell what is wrong" : "%s",
            why);
    if (err == 0)
        err = write_all(t, &found);
    return err < 0 ? err : read_image(t, image);
}


/* Formats memory that is empty. */
static int open_unformatted(far_task *t, super_image *image, far_geometry *g) {
    const far_fabric *fabric = far_task_fabric(t);
    int err = far_geometry_make(fabric->nodes, fabric->node_bytes, &fabric->capabilities, 0, g);
    if (err < 0)
        return err;
    bool unformatted = is_unformatted(image, g);
    if (unformatted && far_task_pool(t)->options.must_exist)
        return far_fail(FAR_ERR_NOT_FOUND, "%s: there is no pool: its memory was never used", fabric->uri);
    if (unformatted)
        err = format(t, g);
    if (err == 0)
        err = read_image(t, image); /* also when others finished while we looked */
    if (err == 0 && image->magic == 0)
        err = far_fail(FAR_ERR_CORRUPT, "%s: neither a farindex pool nor empty memory", fabric->uri);
    return err;
}


int far_superblock_open(far_task *t, far_geometry *g) {
    far_pool *pool = far_task_pool(t);
    super_image image;
    int err = read_image(t, &image);
    if (err == 0 && image.magic == 0)
        err = open_unformatted(t, &image, g);
    if (err == 0)
        err = check_pool(t, &image, g);
    if ((err == FAR_ERR_CORRUPT || err == FAR_ERR_UNSUPPORTED) && pool->options.restore &&
        (err = restore(t, err, &image)) == 0)
        err = check_pool(t, &image, g);
    return err < 0 ? err : far_refuted_apply(pool, image.words[FAR_SUPER_REFUTED / 8], &g->capabilities);
}


int far_superblock_check(far_task *t, bool repair, far_report *report) {
    const far_geometry *g = &far_task_pool(t)->geometry;
    super_image image;
    far_geometry seen;
    int err = read_image(t, &image);
    if (err == 0)
        err = check_pool(t, &image, &seen);
    if (err == 0 && image.words[FAR_SUPER_POOL_ID / 8] != g->pool_id)
        err = far_fail(FAR_ERR_CORRUPT, "the superblock is that of another pool");
    if (repair && (err == FAR_ERR_CORRUPT || err == FAR_ERR_UNSUPPORTED))
        err = write_all(t, g);
    if (err == 0)
        err = far_refuted_check(far_task_pool(t), image.words[FAR_SUPER_REFUTED / 8]);
    if (err != FAR_ERR_CORRUPT && err != FAR_ERR_UNSUPPORTED)
        return err;
    far_report_problem(report, "%s", far_last_error());
    return 0;
}
