# SPDX-License-Identifier: GPL-2.0-or-later
# Unit tests of the scheduler that need more than their own source.
test_sched_reference_SRCS := tests/unit/test_sched_reference.c \
	$(addprefix tools/ndp-reference/,count.c solve.c)
test_sched_reference_LIBS := -lglpk
