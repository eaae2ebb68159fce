/* The workloads of YCSB as streams of operations on record numbers.
 *
 *   load  inserts of all records            a  50 get, 50 update     b  95 get, 5 update     c  100 get
 *   d     95 get of the latest, 5 insert    e  95 scan, 5 insert     f  50 get, 50 read-modify-write
 *   writes  100 update (not of YCSB)        mix  as the user says (far_mix)
 *
 * A far_ycsb is one run, shared by its threads; each has a stream. A stream is decided by seed, workload, thread number
 * and by how many inserts were complete at each step: with one thread it is the same every time. */
#ifndef FAR_WORKLOAD_YCSB_H
#define FAR_WORKLOAD_YCSB_H

#include "base/random.h"
#include "workload/distribution.h"
#include "workload/records.h"

#include <stddef.h>
#include <stdint.h>

#define FAR_YCSB_SCAN_MAX 100

typedef enum {
    FAR_YCSB_LOAD,
    FAR_YCSB_A,
    FAR_YCSB_B,
    FAR_YCSB_C,
    FAR_YCSB_D,
    FAR_YCSB_E,
    FAR_YCSB_F,
    FAR_YCSB_WRITES,
    FAR_YCSB_MIX,
    FAR_YCSB_WORKLOADS /* how many there are */
} far_ycsb_workload;
typedef enum {
    FAR_YCSB_GET,
    FAR_YCSB_UPDATE,
    FAR_YCSB_INSERT,
    FAR_YCSB_SCAN,
    FAR_YCSB_READ_MODIFY_WRITE,
    FAR_YCSB_DELETE, /* of the oldest record */
    FAR_YCSB_KINDS   /* how many there are */
} far_ycsb_kind;

/* What a workload does. */
typedef struct far_mix {
    uint8_t percent[FAR_YCSB_KINDS]; /* the shares add up to 100 */
} far_mix;

int far_mix_parse(const char *text, far_mix *mix, char *error,
                  size_t error_size);                     /* "get=90,update=5,insert=3,delete=1,scan=1"; also rmw */
const char *far_mix_text(const far_mix *mix, char *text); /* as far_mix_parse takes it; room for FAR_MIX_TEXT bytes */
#define FAR_MIX_TEXT 96

int far_ycsb_parse(
    const char *name,
    far_ycsb_workload *workload); /* "load", "a".."f", "writes", "mix", capitals too; FAR_ERR_INVALID: none */
const char *far_ycsb_name(far_ycsb_workload workload);
far_distribution_kind far_ycsb_distribution(far_ycsb_workload workload); /* what it uses unless told otherwise */

typedef struct far_ycsb_config {
    far_ycsb_workload workload;
    uint64_t records; /* load: how many there shall be */
    uint64_t ops;     /* planned over all threads: how many inserts to expect; streams go on beyond it */
    far_distribution_kind distribution;
    double theta; /* of zipfian and latest */
    uint64_t seed;
    far_mix mix;             /* of FAR_YCSB_MIX */
    uint32_t scan_length[2]; /* least and most pairs of a scan; both 0: 1..FAR_YCSB_SCAN_MAX */
} far_ycsb_config;

const far_mix *far_ycsb_mix(const far_ycsb_config *config); /* what it does */

typedef struct far_ycsb {
    far_ycsb_config config;
    far_records *records;
    uint64_t space; /* as many records as there will be, by plan */
} far_ycsb;

typedef struct far_ycsb_stream {
    far_ycsb *ycsb;
    far_random random;
    far_distribution distribution;
} far_ycsb_stream;

typedef struct far_ycsb_op {
    far_ycsb_kind kind;
    uint64_t record;
    uint32_t scan_len; /* scan: how many pairs, else 0 */
} far_ycsb_op;

/* The records go on from one run to the next: what D inserted is there for E. FAR_ERR_INVALID: theta out of range, or a
 * workload that reads without a record present. */
int far_ycsb_init(far_ycsb *ycsb, const far_ycsb_config *config, far_records *records, char *error, size_t error_size);
void far_ycsb_stream_init(far_ycsb_stream *stream, far_ycsb *ycsb, unsigned thread);

/* The next operation. Deletes take the oldest record, each once; an operation drawn before may meet its absence
 * (far_records_gone). When only half of what was there at the beginning is left a delete
 * becomes a get. Every insert must be acknowledged when it is done: far_records_acknowledge(ycsb->records,
 * op.record). FAR_ERR_NOT_FOUND: an insert was due and there is no record number left (the end of a load, or of the key
 * file). FAR_ERR_BUSY: an insert was due but too many are under way; nothing was consumed, ask again when some are
 * acknowledged. */
int far_ycsb_next(far_ycsb_stream *stream, far_ycsb_op *op);

#endif
