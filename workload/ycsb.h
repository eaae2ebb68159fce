/* The workloads of YCSB as streams of operations on record numbers. Numbers are percentages:
 *
 *     load  inserts of all records            a  50 get, 50 update     b  95 get, 5 update     c  100 get
 *     d     95 get of the latest, 5 insert    e  95 scan, 5 insert     f  50 get, 50 read-modify-write
 *     writes  100 update (not in YCSB)        mix  shares that the user chooses (far_mix)
 *
 * A far_ycsb is one run, which its threads share; each thread has a stream. A stream depends on the seed, the workload,
 * the number of the thread, and how many inserts are complete at each step. With one thread it is always the same. */
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
    FAR_YCSB_WORKLOADS /* number of workloads */
} far_ycsb_workload;
typedef enum {
    FAR_YCSB_GET,
    FAR_YCSB_UPDATE,
    FAR_YCSB_INSERT,
    FAR_YCSB_SCAN,
    FAR_YCSB_READ_MODIFY_WRITE,
    FAR_YCSB_DELETE, /* deletes the oldest record */
    FAR_YCSB_KINDS   /* number of kinds of operations */
} far_ycsb_kind;

/* The shares of the kinds of operations in a workload. */
typedef struct far_mix {
    uint8_t percent[FAR_YCSB_KINDS]; /* the sum is 100 */
} far_mix;

/* Parses text such as "get=90,update=5,insert=3,delete=1,scan=1". The name of a read-modify-write is rmw. */
int far_mix_parse(const char *text, far_mix *mix, char *error, size_t error_size);
/* writes the form that far_mix_parse reads; `text` needs FAR_MIX_TEXT bytes */
const char *far_mix_text(const far_mix *mix, char *text);
#define FAR_MIX_TEXT 96

/* Parses the name of a workload: "load", "a".."f", "writes" or "mix", in small or capital letters. Returns
 * FAR_ERR_INVALID for any other name. */
int far_ycsb_parse(const char *name, far_ycsb_workload *workload);
const char *far_ycsb_name(far_ycsb_workload workload);
/* returns the default distribution of the workload */
far_distribution_kind far_ycsb_distribution(far_ycsb_workload workload);

typedef struct far_ycsb_config {
    far_ycsb_workload workload;
    uint64_t records; /* number of records that the workload load inserts */
    /* planned number of operations of all threads, from which the number of inserts is estimated; streams do not end
     * there */
    uint64_t ops;
    far_distribution_kind distribution;
    double theta; /* parameter of zipfian and latest */
    uint64_t seed;
    far_mix mix;             /* used by FAR_YCSB_MIX only */
    uint32_t scan_length[2]; /* smallest and largest number of pairs of a scan; both 0: 1..FAR_YCSB_SCAN_MAX */
} far_ycsb_config;

const far_mix *far_ycsb_mix(const far_ycsb_config *config); /* returns the shares of the configured workload */

typedef struct far_ycsb {
    far_ycsb_config config;
    far_records *records;
    uint64_t space; /* planned number of records at the end */
} far_ycsb;

typedef struct far_ycsb_stream {
    far_ycsb *ycsb;
    far_random random;
    far_distribution distribution;
} far_ycsb_stream;

typedef struct far_ycsb_op {
    far_ycsb_kind kind;
    uint64_t record;
    uint32_t scan_len; /* number of pairs of a scan; otherwise 0 */
} far_ycsb_op;

/* Begins a run. `records` continues from one run to the next, so records that workload D inserted are present in E.
 * Returns FAR_ERR_INVALID if theta is out of range, or if the workload reads and no record is present. */
int far_ycsb_init(far_ycsb *ycsb, const far_ycsb_config *config, far_records *records, char *error, size_t error_size);
void far_ycsb_stream_init(far_ycsb_stream *stream, far_ycsb *ycsb, unsigned thread);

/* Draws the next operation. A delete takes the oldest record, each record once; an operation that was drawn earlier may
 * then not find it (far_records_gone). When only half of the records that were present at the beginning are left, a
 * delete becomes a get. The caller must acknowledge every insert when it has ended:
 * far_records_acknowledge(ycsb->records, op.record). Returns FAR_ERR_NOT_FOUND if an insert was due and no record
 * number is left (end of a load, or of the key file), or FAR_ERR_BUSY if too many inserts are unfinished. After
 * FAR_ERR_BUSY nothing has changed; call again when some inserts are acknowledged. */
int far_ycsb_next(far_ycsb_stream *stream, far_ycsb_op *op);

#endif
