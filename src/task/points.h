/* The named points (far_point) of this binary, and how often each was reached on the simulator. Torture runs report
 * points that no test has reached. */
#ifndef FAR_TASK_POINTS_H
#define FAR_TASK_POINTS_H

#include "task/task.h"

size_t far_point_count(void);
far_point_site *far_point_at(size_t i); /* returns the point number i; the linker has chosen the order of the points */

#endif
