/* Layout I, reading: the pair lies in the bucket. What is compared is all of the hash that the place does not imply, so
 * a match is the key. The rules R1-R6 are those of P; the mark of a running split is MOVING, in one word with the
 * version. */
#include "index/shard/shard.h"
#include "runtime/error.h"
#include "runtime/rdwc.h"

#include <string.h>


bool shard_i_uniform(const shard_image *image, unsigned v) {
    if (shard_header_v(image->w[SHARD_I_H]) != v)
        return false;
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++)
        if (!shard_kw_stamp_is(image->w[2 * i + 1], v))
            return false;
    return true;
}


static bool is_moving(const shard_try *y) {
    return y->home->w[SHARD_I_H] & SHARD_MOVING;
}


static bool hit_counts(const shard_try *y) { /* R2 */
    return !shard_home_may_lose(y) || !is_moving(y);
}


static bool miss_counts(const shard_try *y) { /* R3 */
    unsigned v = shard_header_v(y->home->w[SHARD_I_H]);
    if (!shard_changes(y->h, y->st->p, y->st->b, v + 1))
        return true;
    return shard_i_uniform(y->home, v) && (!shard_home_may_lose(y) || !is_moving(y));
}


bool shard_i_find_l1(const shard_try *y, shard_i_hit *hit) {
    uint64_t rem = shard_rem(y, -1);
    for (int i = 0; i < SHARD_I_SLOTS; i++)
        if (shard_kw_holds(y->home->w[2 * i + 1], rem, false)) {
            *hit =
                (shard_i_hit){i, 1, y->home->addr + 16ull * (unsigned)i, y->home->w[2 * i], y->home->w[2 * i + 1], 0};
            return true;
        }
    return false;
}


/* Level 2 and 3. */

/* 0: put; 1: there is no such table. */
int shard_i_put_overflow(shard_try *y, unsigned generation, shard_i_overflow *o) {
    const shard_state *st = y->st;
    far_addr l2, l3;
    int err = shard_overflow_addrs(y->t, y->part, generation, &l2, &l3);
    memset(o, 0, sizeof(*o));
    if (err < 0)
        return err;
    if (!l2 || !l3)
        return 1;
    for (unsigned i = 0; i < 2; i++) {
        o->at[i] = l2 + SHARD_L2_BYTES * shard_bucket(y->level[i], st->p, st->b, generation);
        far_read(y->t, o->at[i], o->l2[i], sizeof(o->l2[i]));
    }
    o->head = l3 + sizeof(shard_i_node) * (y->level[2] >> st->p & (shard_heads(st->b, generation) - 1));
    far_read(y->t, o->head, &o->node, sizeof(o->node));
    return 0;
}


static void add_hit(shard_i_hit *hits, unsigned *count, shard_i_hit hit) {
    if (*count < SHARD_COPIES_MAX)
        hits[(*count)++] = hit;
}


static void search_node(const shard_i_node *node, far_addr at, unsigned generation, uint64_t key, shard_i_hit *hits,
                        unsigned *count) {
    for (int i = 0; i < 5; i++) {
        const shard_i_slot *slot = &node->slot[i];
        if ((slot->state & SHARD_STATE_LIVE) && slot->key == key)
            add_hit(hits, count,
                    (shard_i_hit){i, 3, at + sizeof(*slot) * (unsigned)i, slot->value, slot->state, generation});
    }
}


static int gather(shard_try *y, const shard_i_overflow *o, unsigned generation, shard_i_hit *hits, unsigned *count) {
    uint64_t key;
    memcpy(&key, y->key.data, sizeof(key));
    for (unsigned choice = 0; choice < 2; choice++)
        for (int i = 0; i < SHARD_L2_I_SLOTS; i++)
            if (shard_kw_holds(o->l2[choice][2 * i + 1], shard_rem(y, (int)choice), choice))
                add_hit(hits, count,
                        (shard_i_hit){i, 2, o->at[choice] + 16ull * (unsigned)i, o->l2[choice][2 * i],
                                      o->l2[choice][2 * i + 1], generation});
    shard_i_node node = o->node;
    far_addr at = o->head;
    for (;;) {
        search_node(&node, at, generation, key, hits, count);
        if ((at = node.next) == 0)
            return 0;
        far_read(y->t, at, &node, sizeof(node));
        int err = far_wait(y->t);
        if (err < 0)
            return err;
    }
}


/* A slot of level 3 crosses lines: its key may be that of the pair before, its state that of the next. Between two
 * looks at one state the key is that of the state; what is not the key then was never a hit. 1: a state has changed, so
 * it may have been one, and moved on: all must be looked at again. */
static int drop_false_hits(shard_try *y, shard_i_hit *hits, unsigned *count) {
    uint64_t again[SHARD_COPIES_MAX][2], key;
    unsigned kept = 0, looks = 0;
    memcpy(&key, y->key.data, sizeof(key));
    for (unsigned i = 0; i < *count; i++)
        if (hits[i].level == 3) {
            far_read(y->t, hits[i].addr + 8, &again[i][0], 8);
            far_read(y->t, hits[i].addr + 16, &again[i][1], 8);
            looks++;
        }
    int err = looks ? far_wait(y->t) : 0;
    for (unsigned i = 0; err >= 0 && i < *count; i++) {
        if (hits[i].level == 3 && again[i][1] != hits[i].mark)
            return 1;
        if (hits[i].level < 3 || again[i][0] == key)
            hits[kept++] = hits[i];
    }
    *count = kept;
    return err < 0 ? err : 0;
}


/* The older generation first: a drain moves keys from there to the newer. */
static int look_below(shard_try *y, uint64_t header, shard_i_hit hits[SHARD_COPIES_MAX], unsigned *count) {
    unsigned generation[2], generations = shard_generations(y, header, generation);
    shard_i_overflow o[2];
    int none[2] = {1, 1}, err;
    *count = 0;
    for (unsigned i = 0; i < generations; i++)
        if ((none[i] = shard_i_put_overflow(y, generation[i], &o[i])) < 0)
            return none[i];
    if ((err = far_wait(y->t)) < 0)
        return err;
    for (unsigned i = 0; i < generations; i++) {
        if (none[i])
            continue;
        if (i == 1 && o[0].node.next) { /* the chain of the older one was read after this one: look again */
            if ((none[1] = shard_i_put_overflow(y, generation[1], &o[1])) < 0 || (err = far_wait(y->t)) < 0)
                return err < 0 ? err : none[1];
        }
        if ((err = gather(y, &o[i], generation[i], hits, count)) < 0)
            return err;
    }
    return drop_false_hits(y, hits, count);
}


int shard_i_find_overflow(shard_try *y, uint64_t header, shard_i_hit hits[SHARD_COPIES_MAX], unsigned *count) {
    int err;
    while ((err = look_below(y, header, hits, count)) == 1)
        far_count_retry(y->t);
    return err;
}


/* Value and mark may have been read at different moments: where the unit is a word, and at level 3, whose slots cross
 * lines. The value is read between two looks at the mark. Both are of one batch: the 7 bits of gen in a kw could come
 * round while a client sleeps. 1: it is good. */
static int confirm(shard_try *y, shard_i_hit *hit) {
    uint64_t before = hit->mark, after;
    far_addr at = hit->addr + (hit->level == 3 ? 16 : 8);
    if (hit->level < 3 && far_task_capabilities(y->t)->atomic_bytes >= 16)
        return 1;
    if (hit->level < 3)
        far_read(y->t, at, &before, 8);
    far_read(y->t, hit->addr, &hit->value, 8);
    far_read(y->t, at, &after, 8);
    int err = far_wait(y->t);
    return err < 0 ? err : before == hit->mark && after == hit->mark;
}


static uint64_t relevant(const shard_try *y, uint64_t header) {
    unsigned generation[2] = {0, 0}, count = shard_generations(y, header, generation);
    return (uint64_t)shard_header_v(header) << 32 | count << 16 | generation[0] << 8 | generation[1];
}


/* 1: found; 0: absent; 2: start over. As shard_p_find. */
static int find(shard_try *y, shard_i_hit *hit, uint32_t *mark) {
    uint64_t before = 0;
    for (bool again = false;; again = true) {
        int err;
        if (!shard_home_is_right(y))
            return 2;
        if (shard_i_find_l1(y, hit))
            return hit_counts(y) ? 1 : 2;
        if (!miss_counts(y))
            return 2;
        uint64_t header = y->home->w[SHARD_I_H], now = relevant(y, header);
        unsigned generation[2], count;
        if (shard_generations(y, header, generation) == 0 || (again && now == before))
            return 0;
        before = now;
        far_point(y->t, "shard:l1_missed");
        shard_i_hit hits[SHARD_COPIES_MAX];
        if ((err = shard_i_find_overflow(y, header, hits, &count)) < 0)
            return err;
        if (count) {
            *hit = hits[count - 1];
            return 1;
        }
        far_point(y->t, "shard:l2_missed");
        y->child_unwritten = false;
        *mark = far_rdwc_mark(y->t);
        if ((err = shard_put_home(y)) != 0)
            return err < 0 ? err : 2;
        if ((err = far_wait(y->t)) < 0 || (err = shard_see_home(y)) < 0)
            return err;
    }
}


/* 1: found in the part of the bucket where it should be; 0: look at all of it. */
static int find_in_window(shard_try *y, shard_i_hit *hit) {
    int err = shard_put_window(y);
    if (err <= 0 || (err = far_wait(y->t)) < 0)
        return err;
    if (!shard_home_is_right(y) || !shard_i_find_l1(y, hit) || !hit_counts(y))
        return 0;
    return confirm(y, hit);
}


int shard_i_get(far_task *t, far_index *index, far_bytes key, far_out *out) {
    shard_try y;
    int err = shard_begin(&y, t, index, key);
    if (err >= 0 && shard_i_too_wide(y.st, key))
        return FAR_ERR_NOT_FOUND;
    while (err >= 0) {
        shard_i_hit hit;
        shard_attempt(&y);
        uint32_t mark = far_rdwc_mark(t);
        if ((err = find_in_window(&y, &hit)) == 1) {
            far_rdwc_done(t, mark);
            return far_out_give(out, &hit.value, 8);
        }
        mark = far_rdwc_mark(t);
        if (err < 0 || (err = shard_put_home(&y)) < 0)
            return err;
        if (err == 0) {
            if ((err = far_wait(t)) < 0 || (err = shard_see_home(&y)) < 0)
                return err;
            far_point(t, "shard:home_read");
            if ((err = find(&y, &hit, &mark)) == 0)
                return FAR_ERR_NOT_FOUND;
            if (err == 1 && (err = confirm(&y, &hit)) == 1) {
                far_rdwc_done(t, mark);
                return far_out_give(out, &hit.value, 8);
            }
        }
        if (err >= 0)
            err = shard_retry(&y, true);
    }
    return err;
}
