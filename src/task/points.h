/* The named points (far_point) of this binary, and how often each was reached on the simulator. */
#ifndef FAR_TASK_POINTS_H
#define FAR_TASK_POINTS_H

#include "task/task.h"

size_t far_point_count(void);
far_point_site *far_point_at(size_t i); /* in the order in which the linker has put them */

#endif
