# SPDX-License-Identifier: LGPL-2.1-or-later
#
# libndp/sched: prediction and the placement engine.
LIB_SRCS += $(addprefix libndp/sched/, engine.c engine_choose.c engine_value.c \
	predict.c predict_score.c)

# Vectors written out, loops to unroll.
CFLAGS_libndp/sched/predict.c += -O3
