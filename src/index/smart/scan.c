/* Going over the tree in the order of keys: scans, and walk, check and usage (check.c).
 *
 * A stack of items in key order, the next one on top (so that what is done at the front moves little), each a word that
 * was READ in this pass from a linked node. As long as there is a node among the next ones, these nodes are READ
 * together and give way to their children; then the leaves in front are READ together. So a scan takes one round trip
 * per level and one for the leaves. A frozen word ends the pass: it is helped, and the next pass begins at the last
 * key. */
#include "base/error.h"
#include "index/smart/pass.h"
#include "index/smart/smart.h"

#include <stdlib.h>
#include <string.h>

enum { NO_NODE, EXPANDED, MET_FROZEN }; /* of looking at the nodes in front */

#define BATCH_NODES 64
#define BATCH_BYTES (512u << 10)


/* Item `i` from the front. */
static smart_item *item_at(const smart_pass *p, size_t i) {
    return &p->items[p->count - 1 - i];
}


static int room(smart_pass *p, size_t more) {
    if (p->count + more <= p->size)
        return 0;
    size_t size = p->size ? 2 * p->size : 512;
    while (size < p->count + more)
        size *= 2;
    smart_item *items = realloc(p->items, size * sizeof(*items));
    if (!items)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    p->items = items;
    p->size = size;
    return 0;
}


static int by_part_down(const void *a, const void *b) {
    unsigned x = smart_part_rank(smart_word_part(((const smart_item *)a)->word));
    unsigned y = smart_part_rank(smart_word_part(((const smart_item *)b)->word));
    return (x < y) - (x > y);
}


static int tell_found(smart_pass *p, int found) {
    int err = 0;
    for (; found >= 0 && err >= 0; found = p->nodes[found].next)
        err = p->found(p, p->nodes[found].addr, p->nodes[found].layout);
    return err;
}


/* A node that the pass has not begun in: others were told of by the pass before. */
static int note_found(smart_pass *p, const smart_node *node, int next, int *found) {
    if (p->node_count == p->node_size) {
        int size = p->node_size ? 2 * p->node_size : 256;
        smart_found *nodes = realloc(p->nodes, (size_t)size * sizeof(*nodes));
        if (!nodes)
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
        p->nodes = nodes;
        p->node_size = size;
    }
    p->nodes[p->node_count] = (smart_found){node->addr, node->layout, next};
    *found = p->node_count++;
    return 0;
}


/* Puts the children of a node into the place of item `at`. MET_FROZEN: one of its words is. */
static int expand(smart_pass *p, size_t at, const smart_node *node, bool on_path, bool on_end, int found) {
    const uint64_t *slots = smart_slots(node);
    smart_item made[SMART_PARTS + 1];
    size_t count = 0;
    unsigned from = on_path ? smart_part_rank(smart_part(p->op.key, node->depth)) : 0;
    unsigned until = on_end ? smart_part_rank(smart_part(p->end.key, node->depth)) : SMART_PARTS;
    for (unsigned i = 0; i < node->words; i++) {
        if ((slots[i] & SMART_F) && !p->frozen_too)
            return MET_FROZEN;
        if (!(slots[i] & SMART_BOUND)) {
            if (node->layout != SMART_DIR)
                break;
            continue;
        }
        unsigned rank = smart_part_rank(smart_word_part(slots[i]));
        if (smart_word_is(slots[i]) == SMART_NONE || rank < from || rank > until)
            continue;
        far_addr slot = smart_slot_addr(node->addr, i);
        made[count++] = (smart_item){slots[i] & ~SMART_F,     slot, node->fp, node->depth, on_path && rank == from,
                                     on_end && rank == until, -1};
    }
    qsort(made, count, sizeof(made[0]), by_part_down);
    int err = count ? room(p, count) : tell_found(p, found);
    if (err < 0)
        return err;
    if (count)
        made[count - 1].found = found;
    smart_item *place = item_at(p, at);
    memmove(place + count, place + 1, at * sizeof(*place));
    memcpy(place, made, count * sizeof(made[0]));
    p->count = p->count - 1 + count;
    return 0;
}


/* Where a child of the path lies with regard to the key that the pass begins at: -1 before it, 0 on the path, 1 after.
 */
static int side(smart_pass *p, const smart_item *item, const smart_node *node, int *result) {
    unsigned common, part;
    smart_link stuck;
    *result = 0;
    if (smart_has_prefix_of(&p->op, node))
        return 0;
    int err = smart_common_prefix(&p->op, item->depth + 1, (smart_link){item->slot, item->word}, node, &common, &part,
                                  &stuck);
    if (err < 0)
        return err;
    if (err == SMART_NO_LEAF) /* nothing is below it, but a walk is to be told of it: perhaps the pass before was not */
        *result = 1;
    else
        *result = common == p->op.key.length || part > ((const uint8_t *)p->op.key.data)[common] ? 1 : -1;
    return 0;
}


/* On which side of the key that the pass ends before the item lies, as far as the node itself tells: 0 may be before it too. */
static int side_of_end(const smart_pass *p, const smart_item *item, const smart_node *node) {
    const uint8_t *end = p->end.key.data;
    unsigned d = item->depth + 1;
    if (smart_has_prefix_of(&p->end, node) || node->depth - smart_info_tail(node->info) > d)
        return 0;
    while (d < node->depth && d < p->end.key.length && smart_info_byte(node->info, d) == end[d])
        d++;
    if (d == node->depth)
        return 0;
    return d == p->end.key.length || smart_info_byte(node->info, d) > end[d] ? 1 : -1;
}


static void drop_item(smart_pass *p, size_t at) {
    smart_item *place = item_at(p, at);
    memmove(place, place + 1, at * sizeof(*place));
    p->count--;
}


static int visit_node(smart_pass *p, const smart_item *item, const smart_node *node) {
    return p->node ? p->node(p, item, node) : 0;
}


/* About how many items will take the place of one. What the path leads into may hold little that is wanted. */
static size_t promise(const smart_item *item) {
    unsigned type = smart_word_read_type(item->word);
    if (smart_word_is(item->word) != SMART_NODE)
        return 1;
    if (item->on_path)
        return 0;
    return type == SMART_READ_DIR ? smart_layout_slots(SMART_L512) : (smart_read_bytes(type) - SMART_HEADER) / 16;
}


/* The nodes that were READ, and in one more round trip what their slot words, of an earlier time, did not tell of. */
static int complete(smart_pass *p, smart_node *nodes, const size_t *at, size_t count) {
    unsigned want[BATCH_NODES], seen;
    int err = 0;
    for (size_t i = 0; i < count; i++) {
        smart_node *node = &nodes[i];
        if (!smart_take_node(&p->op, node))
            return smart_broken(p->op.index, node->addr, "node");
        want[i] = node->words;
        bool full = !smart_lookup(node, SMART_PARTS, &seen) && seen == node->words;
        bool more =
            node->layout != SMART_DIR && (full || p->node); /* a check looks at slots that nobody has used, too */
        if (more && (err = smart_put_read_more(&p->op, node, smart_layout_slots(node->layout), &want[i])) < 0)
            return err;
    }
    if ((err = smart_wait(&p->op)) < 0)
        return err;
    for (size_t i = 0; i < count && err == 0; i++) {
        bool grown = want[i] > nodes[i].words;
        err = smart_take_more(&p->op, &nodes[i], want[i]);
        const smart_item *item = item_at(p, at[i]);
        if (err == 0 && grown && !p->frozen_too && !p->node)
            smart_raise_hint(&p->op, item->slot, item->word, &nodes[i]);
    }
    return err;
}


/* Inserts through the cache do not see the word that tells the size of their node, and leave it as it is: all of the
 * smallest lists is READ, and whoever finds a larger one raises its word. */
static uint64_t at_least_a_list(uint64_t word) {
    return smart_word_read_type(word) == 0 ? smart_word_with_read_type(word, 1) : word;
}


/* What is in front is READ next, unless it was foreseen. */
static void prefetch_front(const smart_pass *p, size_t most) {
    for (size_t i = 0; i < p->count && i < most && !p->foresees; i++)
        far_prefetch(p->op.t, smart_word_addr(item_at(p, i)->word));
}


/* READs the nodes in front, as many as promise `ahead` items. */
static int expand_nodes(smart_pass *p, size_t ahead) {
    size_t at[BATCH_NODES], count = 0;
    smart_node *nodes = far_scratch(p->op.t, BATCH_NODES * sizeof(*nodes));
    int err, where;
    if (!nodes)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    size_t most = p->op.st->batch < BATCH_NODES ? p->op.st->batch : BATCH_NODES;
    bool ready = true; /* nothing in front has to be READ */
    prefetch_front(p, most);
    for (size_t i = 0, sum = 0; i < p->count && sum < ahead && count < most; i++) {
        const smart_item *item = item_at(p, i);
        sum += promise(item);
        if (smart_word_is(item->word) != SMART_NODE) {
            ready = ready && smart_is_foreseen(p, item->word);
            continue;
        }
        uint64_t word = at_least_a_list(item->word);
        bool foreseen = smart_foreseen_node(p, word, &nodes[count]);
        if (!foreseen && ready && i > 0)
            break; /* first what costs nothing: it may be all that is wanted */
        ready = ready && foreseen;
        if (!foreseen && (err = smart_put_read_node(&p->op, word, true, &nodes[count])) < 0)
            return err;
        at[count++] = i;
    }
    if (count == 0)
        return NO_NODE;
    if ((err = smart_wait(&p->op)) < 0)
        return err;
    if ((err = complete(p, nodes, at, count)) < 0)
        return err;
    for (size_t i = count; i-- > 0;) {
        smart_item item = *item_at(p, at[i]);
        smart_node *node = &nodes[i];
        if (node->depth <= item.depth)
            return smart_broken(p->op.index, node->addr, "node");
        if (smart_ctl_state(node->ctl) == SMART_PENDING)
            smart_flip(&p->op, node->addr, node->ctl);
        where = 1;
        if (item.on_path && (err = side(p, &item, node, &where)) < 0)
            return err;
        int end = item.on_end ? side_of_end(p, &item, node) : -1;
        if (where < 0 || end > 0) {
            drop_item(p, at[i]);
            continue;
        }
        if (where == 0 && item.on_path && p->foresees && p->op.st->cache && !smart_is_foreseen(p, item.word))
            smart_cache_node(p->op.st->cache, p->op.key, node); /* its prefix is known: the next scan foresees more */
        int found = item.found;
        if ((err = visit_node(p, &item, node)) < 0 ||
            (p->found && where > 0 && (err = note_found(p, node, item.found, &found)) < 0))
            return err;
        if ((err = expand(p, at[i], node, where == 0, end == 0 && smart_has_prefix_of(&p->end, node), found)) != 0) {
            p->frozen = item;
            return err < 0 ? err : MET_FROZEN;
        }
    }
    return EXPANDED;
}


/* READs the leaves in front, at most `most`, and shows them. */
static int show_leaves(smart_pass *p, size_t most) {
    size_t count = 0, bytes = 0;
    size_t batch = p->op.st->batch;
    smart_leaf *leaves = far_scratch(p->op.t, batch * sizeof(*leaves));
    int err = 0;
    if (!leaves)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    prefetch_front(p, most < batch ? most : batch);
    while (count < p->count && count < most && count < batch && (count == 0 || bytes < BATCH_BYTES)) {
        uint64_t word = item_at(p, count)->word;
        if (smart_word_is(word) != SMART_LEAF)
            break;
        unsigned class = smart_leaf_class(p->op.st, word);
        if (!smart_foreseen_leaf(p, word, &leaves[count])) {
            if ((err = smart_put_read_leaf(&p->op, smart_word_addr(word), class, &leaves[count])) < 0)
                return err;
            far_mark(p->op.t, FAR_VERB_ANY_ORDER); /* each is a look at another key */
        }
        bytes += smart_class_bytes(class);
        count++;
    }
    if ((err = smart_wait(&p->op)) < 0)
        return err;
    for (size_t i = 0; i < count && err == 0; i++) {
        smart_item item = *item_at(p, 0);
        smart_leaf *leaf = &leaves[i];
        smart_spot s = {.outcome = SMART_HIT,
                        .proven = true,
                        .slot = item.slot,
                        .word = item.word,
                        .depth = item.depth,
                        .layout = SMART_LAYOUTS};
        unsigned class = smart_leaf_class(p->op.st, item.word);
        bool plain = smart_take_leaf(leaf, class) && smart_ctl_state(leaf->ctl) != SMART_REPLACED &&
                     smart_leaf_is_whole(&p->op, leaf);
        if (plain)
            s.leaf = *leaf;
        else if ((err = smart_read_leaf(&p->op, leaf->addr, class, &s.leaf, &s.chain, s.old)) != 0) {
            p->again = err == SMART_AGAIN;
            return err;
        }
        if (smart_ctl_state(s.leaf.ctl) == SMART_DEAD)
            s.outcome = SMART_GONE;
        p->count--;
        p->wanted -= p->wanted > 1;
        if ((err = tell_found(p, item.found)) >= 0)
            err = p->leaf(p, &item, &s);
        p->foreseen -= p->foreseen > 0;
    }
    return err;
}


/* READs the slots p->root_next .. end of the root. Nothing is on the stack: what comes before them was shown. */
static int read_root_slots(smart_pass *p, unsigned end) {
    smart_state *st = p->op.st;
    unsigned first = p->root_next, stripes = st->stripes, path = smart_part(p->op.key, 0);
    uint64_t words = smart_stripe_slots(stripes) / 8, *image = far_scratch(p->op.t, 8 * words * stripes);
    if (!image)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    for (unsigned i = 0; i < stripes; i++) {
        unsigned low = first <= i ? 0 : (first - i + stripes - 1) / stripes,
                 high = end <= i ? 0 : (end - i + stripes - 1) / stripes;
        if (low < high)
            far_read(p->op.t, st->stripe[i] + 8ull * low, image + words * i + low, 8ull * (high - low));
    }
    int err = smart_wait(&p->op);
    if (err < 0 || (err = room(p, SMART_ROOT_SLOTS)) < 0)
        return err;
    p->root_next = end;
    for (unsigned b = end; b-- > first;) {
        uint64_t word = image[words * (b % stripes) + b / stripes];
        if ((err = smart_check_root(&p->op, b, word)) < 0)
            return err;
        if (smart_word_is(word) != SMART_NONE)
            p->items[p->count++] = (smart_item){.word = word,
                                                .slot = smart_root_slot(st, b),
                                                .on_path = p->op.key.length && b == path,
                                                .on_end = p->bounded && b == smart_part(p->end.key, 0),
                                                .found = -1};
    }
    return 0;
}


/* The first READs: of the root, and of all that the cache expects after it. */
static int begin_pass(smart_pass *p) {
    unsigned first = p->op.key.length ? smart_part(p->op.key, 0) : 0, end = SMART_ROOT_SLOTS;
    if (p->bounded && p->end.key.length)
        end = smart_part(p->end.key, 0) + 1;
    p->again = false;
    p->op.passes = true;
    p->count = 0;
    p->ahead = NULL;
    p->foreseen = 0;
    p->root_next = first;
    p->root_end = end;
    bool foresee = p->foresees && p->op.st->cache && smart_foresight_is_worth_it(p->op.st);
    int err = foresee ? smart_foresee(p, first, &end) : 0;
    return err < 0 ? err : read_root_slots(p, end);
}


/* From the key of p->op on. */
int smart_pass_run(smart_pass *p) {
    int err = begin_pass(p);
    while (err == 0 && (p->count > 0 || p->root_next < p->root_end)) {
        far_scratch_mark here = far_scratch_here(p->op.t);
        size_t batch = p->op.st->batch, ahead = p->wanted ? p->wanted : batch;
        if (p->count == 0)
            err = read_root_slots(p, p->root_end);
        else if ((err = expand_nodes(p, ahead < batch ? ahead : batch)) == NO_NODE)
            err = show_leaves(p, ahead);
        else if (err == MET_FROZEN) {
            far_count_retry(p->op.t);
            err = smart_replace(&p->op, p->frozen.slot, p->frozen.word, SMART_LAYOUTS, NULL, NULL);
            if (err == FAR_ERR_NO_MEMORY) {
                p->frozen_too = true;
                err = 0;
            }
            p->again = err >= 0;
            err = err < 0 ? err : SMART_PASS_STOPS;
        } else if (err == EXPANDED)
            err = 0;
        if (err < 0)
            far_forget(p->op.t);
        far_scratch_back(p->op.t, here);
    }
    if (err < 0)
        far_forget(p->op.t);
    smart_foresight_judge(p);
    free(p->items);
    free(p->nodes);
    p->items = NULL;
    p->nodes = NULL;
    p->size = 0;
    p->node_count = p->node_size = 0;
    return err;
}


/* Scans. */

typedef struct scan_pass {
    smart_pass pass;
    far_scan_chunk *scan;
    uint8_t *last; /* the key shown last */
    size_t length;
    bool any; /* a pair beyond the first key was shown */
} scan_pass;


/* With the last leaf that was foreseen the chunk ends: the next one foresees again. */
static int give(smart_pass *p, const smart_item *item, const smart_spot *s) {
    (void)item;
    scan_pass *sp = (scan_pass *)p;
    bool last = p->foreseen == 1;
    if (s->outcome == SMART_HIT) {
        memcpy(sp->last, s->leaf.key.data, s->leaf.key.length);
        sp->length = s->leaf.key.length;
        sp->any = sp->any || far_bytes_compare(s->leaf.key, sp->scan->from) > 0;
        int err = far_scan_give(sp->scan, s->leaf.key, s->leaf.value);
        if (err != 0)
            return err;
    }
    return last && sp->any;
}


int smart_scan(far_task *t, far_index *index, far_scan_chunk *scan) {
    scan_pass sp = {.scan = scan,
                    .last = far_scratch(t, SMART_KEY_MAX + 1),
                    .pass = {.leaf = give, .wanted = scan->wanted, .bounded = scan->bounded, .foresees = true}};
    far_bytes from = scan->from;
    int err;
    if (!sp.last)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    if (sp.pass.wanted && scan->after)
        sp.pass.wanted++;
    if (scan->bounded && (err = smart_begin(&sp.pass.end, t, index, scan->to)) < 0)
        return err;
    for (unsigned attempt = 0;; attempt++) {
        if ((err = smart_begin(&sp.pass.op, t, index, from)) < 0)
            return err;
        err = smart_pass_run(&sp.pass);
        if (err < 0 || !sp.pass.again)
            break;
        far_back_off(t, attempt);
        if (sp.length) {
            uint8_t *copy = far_scratch(t, sp.length);
            if (!copy)
                return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
            memcpy(copy, sp.last, sp.length);
            from = (far_bytes){copy, sp.length};
        }
    }
    scan->end = err == 0;
    return err < 0 ? err : 0;
}
