/* Locks. */
#include "index/smart/smart.h"
int smart_update_locked(smart_op *op, const smart_spot *spot, far_bytes value) { (void)op; (void)spot; (void)value; return FAR_ERR_UNSUPPORTED; }
int smart_redo_dead(smart_op *op, far_addr leaf, uint64_t lock) { (void)op; (void)leaf; (void)lock; return 0; }
